"""The results as a Markdown page."""

HEAD = """# Benchmarks

Made by `make bench` ({processor}, {memory}, Python {python}; {packages}). Every figure is a ratio measured in one run,
best of three, all cores allowed to both sides; quernel's fits reach a certified relative gap of 1e-6. Design: X uniform
on [0,1]^3, y = exp(-x1+x2) - x2 x3 + mean(x) + N(0,1), Gaussian kernel of bandwidth 1 unless said. *Ridge* is
the normal equations and a solve on the same features. A goal that is missed is shown as missed.

| what | measured | goal | met | quernel (s) | baseline (s) |
|---|---:|---:|:---:|---:|---:|
"""


def page(machine: dict[str, str], results: list[dict]) -> str:
    rows = []
    for row in results:
        met = "yes" if row["met"] else "**no**"
        ours, base = (f"{row[key]:.3g}" if row[key] is not None else "" for key in ("ours", "baseline"))
        rows.append(f"| {row['what']} | {row['ratio']:.3g} {row['unit']} | {row['goal']} | {met} | {ours} | {base} |")
    return HEAD.format(**machine) + "\n".join(rows) + "\n"
