"""docs/accuracy.md and its picture, from the results of `benchmarks.tables`."""

from pathlib import Path
from textwrap import fill

import numpy as np

from benchmarks import tabular_coverage, tabular_serving, tabular_stream
from benchmarks.tabular import TABLES
from benchmarks.tabular_peers import PEERS

OURS, KERNEL, TIME_PEER = "tabular", "kernel", "CatBoost"
LONGER = "LightGBM tuned longer"  # beyond what a fair search of nine settings is
ABLATION = ("kernel part", "residual forest part", "forest part", "not calibrated")
LEFT = dict(zip(ABLATION, ("kernel alone", "residual forest alone", "forest alone", "no calibration"), strict=True))
UCI = ("concrete", "power plant", "wine", "yacht")
# Published on the same 20 splits: RMSE of Dropout, and the best CRPS of seven neural methods.
PUBLISHED = {"concrete": (4.82, 2.724), "power plant": (4.01, 2.201), "wine": (0.62, 0.337), "yacht": (0.67, 0.478)}
# Targets with few values: coverage is that of the randomised PIT.
DISCRETE = ("wine",)
MAIN_SPLITS = 5

HEAD = """# Accuracy on tables

{summary}

Bike, wind and pm2.5 are time series, of which random rows are held out here: that flatters every method
([trust](trust.md#a-checklist)) and says little about forecasts ([forecasting](forecasting.md)).

## How it was measured

Made by `python -m benchmarks.tables` ({processors}; one thread each; results in benchmarks/tables.jsonl). *tabular* is
`TabularQuantileRegressor()`, *kernel* `KernelQuantileRegressor()`, both with their defaults. Every method gets the same
numbers (categories as indicator columns, missing entries as medians of training rows) and the same splits: the first of
the 20 standard ones of concrete, power plant, wine and yacht, random ones with a fifth of the rows held out elsewhere.
Defaults were developed inside training rows. Tuned methods choose on one inner split, a fifth of the training rows, and
are fitted again to all of them: LightGBM among 6 settings per level and CatBoost among 4 of depth and rate, both with
early stopping, the quantile forest among 3 leaf sizes. *LightGBM tuned longer* has 40 draws in five folds. Seconds of
methods with their defaults are of the first split, measured in one run while the machine had no other work; those of
tuned methods are medians over splits, measured earlier on slower machines.

"""


def render_page(rows: list[dict], images: Path) -> str:
    """The page, in Markdown; draws the picture into `images`."""
    rows = [row for row in rows if not row["inner"]]
    main = [row for row in rows if row["split"] < MAIN_SPLITS]
    processors = " or ".join(sorted({row["processor"] for row in rows if row["method"] != LONGER}))
    shared = _shared_splits(main)
    draw(shared, images / "accuracy.png")
    return "\n".join(
        [
            HEAD.format(processors=processors, summary=_summary(main))
            + "## Loss\n\nMean pinball loss at 0.1, 0.5 and 0.9 on held-out rows over that of the unconditional"
            " quantiles;\nmeans over the splits that *tabular* and all peers have been measured on."
            "\n",
            _losses(shared, [OURS, KERNEL, *PEERS]),
            _against_best(main),
            "## Time\n\nProcessor seconds of tuning, fitting and predicting.\n",
            _seconds(main, [OURS, KERNEL, *PEERS]),
            _time_ratio(main),
            "![Loss against time on every table](images/accuracy.png)\n",
            "A method in the shaded area would be both faster and more accurate than *tabular*.\n",
            "## Coverage\n\nShare of held-out rows inside 50, 80 and 90 % intervals of *tabular*, all measured splits"
            " pooled, and twice\nits standard error; wine, whose target has six values, by the randomised PIT. Of 20"
            " splits the errors are too small: they count\na row that was tested in several splits as several"
            " rows.\n*(off)* marks what is further from nominal than both 3 points and twice its standard error.\n",
            _coverage(rows),
            "Share inside the 80 % intervals of the others, means over splits:\n",
            _losses(shared, [KERNEL, *(peer for peer in PEERS if peer != LONGER)], "inside_80"),
            "In a simulation (`python -m benchmarks.tabular_coverage`), shares of new rows inside 50 / 80 / 90 %"
            "\nintervals, where it is known with the largest standard error of the three; † marks cells in which one"
            " share is more\nthan four points from nominal:\n",
            tabular_coverage.render_table(tabular_coverage.read_results()),
            "## Mean and distribution beside neural networks\n\nRMSE of the mean and CRPS on the standard splits,"
            " beside published results of the same splits\n(RMSE: Dropout; CRPS: the best of seven neural methods).\n",
            _uci(rows),
            "## What each part contributes\n\nLoss as above with one part only, and with all parts but without"
            " calibration of the levels (share inside\nthe 80 % interval in brackets).\n",
            _ablation(main),
            _exceptions(main),
            *_serving(),
        ]
    )


def _serving() -> list[str]:
    """Size and speed of models, and fits to files, as far as they were measured."""
    models, files = tabular_serving.read_results(), tabular_stream.read_results()
    parts = ["## Serving and streams\n"] if models or files else []
    if models:
        parts.append(
            "`python -m benchmarks.tabular_serving`: simulated rows of ten columns, predicted at three levels, in"
            " processor\nseconds of one thread.\n"
        )
        parts.append(tabular_serving.render_table(models))
    if files:
        parts.append(
            "`python -m benchmarks.tabular_stream`: fits to a Parquet file; the kernel sees all rows. The default"
            "\nis 1,000 landmarks.\n"
        )
        parts.append(tabular_stream.render_table(files))
    return parts


def _shared_splits(rows: list[dict]) -> list[dict]:
    """Rows of the splits of each table that ours and all peers but the longest search have: only these compare."""
    needed = {OURS, *(peer for peer in PEERS if peer != LONGER)}
    found: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        found.setdefault((row["table"], row["split"]), set()).add(row["method"])
    return [row for row in rows if needed <= found[row["table"], row["split"]]]


def _get(rows: list[dict], table: str, method: str, key: str = "loss") -> dict[int, float]:
    """A figure of a method by split."""
    found = [row for row in rows if (row["table"], row["method"]) == (table, method) and key in row]
    return {row["split"]: row[key] for row in found}


def _relative(rows: list[dict], table: str, method: str) -> dict[int, float]:
    """Loss over that of the unconditional quantiles, by split."""
    constant = {row["split"]: row["constant"] for row in rows if row["table"] == table and "constant" in row}
    return {k: loss / constant[k] for k, loss in _get(rows, table, method).items() if k in constant}


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] + ["---:"] * (len(head) - 1), *lines]) + "\n"


def _losses(rows: list[dict], methods: list[str], key: str = "loss") -> str:
    lines = []
    for table in TABLES:
        cells = []
        for method in methods:
            found = _relative(rows, table, method) if key == "loss" else _get(rows, table, method, key)
            value = float(np.mean(list(found.values()))) if found else None
            text = "" if value is None else f"{value:.4f}" if key == "loss" else f"{value:.0%}"
            cells.append(text + (f" ({len(found)})" if found and len(found) < MAIN_SPLITS else ""))
        size = [row for row in rows if row["table"] == table and "rows" in row]
        if size:
            lines.append([table, f"{size[0]['rows']:,}", *cells])
    fewer = any("(" in cell for line in lines for cell in line)
    note = "\nIn brackets: the number of splits, if fewer than five.\n" if fewer else ""
    return _markdown(["table", "training rows", *methods], lines) + note


def _paired(rows: list[dict], table: str, method: str, other: str) -> tuple[float, float, int] | None:
    """Ratio of the losses of two methods over the splits of both, its paired standard error, and their number."""
    ours, theirs = _get(rows, table, method), _get(rows, table, other)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    a, b = (np.array([one[k] for k in both]) for one in (ours, theirs))
    ratio = float(a.sum() / b.sum())
    error = float(np.std(a - ratio * b, ddof=1) / np.sqrt(len(both)) / b.mean()) if len(both) > 1 else np.nan
    return ratio, error, len(both)


def _best_peer(rows: list[dict], table: str, peers: list[str]) -> tuple[str, tuple[float, float, int]] | None:
    """The peer against which our ratio is largest, with that ratio, its standard error and the number of splits."""
    found = {peer: _paired(rows, table, OURS, peer) for peer in peers}
    known = {peer: pair for peer, pair in found.items() if pair is not None}
    return max(known.items(), key=lambda item: item[1][0]) if known else None


def _against_best(rows: list[dict]) -> str:
    fair, lines, ratios = [peer for peer in PEERS if peer != LONGER], [], ([], [], [])
    for table in TABLES:
        best = _best_peer(rows, table, fair)
        pairs = (None if best is None else best[1], _paired(rows, table, OURS, LONGER),
                 _paired(rows, table, KERNEL, "LightGBM tuned"))  # fmt: skip
        if best is None:
            continue
        for one, pair in zip(ratios, pairs, strict=True):
            one.extend([] if pair is None else [pair[0]])
        cells = ["" if pair is None else f"{pair[0]:.3f} ± {pair[1]:.3f} ({pair[2]})" for pair in pairs]
        lines.append([table, best[0], *cells])
    lines.append(["**geometric mean**", "", *(f"**{_mean(one)}**" for one in ratios)])
    head = ["table", "best peer", "tabular / best peer", f"tabular / {LONGER}", "kernel / LightGBM tuned"]
    return (
        "\nRatio of losses to the best of the peers on each table, and to LightGBM with the longer search. Each ± is"
        " a standard\nerror over the splits, paired; their number is in brackets.\n\n" + _markdown(head, lines)
    )


def _summary(rows: list[dict]) -> str:
    """The page in three sentences."""
    fair = [peer for peer in PEERS if peer != LONGER]
    best = {table: found[1] for table in TABLES if (found := _best_peer(rows, table, fair)) is not None}
    level = [table for table, (ratio, error, _) in best.items() if ratio + error > 1]
    tuned = [pair[0] for table in TABLES if (pair := _paired(rows, table, OURS, "LightGBM tuned")) is not None]
    kernel = [pair[0] for table in TABLES if (pair := _paired(rows, table, KERNEL, "LightGBM tuned")) is not None]
    seconds = [[_median_seconds(rows, table, one) for one in (OURS, "LightGBM", TIME_PEER)] for table in TABLES]
    slower, times = ([one[0] / one[k] for one in seconds if all(one)] for k in (1, 2))
    return fill(
        f"On {len(best)} tables `TabularQuantileRegressor()` has on average (geometric mean)"
        f" {_mean([one[0] for one in best.values()])} times the pinball loss of the best of {len(fair)} other models,"
        " chosen anew for each table: LightGBM, CatBoost and quantile forests, with their defaults and tuned, and"
        f" XGBoost with its defaults (below: *peers*). On {' and '.join(level)} it is about as good as the best. Its"
        f" loss is {min(tuned):.2f} to {max(tuned):.2f} times that of tuned LightGBM. It takes {min(times):.1f} to"
        f" {max(times):.1f} times the time of {TIME_PEER} and {min(slower):.0f} to {max(slower):.0f} times that of"
        f" LightGBM, both with their defaults. `KernelQuantileRegressor()` alone has {_mean(kernel)} times the loss of"
        " tuned LightGBM.",
        120,
    )


def _join(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _mean(ratios: list[float]) -> str:
    return f"{np.exp(np.mean(np.log(ratios))):.3f}" if ratios else "not measured"


def _median_seconds(rows: list[dict], table: str, method: str) -> float | None:
    found = list(_get(rows, table, method, "seconds").values())
    return float(np.median(found)) if found else None


def _seconds(rows: list[dict], methods: list[str]) -> str:
    lines, timed = [], [one for one in methods if any(_median_seconds(rows, table, one) for table in TABLES)]
    for table in TABLES:
        found = [_median_seconds(rows, table, method) for method in timed]
        if any(found):
            lines.append([table, *("" if one is None else f"{one:.{0 if one >= 10 else 1}f}" for one in found)])
    return _markdown(["table", *timed], lines)


def _time_ratio(rows: list[dict]) -> str:
    parts, both = [], False
    for table in TABLES:
        pair = [_median_seconds(rows, table, method) for method in (OURS, KERNEL, TIME_PEER)]
        if pair[0] is not None and pair[2] is not None:
            kernel = "" if pair[1] is None else f" and {pair[1] / pair[2]:.1f}"
            both = both or bool(kernel)
            parts.append(f"{table} {pair[0] / pair[2]:.1f}{kernel}")
    ours = "*tabular* (and of *kernel*)" if both else "*tabular* (*kernel* was not timed)"
    return f"Seconds of {ours} over those of {TIME_PEER} with its defaults: {', '.join(parts)}.\n"


def _coverage(rows: list[dict]) -> str:
    lines = []
    for table in TABLES:
        found = [row for row in rows if (row["table"], row["method"]) == (table, OURS)]
        tested = np.array([row["tested"] for row in found], dtype=float)
        if len(found) == 0:
            continue
        cells = []
        for coverage in (50, 80, 90):
            kind = "pit" if table in DISCRETE else "inside"
            share = float(tested @ [row[f"{kind}_{coverage}"] for row in found] / tested.sum())
            error = np.sqrt(coverage / 100 * (1 - coverage / 100) / tested.sum())
            held = abs(share - coverage / 100) <= max(0.03, 2 * error)
            cells.append(f"{100 * share:.1f} ± {200 * error:.1f}{'' if held else ' (off)'}")
        lines.append([table, str(len(found)), *cells])
    return _markdown(["table", "splits", "50 %", "80 %", "90 %"], lines)


def _uci(rows: list[dict]) -> str:
    lines = []
    for table in UCI:
        errors, scores = _get(rows, table, OURS, "rmse"), _get(rows, table, OURS, "crps")
        if errors:
            own = [f"{np.mean(list(one.values())):.3f}" for one in (errors, scores)]
            published = PUBLISHED[table]
            lines.append([table, str(len(errors)), own[0], f"{published[0]}", own[1], f"{published[1]}"])
    return _markdown(["table", "splits", "RMSE", "published RMSE", "CRPS", "published CRPS"], lines)


def _ablation(rows: list[dict]) -> str:
    lines = []
    for table in TABLES:
        cells = []
        for method in (OURS, *ABLATION):
            loss, inside = _relative(rows, table, method), _get(rows, table, method, "inside_80")
            cells.append(f"{loss[0]:.4f} ({inside[0]:.0%})" if 0 in loss else "")
        if any(cells[1:]):
            lines.append([table, *cells])
    return _markdown(["table, first split", OURS, *ABLATION], lines)


def _exceptions(rows: list[dict]) -> str:
    """Where less than the whole has a lower loss."""
    found, tested = [], []
    for table in TABLES:
        losses = {method: _relative(rows, table, method).get(0) for method in (OURS, *ABLATION)}
        lower = [name for name in ABLATION if losses[name] and f"{losses[name]:.4f}" < f"{losses[OURS]:.4f}"]
        found += [f"{table} ({' or '.join(LEFT[name] for name in lower)})"] if lower else []
        tested += [_get(rows, table, OURS, "tested")[0]] if losses[ABLATION[0]] else []
    text = (
        f"On this split, leaving something out lowers the loss on {_join(found)}. Weights and calibration are estimated"
        " from the training rows, and on small tables they may miss: they are not the best choice of every split. This"
        f" is one split of {min(tested)} to {max(tested)} held-out rows each; coverage over all splits is"
        " [above](#coverage)."
    )
    return fill(text, 120) + "\n"


# Marker, colour and whether it is filled: a colour for each system, hollow with its defaults and filled if tuned.
STYLES = {
    OURS: ("*", "C3", True),
    KERNEL: ("D", "C3", False),
    "LightGBM": ("o", "C0", False),
    "LightGBM tuned": ("o", "C0", True),
    "CatBoost": ("s", "C1", False),
    "CatBoost tuned": ("s", "C1", True),
    "quantile forest": ("^", "C2", False),
    "quantile forest tuned": ("^", "C2", True),
    "XGBoost": ("v", "C4", False),
}
SECONDS = (0.02, 300.0)  # the range of all panels


def draw(rows: list[dict], file: Path) -> None:
    """Loss against processor time, one panel per table; what is both faster and more accurate is on grey ground."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    panels, handles = figure.subplots(2, 5, sharex=True), {}
    for table, axes in zip(TABLES, panels.ravel(), strict=True):
        points = {}
        for method in STYLES:
            # Ratios over common splits, as a method may lack some of them.
            pair, seconds = _paired(rows, table, method, OURS), _median_seconds(rows, table, method)
            if pair and seconds:
                points[method] = seconds, pair[0] * float(np.mean(list(_relative(rows, table, OURS).values())))
        axes.set(xscale="log", xlim=SECONDS, title=table)
        lowest, highest = min(loss for _, loss in points.values()), max(loss for _, loss in points.values())
        axes.set_ylim(lowest - 0.12 * (highest - lowest), highest + 0.08 * (highest - lowest))
        axes.fill_between([SECONDS[0], points[OURS][0]], axes.get_ylim()[0], points[OURS][1], color="0.9", zorder=0)
        for method, (seconds, loss) in points.items():
            marker, colour, filled = STYLES[method]
            size, face = 140 if method == OURS else 36, colour if filled else "none"
            handles[method] = axes.scatter(seconds, loss, size, marker=marker, facecolors=face, edgecolors=colour)
    for axes in panels[1]:
        axes.set_xlabel("processor seconds")
    for axes in panels[:, 0]:
        axes.set_ylabel("loss / unconditional loss")
    known = [method for method in STYLES if method in handles]
    figure.legend([handles[method] for method in known], known, loc="outside lower center", ncols=5)
    figure.savefig(file, dpi=80)
