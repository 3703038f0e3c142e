"""`quernel plan`: how much regularisation, how many features and how much memory, before anything is fitted."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table as RichTable

from quernel.cli.console import console, errors, fail, flag, note, working
from quernel.cli.data import (
    CATEGORICAL,
    COLUMNS,
    DATA,
    EXCLUDE,
    MAX_MEMORY,
    MISSING,
    bytes_from,
    opened_training,
    tell_training,
)
from quernel.estimators import estimate_cost
from quernel.estimators.cost import as_duration, as_size
from quernel.estimators.defaults import auto_bandwidth, spread
from quernel.kernels import KERNELS, ShiftInvariantKernel, resolve
from quernel.plots.style import require_matplotlib
from quernel.rows import allowance
from quernel.tables import StreamedTraining, Training
from quernel.tables.drawing import rows_to_draw
from quernel.tables.streaming import draw_rows
from quernel.tables.values import numbers
from quernel.theory import Exponent, Exponents, OutsideTheoryWarning, Plan, estimate_exponents
from quernel.theory import plan as recommend
from quernel.theory.rates import violations

MIN_ROWS = 200
SUBSAMPLE = 1000
# Where data do not decide: a target that just lies in the kernel's space, and features in the worst case.
USUAL_SOURCE, WORST_COMPATIBILITY = 0.5, 1.0
# Estimates are read as exponents of the theory, which lie in this range.
LEAST_SOURCE = 0.05
# Columns where nobody says: they matter little beside the features.
USUAL_WIDTH = 10
PICTURES = (".png", ".pdf", ".svg")
PLAN_DATA = f"{DATA} Without one, give --rows, --r and --gamma."


@dataclass(frozen=True, eq=False)
class Seen:
    """What a file says: its rows as `fit` would have them, or a random sample of these, and how many there are."""

    X: NDArray[np.floating]
    y: NDArray[np.floating]
    n_rows: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Numbers:
    """The exponents to plan with and, for each, where it comes from."""

    r: float
    gamma: float
    compatibility: float
    origins: tuple[str, str, str]


def plan(
    data: Annotated[Path | None, typer.Argument(help=PLAN_DATA)] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows to plan for; those of the file by default.", min=2)] = None,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    exclude: Annotated[str | None, typer.Option(help=EXCLUDE)] = None,
    missing: Annotated[str | None, typer.Option(help=MISSING)] = None,
    categorical: Annotated[str | None, typer.Option(help=CATEGORICAL)] = None,
    width: Annotated[
        int | None,
        typer.Option(help=f"Numbers in a row of X; as `fit` makes them of the file, or {USUAL_WIDTH}.", min=1),
    ] = None,
    r: Annotated[float | None, typer.Option(help="Source exponent: smoothness of the target, in (0, 1].")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Capacity exponent: size of the kernel's space, in [0, 1].")
    ] = None,
    compatibility: Annotated[
        float | None, typer.Option(help="Compatibility of uniformly drawn features, in [0, 1]; 1 is the worst case.")
    ] = None,
    level: Annotated[float, typer.Option(help="Quantile level at which r is estimated.")] = 0.5,
    kernel: Annotated[str, typer.Option(help="Kernel whose exponents are estimated.")] = "gaussian",
    subsample: Annotated[int, typer.Option(help="Rows of the file used for the estimates.", min=MIN_ROWS)] = SUBSAMPLE,
    seed: Annotated[int, typer.Option(help="Makes the subsample repeatable.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the map of the features needed here (.png, .pdf).")] = None,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    force: Annotated[bool, flag("--force", "Replace an earlier picture.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of tables.")] = False,
) -> None:
    """Recommend the ridge weight and the number of random features, from exponents or from a data file.

    A file is read as `fit` reads it: columns of any kind, gaps and all. Of one that does not fit in memory a random
    sample of the rows is looked at.
    """
    _check_options(kernel, level, plot, force)
    told: tuple[str, ...] = ()
    reading = {"exclude": exclude, "missing": missing, "categorical": categorical}
    if data is not None:
        seen = _seen(data, target, columns, reading, bytes_from(max_memory), subsample, seed)
        exponents = _numbers(seen, r, gamma, compatibility, level, kernel, subsample, seed)
        rows = seen.n_rows if rows is None else rows
        width = seen.X.shape[1] if width is None else width
        unit, told = spread(seen.y, np.full(len(seen.y), 1 / len(seen.y))), seen.notes
    elif rows is None or r is None or gamma is None:
        fail("Give a data file with --target, or --rows, --r and --gamma.")
    else:
        width = _width(columns, reading, width)
        exponents, unit = _given(r, gamma, compatibility), 1.0
    made, notes = _recommended(rows, exponents)
    if plot is not None:
        _draw(made, plot)
    if as_json:
        typer.echo(json.dumps(_summarized(made, exponents, unit, width, [*told, *notes], plot)))
        return
    console.print(_exponents(exponents))
    console.print(_recommendation(made, unit, width))
    for sentence in notes:
        note(sentence)
    console.print("Theory gives powers of n, not constants: read these as orders of magnitude to start from.")
    if plot is not None:
        console.print(f"Map: [bold]{escape(str(plot))}[/]")


def _check_options(kernel: str, level: float, plot: Path | None, force: bool) -> None:
    """What can be said before any work."""
    able = [name for name, known in KERNELS.items() if issubclass(known, ShiftInvariantKernel)]
    if kernel not in able:
        fail(f"--kernel must be one of {', '.join(able)}; got {kernel!r}.")
    if not 0 < level < 1:
        fail(f"--level must lie strictly between 0 and 1; got {level:g}.")
    if plot is None:
        return
    require_matplotlib()
    if plot.suffix.lower() not in PICTURES:
        fail(f"--plot must end in one of {', '.join(PICTURES)}; got {plot.name!r}.")
    if plot.exists() and not force:
        fail(f"{plot} exists already. Choose another --plot, or add --force to replace it.")
    if not plot.parent.is_dir():
        fail(f"The folder {plot.parent} of the picture is missing. Create it first.")


def _given(r: float, gamma: float, compatibility: float | None) -> Numbers:
    """Exponents from the user; features in the worst case unless they say otherwise."""
    if compatibility is None:
        return Numbers(r, gamma, WORST_COMPATIBILITY, ("given", "given", "worst case"))
    return Numbers(r, gamma, compatibility, ("given", "given", "given"))


def _width(columns: str | None, reading: dict[str, str | None], width: int | None) -> int:
    """The width to reckon with where there is no file; --columns may say it, too, as it has no names to choose then."""
    if columns is not None and not (columns.isdecimal() and int(columns) > 0):
        fail("--columns chooses columns of a data file. Give one, or the number of columns with --width.")
    for name, given in reading.items():
        if given is not None:
            fail(f"--{name} is about the columns of a data file. Give one, or leave it out.")
    if columns is not None and width is None:
        return int(columns)
    return USUAL_WIDTH if width is None else width


def _seen(
    path: Path,
    target: str | None,
    columns: str | None,
    reading: dict[str, str | None],
    max_memory: int | None,
    subsample: int,
    seed: int,
) -> Seen:
    if target is None:
        fail("Name the column to predict with --target.")
    with opened_training(path, target, columns, **reading, max_memory=max_memory, dask=None) as (_, training):
        if training.n_rows < MIN_ROWS:
            fail(
                f"{path} has {training.n_rows} rows with a target; at least {MIN_ROWS} are needed to estimate "
                "exponents. Give them with --rows, --r and --gamma instead."
            )
        tell_training(training)
        X, y = _rows(training, max_memory, subsample, seed)
        return Seen(X, y, training.n_rows, training.notes)


def _rows(training: Training | StreamedTraining, max_memory: int | None, subsample: int, seed: int) -> tuple[Any, Any]:
    """X and y of all rows with a target or, where they are not in memory, of a random sample."""
    if isinstance(training, Training):
        return training.X, training.y
    most = max(subsample, rows_to_draw(len(training.encoder.names), allowance(max_memory)))
    with working(f"Drawing {min(most, training.n_rows):,} of {training.n_rows:,} rows"):
        sample = draw_rows(training, most, seed).table
    y = numbers(sample[training.roles.target])
    there = np.isfinite(y)
    return training.encoder.encode(sample.filter(there)), y[there]


def _numbers(
    seen: Seen,
    r: float | None,
    gamma: float | None,
    compatibility: float | None,
    level: float,
    kernel: str,
    subsample: int,
    seed: int,
) -> Numbers:
    """What the user gave, and estimates for the rest."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(seen.y))[:subsample]
    X, y = seen.X[chosen], seen.y[chosen]
    errors.print(f"Estimating exponents on {len(y):,} of {seen.n_rows:,} rows ...")
    bandwidth = auto_bandwidth(X, np.full(len(y), 1 / len(y)))
    found: Exponents = estimate_exponents(
        X,
        y,
        resolve(kernel).with_bandwidth(bandwidth),
        level=level,
        random_state=rng,  # type: ignore[attr-defined]
    )
    source, first = _choose(r, found.source, USUAL_SOURCE, LEAST_SOURCE)
    capacity, second = _choose(gamma, found.capacity, 1.0, 0.0)
    fit, third = _choose(compatibility, found.compatibility, WORST_COMPATIBILITY, 0.0)
    return Numbers(source, capacity, fit, (first, second, third))


def _choose(given: float | None, found: Exponent, usual: float, least: float) -> tuple[float, str]:
    """The exponent and its origin."""
    if given is not None:
        return given, "given"
    if not found.decided:
        return usual, f"assumed: {found.reason}"
    low, high = found.interval
    return float(np.clip(found.value, least, 1)), f"estimated, {found.confidence:.0%} interval {low:.2f} to {high:.2f}"


def _recommended(rows: int, numbers: Numbers) -> tuple[Plan, list[str]]:
    """The plan; outside of the theorems still, if exponents were estimated, but said."""
    arguments = rows, numbers.r, numbers.gamma, numbers.compatibility
    if numbers.origins[:2] == ("given", "given"):
        wrong = violations(*arguments[1:])
        return recommend(*arguments) if not wrong else fail(f"Outside of the theorems: {'; '.join(wrong)}."), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OutsideTheoryWarning)
        made = recommend(*arguments, strict=False)
    return made, sorted({str(warning.message) for warning in caught})


def _summarized(
    made: Plan, numbers: Numbers, unit: float, width: int, notes: Sequence[str], plot: Path | None
) -> dict[str, Any]:
    """What is recommended, for machines."""
    names = ("r", "gamma", "compatibility")
    sampling = {}
    for name, M in (("uniform", made.uniform), ("leverage", made.leverage)):
        cost = estimate_cost(made.n, width, M)
        sampling[name] = {
            "n_components": M,
            "stored": bool(cost.stored),
            "peak_memory": cost.peak_memory,
            "seconds": cost.seconds,
        }
    return {
        "rows": made.n,
        "columns": width,
        "exponents": {
            name: {"value": getattr(numbers, name), "from": origin}
            for name, origin in zip(names, numbers.origins, strict=True)
        },
        "sampling": sampling,
        "alpha": made.alpha / unit,
        "rate": made.rate,
        "notes": list(notes),
        "plot": None if plot is None else str(plot),
    }


def _exponents(numbers: Numbers) -> RichTable:
    table = RichTable(title="Exponents")
    table.add_column("exponent")
    table.add_column("value", justify="right")
    table.add_column("from")
    names = ("source r", "capacity gamma", "compatibility")
    for name, value, origin in zip(
        names, (numbers.r, numbers.gamma, numbers.compatibility), numbers.origins, strict=True
    ):
        table.add_row(name, f"{value:.2f}", origin)
    return table


def _recommendation(made: Plan, unit: float, width: int) -> RichTable:
    """Two columns, one for each way of sampling; alpha falls with the unit of y. Costs are those of one level."""
    table = RichTable(title=f"Plan for {made.n:,} rows")
    table.add_column("")
    for heading in ("uniform", "leverage"):
        table.add_column(f"{heading} sampling", justify="right")
    table.add_row("features M", f"{made.uniform:,}", f"{made.leverage:,}")
    costs = [estimate_cost(made.n, width, M) for M in (made.uniform, made.leverage)]
    table.add_row("features stored", *[as_size(cost.features) if cost.stored else "no, recomputed" for cost in costs])
    table.add_row("memory of a fit, at its peak", *[as_size(cost.peak_memory) for cost in costs])
    table.add_row("time of a fit, about", *[as_duration(cost.seconds) for cost in costs])
    of = "y of unit spread" if unit == 1.0 else f"y of spread {unit:.3g}"
    table.add_row(f"alpha, for {of}", *[f"{made.alpha / unit:.2e}"] * 2)
    table.add_row("squared error falls like", *[f"n^-{made.rate:.2f}"] * 2)
    return table


def _draw(made: Plan, path: Path) -> None:
    from quernel.plots import feature_map, save_figure  # matplotlib is an extra

    inside = 0 < made.r <= 1 and 0 <= made.gamma <= 1
    save_figure(feature_map((made.r, made.gamma) if inside else None), path)
