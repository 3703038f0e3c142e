"""quernel beside other systems: all that solve the same problem, or one near to it, at a size most can manage."""

from collections.abc import Iterator
from typing import NamedTuple

from quernel.bench import Task, compare

TIME_LIMIT = 60.0


class Comparison(NamedTuple):
    """A task, and who takes part: quernel first, whose certificate gives the lower bound."""

    task: Task
    systems: tuple[str, ...]
    problem: str | None = None


QUERNEL = "quernel.bench:QUERNEL"
HERE = "benchmarks.systems."
COMPARISONS = {
    "kernel": Comparison(
        Task(n=2_000, level=0.5, alpha=1e-4, fit_intercept=True),
        (QUERNEL, *(HERE + name for name in ("libsvm:SVR", "torchkm:KQR", "r:KQR", "piqp:PIQP", "clarabel:CLARABEL"))),
    ),
    "tail": Comparison(
        Task(n=2_000, level=0.1, alpha=1e-4, fit_intercept=True),
        (QUERNEL, *(HERE + name for name in ("torchkm:KQR", "r:KQR", "piqp:PIQP", "clarabel:CLARABEL"))),
    ),
    "features": Comparison(
        Task(n=10_000, level=0.5, alpha=1e-4, M=100),
        (
            QUERNEL,
            "quernel.bench:RIDGE",
            *(HERE + name for name in ("rehline:REHLINE", "piqp:PIQP", "clarabel:CLARABEL")),
        ),
    ),
    "linear": Comparison(
        Task(n=10_000, level=0.5, alpha=1e-8, M=50, bandwidth=0.2, fit_intercept=True),
        (
            QUERNEL,
            "quernel.bench:HIGHS",
            "quernel.bench:HIGHS_IPM",
            *(HERE + name for name in ("statsmodels:QUANTREG", "pyfixest:FRISCH_NEWTON")),
            *(HERE + name for name in ("r:FN", "r:PFN", "r:PFNB", "r:CONQUER")),
        ),
    ),
    "forecasters": Comparison(
        Task(n=20_000, level=0.5, alpha=1e-4),
        tuple(HERE + name for name in ("forecasters:QUERNEL", "forecasters:LIGHTGBM", "forecasters:FOREST")),
        "n=20,000, five levels from X",
    ),
}


def run_comparisons(only: str | None = None) -> Iterator[dict]:
    """A row for every system at every task; `only` keeps the comparisons and systems whose name contains it."""
    for name, comparison in COMPARISONS.items():
        chosen = [s for s in comparison.systems if only is None or only in name or only in s.lower()]
        if chosen and chosen[0] != comparison.systems[0]:  # the bound is needed in any case
            chosen.insert(0, comparison.systems[0])
        if chosen and (only is None or only in name or len(chosen) > 1):
            yield from compare(
                chosen, comparison.task, time_limit=TIME_LIMIT, problem=comparison.problem, callback=print_row
            )


def print_row(row: dict) -> None:
    """One line of what became of a system."""
    seconds = f"{row['seconds']:.3g} s" if row["seconds"] is not None else row["status"]
    excess = f"excess {row['excess']:.0e}" if row["excess"] is not None else ""
    print(f"{row['problem']:<62} {row['system']:<44} {seconds:>10}  {excess:<14} {row['note']}", flush=True)
