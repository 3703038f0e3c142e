"""`python -m benchmarks.tabular_quantiles FOLDER`: TabularQuantileRegressor, its parts, and peers on ten tables.

Held-out mean pinball loss at 0.1, 0.5 and 0.9 over that of the unconditional quantiles, the share of rows inside of
intervals, and processor seconds of fit and prediction, all on one thread. Peers have their defaults. Results are kept
in benchmarks/tabular_quantiles.json, and what is there is not measured again. With --inner, the rows of a split are
those of its training part, divided again: development never looks at test rows. docs/tabular.md is written from the
others.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tables import LEVELS, forest, lightgbm_default, loss
from benchmarks.tabular import TABLES, read
from quernel import TabularQuantileRegressor

HERE = Path(__file__).parent
ALL_LEVELS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
OURS, MARK = "tabular", "<!-- figures of benchmarks/tabular_quantiles.py -->"
Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def tabular(**settings) -> Predict:
    def run(X, y, X_new, seed):
        return TabularQuantileRegressor(random_state=seed, **settings).fit(X, y).predict(X_new, ALL_LEVELS)

    return run


def catboost(X, y, X_new, seed):
    from catboost import CatBoostRegressor

    levels = ",".join(map(str, LEVELS))
    settings = {"thread_count": 1, "verbose": 0, "allow_writing_files": False, "random_seed": seed}
    return CatBoostRegressor(loss_function=f"MultiQuantile:alpha={levels}", **settings).fit(X, y).predict(X_new)


METHODS: dict[str, Predict] = {
    OURS: tabular(),
    "LightGBM": lightgbm_default,
    "CatBoost": catboost,
    "quantile forest": forest,
    "kernel only": tabular(parts=["kernel"]),
    "residual forest only": tabular(parts=["residual_forest"]),
    "forest only": tabular(parts=["forest"]),
    "not calibrated": tabular(calibrate=False),
}
PEERS = ("LightGBM", "CatBoost", "quantile forest")


def judge(y, y_new, curves) -> dict:
    """Loss over that of the unconditional quantiles, and coverages: 80 % of all, 50 and 90 % where levels allow."""
    curves = np.sort(curves, axis=1)
    middle = curves[:, [1, 3, 5]] if curves.shape[1] == len(ALL_LEVELS) else curves
    constant = np.tile(np.quantile(y, LEVELS), (len(y_new), 1))
    found = {"loss": loss(y_new, middle) / loss(y_new, constant), "80": _inside(y_new, middle[:, 0], middle[:, 2])}
    if curves.shape[1] == len(ALL_LEVELS):
        found |= {"50": _inside(y_new, curves[:, 2], curves[:, 4]), "90": _inside(y_new, curves[:, 0], curves[:, 6])}
    return found


def _inside(y, low, high) -> float:
    return float(np.mean((low <= y) & (y <= high)))


def measure(options, rows: list[dict]) -> None:
    done = {(row["table"], row["split"], row["method"], row["inner"]) for row in rows}
    for table in read(options.folder, options.table or list(TABLES)):
        for k in range(len(table.tests))[: options.splits]:
            X, y, X_new, y_new = table.split(k)
            if options.inner:
                order = np.random.default_rng(k).permutation(len(y))
                test, train = np.split(order, [len(y) // 5])
                X, y, X_new, y_new = X[train], y[train], X[test], y[test]
            for method in options.method or list(METHODS):
                if (table.name, k, method, options.inner) in done:
                    continue
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    curves = METHODS[method](X, y, X_new, k)
                seconds = time.process_time() - start
                row = {"table": table.name, "split": k, "method": method, "inner": options.inner, "rows": len(y)}
                rows.append(row | judge(y, y_new, curves) | {"seconds": seconds})
                print(*(f"{one:.4g}" if isinstance(one, float) else one for one in rows[-1].values()), flush=True)
                draft = options.results.with_suffix(".draft")
                draft.write_text(json.dumps(rows, indent=1) + "\n")
                os.replace(draft, options.results)


def page(rows: list[dict]) -> str:
    """The tables, in Markdown: ours beside peers, and the ablation."""
    rows = [row for row in rows if not row["inner"]]
    parts = [
        "Made by `python -m benchmarks.tabular_quantiles` (one thread; the machine was busy with other work, so only\n"
        "the order of magnitude of seconds counts; peers have their defaults). Mean pinball loss at 0.1, 0.5 and 0.9\n"
        "over that of the unconditional quantiles, then the share of new rows inside the 80 % interval, then seconds;\n"
        "means over the splits.\n\n",
        _table(rows, [OURS, *PEERS], lambda cell: f"{cell['loss']:.4f} ({cell['80']:.0%}, {cell['seconds']:.1f} s)"),
        f"\n{_summary(rows)}\n\nEach part alone, with calibration, and all parts without it (loss, and share inside the"
        " 80 % interval):\n\n",
        _table(rows, [OURS, *(name for name in METHODS if name not in (OURS, *PEERS))],
               lambda cell: f"{cell['loss']:.4f} ({cell['80']:.0%})"),
    ]  # fmt: skip
    return "".join(parts)


def _cell(rows: list[dict], table: str, method: str) -> dict | None:
    found = [row for row in rows if (row["table"], row["method"]) == (table, method)]
    return {key: float(np.mean([row[key] for row in found])) for key in ("loss", "80", "seconds")} if found else None


def _table(rows: list[dict], methods: list[str], text: Callable[[dict], str]) -> str:
    lines = [f"| table | rows | splits | {' | '.join(methods)} |", f"|---|{'---:|' * (2 + len(methods))}"]
    for table in TABLES:
        own = [row for row in rows if (row["table"], row["method"]) == (table, OURS)]
        if own:
            cells = [text(cell) if (cell := _cell(rows, table, method)) else "" for method in methods]
            lines.append(f"| {table} | {own[0]['rows']:,} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _summary(rows: list[dict]) -> str:
    """Geometric mean against the best peer, and coverage of our intervals."""
    ratios, covered = {}, {}
    for table in TABLES:
        peers = [cell["loss"] for name in PEERS if (cell := _cell(rows, table, name))]
        own = [row for row in rows if (row["table"], row["method"]) == (table, OURS)]
        if len(peers) == len(PEERS) and own:
            ratios[table] = float(np.mean([row["loss"] for row in own])) / min(peers)
            covered[table] = [float(np.mean([row[level] for row in own])) for level in ("50", "80", "90")]
    if not ratios:
        return "Not measured yet."
    mean = np.exp(np.mean(np.log(list(ratios.values()))))
    each = ", ".join(f"{table} {ratio:.3f}" for table, ratio in ratios.items())
    levels = "; ".join(f"{table} {'/'.join(f'{100 * one:.0f}' for one in shares)}" for table, shares in covered.items())
    return (
        f"Ratio of losses to the best of these peers: {each}; geometric mean {mean:.3f}.\n"
        f"Shares of new rows inside 50/80/90 % intervals: {levels}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_quantiles", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the data files are")
    parser.add_argument("--table", action="append", choices=list(TABLES), help="only this table; may be repeated")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this method; may be repeated")
    parser.add_argument("--splits", type=int, default=1, help="so many splits of each table")
    parser.add_argument("--inner", action="store_true", help="divide the training rows; for development")
    parser.add_argument("--results", type=Path, default=HERE / "tabular_quantiles.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "tabular.md")
    options = parser.parse_args()
    rows = json.loads(options.results.read_text()) if options.results.exists() else []
    measure(options, rows)
    text = options.page.read_text()
    options.page.write_text(f"{text.split(MARK)[0].rstrip()}\n\n{MARK}\n\n{page(rows)}")


if __name__ == "__main__":
    main()
