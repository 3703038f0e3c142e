"""`quernel plan`: recommend ridge weight and number of random features, with memory and time, before a fit."""

from __future__ import annotations

import json
import shlex
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

from quernel.cli.console import console, fail, flag, note, working
from quernel.cli.data import (
    CATEGORICAL,
    COLUMNS,
    DATA,
    EXCLUDE,
    MAX_MEMORY,
    MISSING,
    load_training_data,
    parse_bytes,
    print_training,
)
from quernel.data import ArrayRows, memory_budget
from quernel.estimators import estimate_cost
from quernel.kernels import KERNELS, ShiftInvariantKernel, resolve
from quernel.plots.style import require_matplotlib
from quernel.tables import StreamedTrainingData, TrainingData
from quernel.tables.arrow_casts import to_float64
from quernel.tables.reservoir_sample import choose_sample_size
from quernel.tables.streaming_training import sample_rows
from quernel.theory import Exponent, Exponents, OutsideTheoryWarning, Plan, estimate_exponents
from quernel.theory import plan as recommend
from quernel.theory.planning import FeatureConstant, calibrate_features
from quernel.theory.rates import feature_exponent, violations
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.cost import as_duration, as_size
from quernel.tuning.data_summary import robust_scale, summarize_rows

# Rows needed to estimate exponents, and rows sampled for estimates and pilot by default.
MIN_ROWS = 200
SUBSAMPLE = 1000
# Exponents assumed where the data are inconclusive: r of a target just inside the RKHS, and worst-case compatibility.
DEFAULT_SOURCE, WORST_COMPATIBILITY = 0.5, 1.0
# Estimates of r are clipped from below to this value, as the theory needs r > 0.
MIN_SOURCE = 0.05
# Encoded columns assumed without a data file; they matter little compared with the random features.
DEFAULT_WIDTH = 10
KERNEL, LEVEL, GAP = "gaussian", 0.5, 0.01
# Smaller gaps cannot be resolved by a pilot; larger ones mean features that approximate the kernel poorly.
MIN_GAP, MAX_GAP = 1e-4, 0.5
UNKNOWN_CONSTANT = "M = C n^c with unknown C; the numbers shown are for C = 1. Give a data file to estimate C."
PLOT_FORMATS = (".png", ".pdf", ".svg")
PLAN_DATA = f"{DATA} Without one, give --rows, --r and --gamma."


@dataclass(frozen=True, eq=False)
class Sample:
    """The encoded rows of a file, as `fit` has them, or a random sample of them, and the total number of rows."""

    X: NDArray[np.floating]
    y: NDArray[np.floating]
    n_rows: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Recommendation:
    """The recommendation for one sampling scheme: M = C n^c, with C if a pilot estimated it, and the cost of a fit."""

    sampling: str
    exponent: float
    constant: FeatureConstant | None
    components: int | str
    cost: Any
    command: str | None

    def gap(self, n: int) -> tuple[float, tuple[float, float]] | None:
        """Return the predicted kernel gap and its bounds: 0 with the exact kernel, None without a pilot."""
        if self.constant is None:
            return None
        if self.components == "exact":
            return 0.0, (0.0, 0.0)
        return self.constant.gap_at(n), self.constant.gap_interval(n)


@dataclass(frozen=True)
class PlanExponents:
    """The exponents to plan with and, for each, its origin (given, estimated or assumed)."""

    r: float
    gamma: float
    compatibility: float
    origins: tuple[str, str, str]


def plan(
    data: Annotated[Path | None, typer.Argument(help=PLAN_DATA)] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Number of rows to plan for; those of the file by default.", min=2)
    ] = None,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    exclude: Annotated[str | None, typer.Option(help=EXCLUDE)] = None,
    missing: Annotated[str | None, typer.Option(help=MISSING)] = None,
    categorical: Annotated[str | None, typer.Option(help=CATEGORICAL)] = None,
    width: Annotated[
        int | None,
        typer.Option(help=f"Number of encoded columns; those of the file, or {DEFAULT_WIDTH} without one.", min=1),
    ] = None,
    r: Annotated[float | None, typer.Option(help="Source exponent: smoothness of the target, in (0, 1].")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Capacity exponent: growth of the effective dimension, in [0, 1].")
    ] = None,
    compatibility: Annotated[
        float | None, typer.Option(help="Compatibility of uniformly drawn features, in [0, 1]; 1 is the worst case.")
    ] = None,
    kernel_gap: Annotated[
        float,
        typer.Option(help="Accepted relative increase of the objective over the exact kernel's, on the pilot sample."),
    ] = GAP,
    level: Annotated[float, typer.Option(help="Quantile level at which r and C are estimated.")] = LEVEL,
    kernel: Annotated[str, typer.Option(help="Kernel whose exponents are estimated.")] = KERNEL,
    subsample: Annotated[
        int, typer.Option(help="Number of rows sampled for the estimates and the pilot.", min=MIN_ROWS)
    ] = SUBSAMPLE,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="File for a map of the features needed by r and gamma (.png, .pdf, .svg).")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing plot.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of tables.")] = False,
) -> None:
    """Recommend a ridge weight and a number of random features, from a data file or from given exponents.

    The constant C in M = C n^c is estimated by pilot fits to a sample of the rows. The file is read as `fit` reads it,
    categories and missing values included; if it does not fit in memory, a random sample of its rows is used.
    """
    _check_options(kernel, level, kernel_gap, plot, force)
    data_notes: tuple[str, ...] = ()
    reading = {"exclude": exclude, "missing": missing, "categorical": categorical}
    constants: dict[str, FeatureConstant] = {}
    fitting: list[str] = []
    if data is not None:
        sample = _read_sample(data, target, columns, reading, parse_bytes(max_memory), subsample, seed)
        pilot = _Pilot(sample, kernel, level, subsample, seed)
        exponents = pilot.exponents(r, gamma, compatibility)
        rows = sample.n_rows if rows is None else rows
        width = sample.X.shape[1] if width is None else width
        unit, data_notes = robust_scale(sample.y, np.full(len(sample.y), 1 / len(sample.y))), sample.notes
        made, notes = _make_plan(rows, exponents)
        constants = pilot.constants(made, unit, kernel_gap)
        assert target is not None
        chosen = {"target": target, "columns": columns} | reading | {"max-memory": max_memory}
        fitting = _fit_command(data, chosen, kernel, level, made.alpha / unit)
    elif rows is None or r is None or gamma is None:
        fail("Give a data file with --target, or --rows, --r and --gamma.")
    else:
        width = _n_columns(columns, reading, width)
        exponents, unit = _given_exponents(r, gamma, compatibility), 1.0
        made, notes = _make_plan(rows, exponents)
    options = [_recommend(made, name, constants.get(name), width, fitting) for name in ("uniform", "leverage")]
    if plot is not None:
        _save_map(made, plot)
    if as_json:
        typer.echo(json.dumps(_summarize(made, exponents, unit, width, options, [*data_notes, *notes], plot)))
        return
    console.print(_exponent_table(exponents))
    console.print(_plan_table(made, unit, options))
    for sentence in notes:
        note(sentence)
    _print_advice(options, made)
    if plot is not None:
        console.print(f"Plot: [bold]{escape(str(plot))}[/]")


def _check_options(kernel: str, level: float, gap: float, plot: Path | None, force: bool) -> None:
    """Fail, before any work, on options out of range."""
    able = [name for name, known in KERNELS.items() if issubclass(known, ShiftInvariantKernel)]
    if kernel not in able:
        fail(f"--kernel must be one of {', '.join(able)}; got {kernel!r}.")
    if not 0 < level < 1:
        fail(f"--level must lie strictly between 0 and 1; got {level:g}.")
    if not MIN_GAP <= gap <= MAX_GAP:
        fail(
            f"--kernel-gap is a fraction of the objective between {MIN_GAP:g} and {MAX_GAP:g}, such as {GAP:g}; "
            f"got {gap:g}."
        )
    if plot is None:
        return
    require_matplotlib()
    if plot.suffix.lower() not in PLOT_FORMATS:
        fail(f"--plot must end in one of {', '.join(PLOT_FORMATS)}; got {plot.name!r}.")
    if plot.exists() and not force:
        fail(f"{plot} exists already. Choose another --plot, or add --force to replace it.")
    if not plot.parent.is_dir():
        fail(f"The folder {plot.parent} of the plot is missing. Create it first.")


def _given_exponents(r: float, gamma: float, compatibility: float | None) -> PlanExponents:
    """Return the user's exponents, with worst-case compatibility by default."""
    if compatibility is None:
        return PlanExponents(r, gamma, WORST_COMPATIBILITY, ("given", "given", "worst case"))
    return PlanExponents(r, gamma, compatibility, ("given", "given", "given"))


def _n_columns(columns: str | None, reading: dict[str, str | None], width: int | None) -> int:
    """Return the number of encoded columns without a file; --columns N is accepted for --width N."""
    if columns is not None and not (columns.isdecimal() and int(columns) > 0):
        fail("--columns chooses columns of a data file. Give one, or the number of columns with --width.")
    for name, given in reading.items():
        if given is not None:
            fail(f"--{name} applies to a data file. Give one, or leave it out.")
    if columns is not None and width is None:
        return int(columns)
    return DEFAULT_WIDTH if width is None else width


def _read_sample(
    path: Path,
    target: str | None,
    columns: str | None,
    reading: dict[str, str | None],
    max_memory: int | None,
    subsample: int,
    seed: int,
) -> Sample:
    if target is None:
        fail("Name the column to predict with --target.")
    with load_training_data(path, target, columns, **reading, max_memory=max_memory, dask=None) as (_, training):
        if training.n_rows < MIN_ROWS:
            fail(
                f"{path} has {training.n_rows} rows with a target; at least {MIN_ROWS} are needed to estimate "
                "exponents. Give them with --rows, --r and --gamma instead."
            )
        print_training(training)
        X, y = _sample_rows(training, max_memory, subsample, seed)
        return Sample(X, y, training.n_rows, training.notes)


def _sample_rows(
    training: TrainingData | StreamedTrainingData, max_memory: int | None, subsample: int, seed: int
) -> tuple[Any, Any]:
    """Return X and y of all rows with a target or, for streamed data, of a random sample."""
    if isinstance(training, TrainingData):
        return training.X, training.y
    most = max(subsample, choose_sample_size(len(training.encoder.names), memory_budget(max_memory)))
    with working(f"Sampling {min(most, training.n_rows):,} of {training.n_rows:,} rows"):
        sample = sample_rows(training, most, seed).table
    y = to_float64(sample[training.options.target])
    there = np.isfinite(y)
    return training.encoder.encode(sample.filter(there)), y[there]


class _Pilot:
    """A random subsample of the file, and the kernel with the bandwidth that `fit` would choose for it."""

    def __init__(self, sample: Sample, kernel: str, level: float, subsample: int, seed: int) -> None:
        self.rng, self.level = np.random.default_rng(seed), level
        chosen = self.rng.permutation(len(sample.y))[:subsample]
        self.X, self.y, self.n_rows = sample.X[chosen], sample.y[chosen], sample.n_rows
        bandwidth = auto_bandwidth(summarize_rows(ArrayRows(self.X, self.y)))
        self.kernel = resolve(kernel).with_bandwidth(bandwidth)  # type: ignore[attr-defined]

    def exponents(self, r: float | None, gamma: float | None, compatibility: float | None) -> PlanExponents:
        """Return the exponents that the user gave, with estimates for the others."""
        with working(f"Estimating exponents on {len(self.y):,} of {self.n_rows:,} rows"):
            found: Exponents = estimate_exponents(self.X, self.y, self.kernel, level=self.level, random_state=self.rng)
        source, first = _choose(r, found.source, DEFAULT_SOURCE, MIN_SOURCE)
        capacity, second = _choose(gamma, found.capacity, 1.0, 0.0)
        fit, third = _choose(compatibility, found.compatibility, WORST_COMPATIBILITY, 0.0)
        return PlanExponents(source, capacity, fit, (first, second, third))

    def constants(self, made: Plan, unit: float, gap: float) -> dict[str, FeatureConstant]:
        """Estimate C of M = C n^c for uniform and leverage sampling by pilot fits."""
        with working(f"Running a pilot on {len(self.y):,} of {self.n_rows:,} rows"):
            return calibrate_features(
                made, self.X, self.y, self.kernel, unit=unit, level=self.level, gap=gap, random_state=self.rng
            )


def _choose(given: float | None, found: Exponent, usual: float, least: float) -> tuple[float, str]:
    """Return the exponent, given, estimated or assumed, and its origin."""
    if given is not None:
        return given, "given"
    if not found.decided:
        return usual, f"assumed: {found.reason}"
    low, high = found.interval
    return float(np.clip(found.value, least, 1)), f"estimated, {found.confidence:.0%} interval {low:.2f} to {high:.2f}"


def _make_plan(rows: int, to_float64: PlanExponents) -> tuple[Plan, list[str]]:
    """Return the plan and notes; estimated exponents outside the theorems' assumptions give a note, given ones fail."""
    arguments = rows, to_float64.r, to_float64.gamma, to_float64.compatibility
    if to_float64.origins[:2] == ("given", "given"):
        wrong = violations(*arguments[1:])
        return recommend(*arguments) if not wrong else fail(
            f"Outside the assumptions of the theorems: {'; '.join(wrong)}."
        ), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OutsideTheoryWarning)
        made = recommend(*arguments, strict=False)
    return made, sorted({str(warning.message) for warning in caught})


def _fit_command(data: Path, chosen: dict[str, str | None], kernel: str, level: float, alpha: float) -> list[str]:
    """Return the arguments of the recommended `quernel fit` command, without those for the features."""
    arguments = ["quernel", "fit", str(data)]
    for name, given in chosen.items():
        arguments += [] if given is None else [f"--{name}", given]
    arguments += [] if kernel == KERNEL else ["--kernel", kernel]
    return [*arguments, "--quantiles", f"{level:g}", "--alpha", f"{alpha:.3g}", "--model", "MODEL.quernel"]


def _recommend(
    made: Plan, sampling: str, constant: FeatureConstant | None, width: int, fitting: Sequence[str]
) -> Recommendation:
    """Recommend the number of features for a sampling scheme; the exact kernel where that is no fewer than the rows."""
    compatibility = made.compatibility if sampling == "uniform" else made.gamma
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)  # said already
        exponent = float(feature_exponent(made.r, made.gamma, compatibility, strict=False))
    M: int = getattr(made, sampling) if constant is None else constant.features(made.n)
    exact = constant is not None and made.n <= M
    features = ["--components", "exact"] if exact else ["--components", str(M), "--sampling", sampling]
    return Recommendation(
        sampling,
        exponent,
        constant,
        "exact" if exact else M,
        estimate_cost(made.n, width, min(M, made.n) if exact else M),
        shlex.join([*fitting, *features]) if fitting else None,
    )


def _summarize(
    made: Plan,
    to_float64: PlanExponents,
    unit: float,
    width: int,
    options: Sequence[Recommendation],
    notes: Sequence[str],
    plot: Path | None,
) -> dict[str, Any]:
    """Summarize the plan, as printed by --json."""
    names = ("r", "gamma", "compatibility")
    return {
        "rows": made.n,
        "columns": width,
        "exponents": {
            name: {"value": getattr(to_float64, name), "from": origin}
            for name, origin in zip(names, to_float64.origins, strict=True)
        },
        "sampling": {option.sampling: _to_json(option, made.n) for option in options},
        "recommended": None if options[0].constant is None else _fewest_features(options).sampling,
        "alpha": made.alpha / unit,
        "rate": made.rate,
        "notes": list(notes),
        "plot": None if plot is None else str(plot),
    }


def _to_json(option: Recommendation, n: int) -> dict[str, Any]:
    """Convert a recommendation for JSON; without a pilot, the constant and what follows from it are None."""
    known, gap = option.constant, option.gap(n)
    return {
        "n_components": option.components,
        "n_components_interval": list(known.features_interval(n)) if known else None,
        "exponent": option.exponent,
        "constant": known.value if known else None,
        "constant_interval": list(known.interval) if known else None,
        "pilot_rows": known.rows if known else None,
        "kernel_gap_of_pilot": known.gap if known else None,
        "kernel_gap": gap[0] if gap else None,
        "kernel_gap_interval": list(gap[1]) if gap else None,
        "kernel_gap_scatter": known.scatter_at(n) if known else None,
        "stored": bool(option.cost.stored),
        "peak_memory": option.cost.peak_memory,
        "seconds": option.cost.seconds,
        "command": option.command,
    }


def _fewest_features(options: Sequence[Recommendation]) -> Recommendation:
    """Return the recommendation with fewer features, uniform sampling at a tie."""
    return min(options, key=lambda option: np.inf if isinstance(option.components, str) else option.components)


def _exponent_table(to_float64: PlanExponents) -> RichTable:
    table = RichTable(title="Exponents")
    table.add_column("exponent")
    table.add_column("value", justify="right")
    table.add_column("origin")
    names = ("source r", "capacity gamma", "compatibility")
    for name, value, origin in zip(
        names, (to_float64.r, to_float64.gamma, to_float64.compatibility), to_float64.origins, strict=True
    ):
        table.add_row(name, f"{value:.2f}", origin)
    return table


def _plan_table(made: Plan, unit: float, options: Sequence[Recommendation]) -> RichTable:
    """Tabulate the plan, one column per sampling scheme. Costs are for one quantile level."""
    table = RichTable(title=f"Plan for {made.n:,} rows")
    table.add_column("")
    for option in options:
        table.add_column(f"{option.sampling} sampling", justify="right")
    known, costs = [option.constant for option in options if option.constant], [option.cost for option in options]
    if known:
        table.add_row("M = C n^c", *[f"{one.value:.3g} n^{one.exponent:.2f}" for one in known])
    table.add_row(
        "features M" if known else "features M, if C = 1", *[_counted(option.components) for option in options]
    )
    if known:
        ends = [one.features_interval(made.n) for one in known]
        table.add_row(f"  {known[0].confidence:.0%} interval", *[f"{low:,} to {high:,}" for low, high in ends])
        predicted = [gap for gap in (option.gap(made.n) for option in options) if gap]
        table.add_row("predicted kernel gap", *[f"{100 * gap:.2g}%" for gap, _ in predicted])
        ranges = [" to ".join(f"{100 * end:.2g}" for end in ends) for _, ends in predicted]
        table.add_row("  range", *[f"{ends}%" for ends in ranges])
    table.add_row("features stored", *[as_size(cost.features) if cost.stored else "no, recomputed" for cost in costs])
    table.add_row("peak memory of a fit", *[as_size(cost.peak_memory) for cost in costs])
    table.add_row("approximate time of a fit", *[as_duration(cost.seconds) for cost in costs])
    of = "y of unit scale" if unit == 1.0 else f"y of robust scale {unit:.3g}"
    table.add_row(f"alpha, for {of}", *[f"{made.alpha / unit:.2e}"] * 2)
    table.add_row("squared error decreases as", *[f"n^-{made.rate:.2f}"] * 2)
    return table


def _counted(components: int | str) -> str:
    return components if isinstance(components, str) else f"{components:,}"


def _print_advice(options: Sequence[Recommendation], made: Plan) -> None:
    """Print what the numbers mean, and the recommended `quernel fit` command."""
    best = _fewest_features(options)
    if best.constant is None:
        console.print(UNKNOWN_CONSTANT, highlight=False)
        return
    known = best.constant
    console.print(
        f"C was estimated by a pilot on {known.rows:,} rows, for an objective {known.gap:.2%} above that of the exact "
        "kernel, on average over draws of the random features.",
        highlight=False,
    )
    if best.components != "exact":
        middle, off = known.gap_at(made.n), 2 * known.scatter_at(made.n)
        console.print(
            f"A single draw varies: `quernel report --kernel-gap` of the fit will typically show {middle - off:.1%} to "
            f"{middle + off:.1%}.",
            highlight=False,
        )
    for option in options:
        if option.components == "exact" and option.constant is not None:
            console.print(
                f"With {option.sampling} sampling this takes {option.constant.features(made.n):,} features, no fewer "
                "than rows: the exact kernel (--components exact) costs no more.",
                highlight=False,
            )
    console.print(
        "alpha is the theoretical power of n, without its constant: `quernel tune` searches for a better one.",
        highlight=False,
    )
    console.print(f"To fit this: {escape(best.command or '')}", highlight=False, soft_wrap=True)  # to be pasted


def _save_map(made: Plan, path: Path) -> None:
    from quernel.plots import feature_map, save_figure  # matplotlib is an extra

    inside = 0 < made.r <= 1 and 0 <= made.gamma <= 1
    save_figure(feature_map((made.r, made.gamma) if inside else None), path)
