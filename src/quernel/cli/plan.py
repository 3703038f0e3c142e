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

from quernel.cli.console import console, note, parse_bytes, working
from quernel.cli.data import Source, check_new_files, load_training_data, print_training
from quernel.cli.options import DATA, TARGET, TableOptions, expand_options, flag, option
from quernel.data import ArrayRows, memory_budget
from quernel.data.parquet import ParquetTable
from quernel.estimators import estimate_cost
from quernel.kernels import KERNELS, ShiftInvariantKernel, resolve
from quernel.plots.style import require_matplotlib
from quernel.tables.training_data import TrainingData, choose_sample_size, read_numbers, sample_rows
from quernel.theory import Exponent, OutsideTheoryWarning, Plan, estimate_exponents
from quernel.theory import plan as recommend
from quernel.theory.planning import FeatureConstant, calibrate_features
from quernel.theory.rates import feature_exponent, violations
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.cost import Cost, as_duration, as_size, estimate_tabular_seconds
from quernel.tuning.data_summary import robust_scale, summarize_rows

Array = NDArray[np.floating]

# Rows needed to estimate exponents, and rows sampled for estimates and pilot by default.
MIN_ROWS = 200
SUBSAMPLE = 1000
# Exponents assumed where the data are inconclusive: r of a target just inside the RKHS, and worst-case compatibility.
DEFAULT_SOURCE, WORST_COMPATIBILITY = 0.5, 1.0
# Estimates of r are clipped from below to this value, as the theory needs r > 0.
MIN_SOURCE = 0.05
# Encoded columns assumed without a data file; they matter little compared with the random features.
DEFAULT_WIDTH = 10
KERNEL, GAP = "gaussian", 0.01
# Smaller gaps cannot be resolved by a pilot; larger ones mean features that approximate the kernel poorly.
MIN_GAP, MAX_GAP = 1e-4, 0.5
UNKNOWN_CONSTANT = "M = C n^c with unknown C; the numbers shown are for C = 1. Give a data file to estimate C."
PLOT_FORMATS = (".png", ".pdf", ".svg")
PLAN_DATA = f"{DATA} Without one, give --rows, --r and --gamma."


@dataclass(frozen=True)
class ExponentOptions:
    """Exponents of the theory that the user knows."""

    r: float | None = option(None, "Source exponent: smoothness of the target, in (0, 1].")
    gamma: float | None = option(None, "Capacity exponent: growth of the effective dimension, in [0, 1].")
    compatibility: float | None = option(
        None, "Compatibility of uniformly drawn features, in [0, 1]; 1 is the worst case."
    )


@dataclass(frozen=True)
class PilotOptions:
    """How exponents and the constant C are estimated from a data file."""

    kernel_gap: float = option(
        GAP, "Accepted relative increase of the objective over the exact kernel's, on the pilot sample."
    )
    level: float = option(0.5, "Quantile level at which r and C are estimated.")
    kernel: str = option(KERNEL, "Kernel whose exponents are estimated.")
    subsample: int = option(SUBSAMPLE, "Number of rows sampled for the estimates and the pilot.", min=MIN_ROWS)
    seed: int = option(0, "Random seed.", min=0)

    def check(self) -> None:
        """Raise, before any work, on options out of range."""
        able = [name for name, known in KERNELS.items() if issubclass(known, ShiftInvariantKernel)]
        if self.kernel not in able:
            raise ValueError(f"--kernel must be one of {', '.join(able)}; got {self.kernel!r}.")
        if not 0 < self.level < 1:
            raise ValueError(f"--level must lie strictly between 0 and 1; got {self.level:g}.")
        if not MIN_GAP <= self.kernel_gap <= MAX_GAP:
            raise ValueError(
                f"--kernel-gap is a fraction of the objective between {MIN_GAP:g} and {MAX_GAP:g}, such as {GAP:g}; "
                f"got {self.kernel_gap:g}."
            )


@dataclass(frozen=True)
class PlanExponents:
    """The exponents to plan with and, for each, its origin (given, estimated or assumed)."""

    r: float
    gamma: float
    compatibility: float
    origins: tuple[str, str, str]


@dataclass(frozen=True)
class Recommendation:
    """The recommendation for one sampling scheme.

    Attributes
    ----------
    sampling : "uniform" or "leverage"
    exponent : c in M = C n^c
    constant : C, with its uncertainty, if a pilot estimated it
    components : number of features M, or "exact" for the exact kernel
    cost : memory and time of a fit of one level
    command : the `quernel fit` that does it, None without a data file
    """

    sampling: str
    exponent: float
    constant: FeatureConstant | None
    components: int | str
    cost: Cost
    command: str | None

    def gap(self, n: int) -> tuple[float, tuple[float, float]] | None:
        """Return the predicted kernel gap and its bounds: 0 with the exact kernel, None without a pilot."""
        if self.constant is None:
            return None
        if self.components == "exact":
            return 0.0, (0.0, 0.0)
        return self.constant.gap_at(n), self.constant.gap_interval(n)


@dataclass(frozen=True, eq=False)
class PlanReport:
    """All that the command prints.

    Attributes
    ----------
    plan : ridge weight and numbers of features by the theory, for y of unit scale
    exponents : those of the plan, and where they come from
    width : number of encoded columns
    unit : robust scale of y, by which the ridge weight is divided
    constants : C of M = C n^c by sampling scheme, None without a data file
    command : the `quernel fit` command without the options of the features, empty without a data file
    data_notes, notes : on the data (printed while they are read), and on the plan
    """

    plan: Plan
    exponents: PlanExponents
    width: int
    unit: float = 1.0
    constants: dict[str, FeatureConstant] | None = None
    command: Sequence[str] = ()
    data_notes: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def recommendations(self) -> list[Recommendation]:
        """Those for uniform and for leverage sampling."""
        return [self._recommend(sampling) for sampling in ("uniform", "leverage")]

    def _recommend(self, sampling: str) -> Recommendation:
        """Recommend a number of features, or the exact kernel where that is no fewer than the rows."""
        plan, constant = self.plan, (self.constants or {}).get(sampling)
        compatibility = plan.compatibility if sampling == "uniform" else plan.gamma
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutsideTheoryWarning)  # noted already
            exponent = float(feature_exponent(plan.r, plan.gamma, compatibility, strict=False))
        M: int = getattr(plan, sampling) if constant is None else constant.features(plan.n)
        exact = constant is not None and plan.n <= M
        features = ["--components", "exact"] if exact else ["--components", str(M), "--sampling", sampling]
        return Recommendation(
            sampling,
            exponent,
            constant,
            "exact" if exact else M,
            estimate_cost(plan.n, self.width, min(M, plan.n) if exact else M, kernel="gaussian"),
            shlex.join([*self.command, *features]) if self.command else None,
        )


@expand_options
def plan(
    *,
    data: Annotated[Path | None, typer.Argument(help=PLAN_DATA)] = None,
    target: Annotated[str | None, typer.Option(help=TARGET)] = None,
    rows: Annotated[
        int | None, typer.Option(help="Number of rows to plan for; those of the file by default.", min=2)
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help=f"Number of encoded columns; those of the file, or {DEFAULT_WIDTH} without one.", min=1),
    ] = None,
    reading: TableOptions,
    given: ExponentOptions,
    pilot: PilotOptions,
    plot: Annotated[
        Path | None, typer.Option(help="File for a map of the features needed by r and gamma (.png, .pdf, .svg).")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing plot.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of tables.")] = False,
) -> None:
    """Recommend a ridge weight and a number of random features, from a data file or from given exponents.

    The constant C in M = C n^c is estimated by pilot fits to a sample of the rows. The file is read as `fit` reads it,
    categories and missing values included; if it does not fit in memory, a random sample of its rows is used.
    """
    pilot.check()
    _check_plot(plot, force)
    if data is None and reading.query is None:
        report = _plan_from_exponents(reading, given, rows, width)
    elif target is None:
        raise ValueError("Name the column to predict with --target.")
    else:
        sample = _read_sample(Source(data, reading.query), target, reading, pilot)
        report = _plan_from_data(sample, given, pilot, rows or sample.n_rows, width or sample.X.shape[1])
    if plot is not None:
        _save_map(report.plan, plot)
    if as_json:
        typer.echo(json.dumps(_summarize(report, plot)))
        return
    console.print(_exponent_table(report.exponents))
    console.print(_plan_table(report.plan, report.unit, report.recommendations))
    for sentence in report.notes:
        note(sentence)
    _print_advice(report.recommendations, report.plan)
    if report.command:
        seconds = as_duration(estimate_tabular_seconds(report.plan.n, report.width))
        console.print(
            "This is the plan of one kernel. The default of `quernel fit`, a kernel and forests, has nothing to plan "
            f"and takes about {seconds} for so many rows, if they fit in memory."
        )
    if plot is not None:
        console.print(f"Plot: [bold]{escape(str(plot))}[/]")


def _check_plot(plot: Path | None, force: bool) -> None:
    """Raise, before any work, if the plot cannot be written."""
    if plot is None:
        return
    require_matplotlib()
    if plot.suffix.lower() not in PLOT_FORMATS:
        raise ValueError(f"--plot must end in one of {', '.join(PLOT_FORMATS)}; got {plot.name!r}.")
    check_new_files([plot], force=force)


# Without a data file


def _plan_from_exponents(
    reading: TableOptions, given: ExponentOptions, rows: int | None, width: int | None
) -> PlanReport:
    """Plan with the user's exponents; compatibility is the worst case by default, and --columns N may say --width N."""
    if rows is None or given.r is None or given.gamma is None:
        raise ValueError("Give a data file with --target, or --rows, --r and --gamma.")
    columns = reading.columns
    if columns is not None and not (columns.isdecimal() and int(columns) > 0):
        raise ValueError("--columns chooses columns of a data file. Give one, or the number of columns with --width.")
    for name in ("exclude", "missing", "categorical"):
        if getattr(reading, name) is not None:
            raise ValueError(f"--{name} applies to a data file. Give one, or leave it out.")
    worst = given.compatibility is None
    compatibility = WORST_COMPATIBILITY if given.compatibility is None else given.compatibility
    origins = "given", "given", "worst case" if worst else "given"
    exponents = PlanExponents(given.r, given.gamma, compatibility, origins)
    made, notes = _make_plan(rows, exponents)
    return PlanReport(made, exponents, width or int(columns or DEFAULT_WIDTH), notes=notes)


# From a data file


@dataclass(frozen=True, eq=False)
class Sample:
    """The encoded rows of a file, as `fit` has them, or a random sample of them, and the total number of rows."""

    X: Array
    y: Array
    n_rows: int
    notes: tuple[str, ...]
    command: list[str]


def _read_sample(source: Source, target: str, reading: TableOptions, pilot: PilotOptions) -> Sample:
    """Read the file; `command` of the sample is the `quernel fit` that reads it in the same way."""
    max_memory = parse_bytes(reading.max_memory)
    command = ["quernel", "fit", *([] if source.data is None else [str(source.data)]), "--target", target]
    for name, text in vars(reading).items():
        command += [] if text is None else [f"--{name.replace('_', '-')}", text]
    with load_training_data(source, reading.read_options(target), max_memory) as (_, training):
        if training.n_rows < MIN_ROWS:
            raise ValueError(
                f"{source} has {training.n_rows} rows with a target; at least {MIN_ROWS} are needed to estimate "
                "exponents. Give them with --rows, --r and --gamma instead."
            )
        print_training(training)
        X, y = _sample_rows(training, max_memory, pilot)
        return Sample(X, y, training.n_rows, training.notes, command)


def _sample_rows(training: TrainingData, max_memory: int | None, pilot: PilotOptions) -> tuple[Array, Array]:
    """Return X and y of all rows with a target or, for streamed data, of a random sample."""
    if isinstance(training.rows, ArrayRows):
        return training.rows.X, training.rows.y
    assert isinstance(training.table, ParquetTable)
    most = max(pilot.subsample, choose_sample_size(len(training.encoder.names), memory_budget(max_memory)))
    with working(f"Sampling {min(most, training.n_rows):,} of {training.n_rows:,} rows"):
        columns = [*training.encoder.inputs, *training.options.outputs]
        sample = sample_rows(training.table, columns, training.options.target, most, pilot.seed).table
    y = read_numbers(sample, training.options.target)
    finite = np.isfinite(y)
    return training.encoder.transform(sample.filter(finite)), y[finite]


def _plan_from_data(sample: Sample, given: ExponentOptions, pilot: PilotOptions, rows: int, width: int) -> PlanReport:
    """Estimate the exponents that are not given, and C by a pilot, on a random subsample."""
    rng = np.random.default_rng(pilot.seed)
    chosen = rng.permutation(len(sample.y))[: pilot.subsample]
    X, y = sample.X[chosen], sample.y[chosen]
    bandwidth = auto_bandwidth(summarize_rows(ArrayRows(X, y)))  # that of `fit`
    kernel = resolve(pilot.kernel).with_bandwidth(bandwidth)
    with working(f"Estimating exponents on {len(y):,} of {sample.n_rows:,} rows"):
        found = estimate_exponents(X, y, kernel, level=pilot.level, random_state=rng)
    r, first = _choose(given.r, found.source, DEFAULT_SOURCE, MIN_SOURCE)
    gamma, second = _choose(given.gamma, found.capacity, 1.0, 0.0)
    compatibility, third = _choose(given.compatibility, found.compatibility, WORST_COMPATIBILITY, 0.0)
    exponents = PlanExponents(r, gamma, compatibility, (first, second, third))
    made, notes = _make_plan(rows, exponents)
    unit = robust_scale(sample.y, np.full(len(sample.y), 1 / len(sample.y)))
    with working(f"Running a pilot on {len(y):,} of {sample.n_rows:,} rows"):
        constants = calibrate_features(
            made, X, y, kernel, unit=unit, level=pilot.level, gap=pilot.kernel_gap, random_state=rng
        )
    command = [*sample.command, *([] if pilot.kernel == KERNEL else ["--kernel", pilot.kernel])]
    command += ["--quantiles", f"{pilot.level:g}", "--alpha", f"{made.alpha / unit:.3g}", "--model", "MODEL.quernel"]
    return PlanReport(made, exponents, width, unit, constants, command, sample.notes, notes)


def _choose(given: float | None, found: Exponent, usual: float, least: float) -> tuple[float, str]:
    """Return the exponent, given, estimated or assumed, and its origin."""
    if given is not None:
        return given, "given"
    if not found.decided:
        return usual, f"assumed: {found.reason}"
    low, high = found.interval
    return float(np.clip(found.value, least, 1)), f"estimated, {found.confidence:.0%} interval {low:.2f} to {high:.2f}"


def _make_plan(rows: int, exponents: PlanExponents) -> tuple[Plan, list[str]]:
    """Return the plan and notes; estimated exponents outside the theorems' assumptions give a note, given ones fail."""
    r, gamma, compatibility = exponents.r, exponents.gamma, exponents.compatibility
    if exponents.origins[:2] == ("given", "given"):
        wrong = violations(r, gamma, compatibility)
        if wrong:
            raise ValueError(f"Outside the assumptions of the theorems: {'; '.join(wrong)}.")
        return recommend(rows, r, gamma, compatibility), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OutsideTheoryWarning)
        made = recommend(rows, r, gamma, compatibility, strict=False)
    return made, sorted({str(warning.message) for warning in caught})


# Output


def _summarize(report: PlanReport, plot: Path | None) -> dict[str, Any]:
    """Summarize the plan, as printed by --json."""
    exponents, recommendations = report.exponents, report.recommendations
    return {
        "rows": report.plan.n,
        "columns": report.width,
        "exponents": {
            name: {"value": getattr(exponents, name), "from": origin}
            for name, origin in zip(("r", "gamma", "compatibility"), exponents.origins, strict=True)
        },
        "sampling": {one.sampling: _to_json(one, report.plan.n) for one in recommendations},
        "recommended": None if report.constants is None else _fewest_features(recommendations).sampling,
        "alpha": report.plan.alpha / report.unit,
        "tabular_seconds": estimate_tabular_seconds(report.plan.n, report.width),
        "rate": report.plan.rate,
        "notes": [*report.data_notes, *report.notes],
        "plot": None if plot is None else str(plot),
    }


def _to_json(one: Recommendation, n: int) -> dict[str, Any]:
    """Convert a recommendation for JSON; without a pilot, the constant and what follows from it are None."""
    known, gap = one.constant, one.gap(n)
    return {
        "n_components": one.components,
        "n_components_interval": list(known.features_interval(n)) if known else None,
        "exponent": one.exponent,
        "constant": known.value if known else None,
        "constant_interval": list(known.interval) if known else None,
        "pilot_rows": known.rows if known else None,
        "kernel_gap_of_pilot": known.gap if known else None,
        "kernel_gap": gap[0] if gap else None,
        "kernel_gap_interval": list(gap[1]) if gap else None,
        "kernel_gap_scatter": known.scatter_at(n) if known else None,
        "stored": bool(one.cost.stored),
        "peak_memory": one.cost.peak_memory,
        "seconds": one.cost.seconds,
        "command": one.command,
    }


def _fewest_features(options: Sequence[Recommendation]) -> Recommendation:
    """Return the recommendation with fewer features, uniform sampling at a tie."""
    return min(options, key=lambda one: np.inf if isinstance(one.components, str) else one.components)


def _exponent_table(exponents: PlanExponents) -> RichTable:
    table = RichTable(title="Exponents")
    table.add_column("exponent")
    table.add_column("value", justify="right")
    table.add_column("origin")
    names = ("source r", "capacity gamma", "compatibility")
    for name, value, origin in zip(
        names, (exponents.r, exponents.gamma, exponents.compatibility), exponents.origins, strict=True
    ):
        table.add_row(name, f"{value:.2f}", origin)
    return table


def _plan_table(made: Plan, unit: float, options: Sequence[Recommendation]) -> RichTable:
    """Tabulate the plan, one column per sampling scheme. Costs are for one quantile level."""
    table = RichTable(title=f"Plan for {made.n:,} rows")
    table.add_column("")
    for one in options:
        table.add_column(f"{one.sampling} sampling", justify="right")
    known, costs = [one.constant for one in options if one.constant], [one.cost for one in options]
    if known:
        table.add_row("M = C n^c", *[f"{one.value:.3g} n^{one.exponent:.2f}" for one in known])
    table.add_row(
        "features M" if known else "features M, if C = 1",
        *[one.components if isinstance(one.components, str) else f"{one.components:,}" for one in options],
    )
    if known:
        ends = [one.features_interval(made.n) for one in known]
        table.add_row(f"  {known[0].confidence:.0%} interval", *[f"{low:,} to {high:,}" for low, high in ends])
        predicted = [gap for gap in (one.gap(made.n) for one in options) if gap]
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


def _print_advice(options: Sequence[Recommendation], made: Plan) -> None:
    """Print what the numbers mean, and the recommended `quernel fit` command."""
    best = _fewest_features(options)
    if best.constant is None:
        console.print(UNKNOWN_CONSTANT)
        return
    known = best.constant
    console.print(
        f"C was estimated by a pilot on {known.rows:,} rows, for an objective {known.gap:.2%} above that of the exact "
        "kernel, on average over draws of the random features."
    )
    if best.components != "exact":
        middle, off = known.gap_at(made.n), 2 * known.scatter_at(made.n)
        console.print(
            f"A single draw varies: `quernel report --kernel-gap` of the fit will typically show {middle - off:.1%} to "
            f"{middle + off:.1%}."
        )
    for one in options:
        if one.components == "exact" and one.constant is not None:
            console.print(
                f"With {one.sampling} sampling this takes {one.constant.features(made.n):,} features, no fewer "
                "than rows: the exact kernel (--components exact) costs no more."
            )
    console.print(
        "alpha is the theoretical power of n, without its constant: `quernel tune` searches for a better one."
    )
    console.print(f"To fit this: {escape(best.command or '')}", soft_wrap=True)  # to be pasted


def _save_map(made: Plan, path: Path) -> None:
    from quernel.plots import feature_map, save_figure  # matplotlib is an extra

    inside = 0 < made.r <= 1 and 0 <= made.gamma <= 1
    save_figure(feature_map((made.r, made.gamma) if inside else None), path)
