"""Options that belong to the data or to an estimator, each declared once, with its help and its meaning.

A command takes a dataclass of options as one parameter; `expand_options` replaces it by the dataclass's fields. To add
an option, add a field here and use it in a method below it (`read_options`, `kernel_params`, ...).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, get_type_hints

import typer
from sklearn.base import BaseEstimator
from sklearn.model_selection import TimeSeriesSplit

from quernel.cli.console import (
    LEVELS,
    check_one_of,
    parse_bandwidth,
    parse_bandwidths,
    parse_bytes,
    parse_levels,
    parse_numbers,
    parse_signs,
    split_list,
)
from quernel.conformal import ConformalQuantileRegressor
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.estimators.shapes import find_encoded_column
from quernel.estimators.splits import LastRows
from quernel.features import SAMPLINGS
from quernel.kernels import KERNELS
from quernel.solvers import SOLVERS
from quernel.tables import TableEncoder
from quernel.tables.training_data import ReadOptions

DATA = (
    "CSV (also .gz, .bz2, .zst), Parquet or Arrow file, database of DuckDB or SQLite; a quoted pattern such as "
    "'trips/*.parquet'; or a folder."
)
QUERY = (
    "One SELECT (SQL of DuckDB) whose rows are read: from files that it names in single quotes, from the tables of "
    "DATA if that is a database, or from DATA itself, by the name data. Without ORDER BY, the order of rows may vary."
)
TARGET = "Column to predict."
MAX_MEMORY = (
    "Memory for the data, such as 500MB; larger files are streamed from disk. Half of the free memory by default."
)
SAMPLING = ("auto", *SAMPLINGS, "landmarks")
NONCROSSING = ("rearrange", "joint", "none")
ESTIMATORS = ("auto", "tabular", "kernel")
CALIBRATION_SHARE = 0.25
# Default number of cross-validation folds.
FOLDS = 5


# Options in this section of `fit --help` make the kernel estimator the one that is fitted.
KERNEL_PANEL = "Kernel estimator"


def flag(name: str, text: str) -> Any:
    """Return a boolean option of a command; the empty metavar keeps some versions of typer from showing a value."""
    return typer.Option(name, help=text, metavar="")


def option(default: Any, text: str, panel: str | None = None, **kwargs: Any) -> Any:
    """Return a field of a dataclass of options: its default, its help, and the section of `--help` that it is in."""
    return field(default=default, metadata={"help": text, "rich_help_panel": panel, **kwargs})


data_option = partial(option, panel="Data")
model_option = partial(option, panel="Model")
kernel_option = partial(option, panel=KERNEL_PANEL)
interval_option = partial(option, panel="Prediction interval")
search_option = partial(option, panel="Search")


@dataclass(frozen=True)
class TableOptions:
    """How data files are read, for every command that learns from them."""

    query: str | None = data_option(None, QUERY)
    columns: str | None = data_option(
        None, "Input columns, separated by commas (names with a comma in double quotes); all but the target by default."
    )
    exclude: str | None = data_option(None, "Columns to leave out, separated by commas.")
    missing: str | None = data_option(
        None, "Additional missing-value markers in CSV files, besides NA, NULL and the like, such as ?,unknown."
    )
    categorical: str | None = data_option(
        None, "Columns to treat as categories although they hold numbers, such as zip codes, separated by commas."
    )
    max_memory: str | None = data_option(None, MAX_MEMORY)

    def read_options(self, target: str, **more: Any) -> ReadOptions:
        """Return how the columns are used; `more` are further fields of `ReadOptions`."""
        columns = None if self.columns is None else split_list(self.columns)
        if columns == []:
            raise ValueError(f"--columns names no column; got {self.columns!r}. Name some, or leave it out to use all.")
        exclude, missing, categorical = (
            split_list(text or "") for text in (self.exclude, self.missing, self.categorical)
        )
        if target in categorical:
            raise ValueError(
                f"--categorical names the target {target!r}, which must be numeric. Remove it from --categorical."
            )
        return ReadOptions(target, columns, exclude, missing=missing, categorical=categorical, **more)


@dataclass(frozen=True)
class TrainingOptions(TableOptions):
    """How the training data of a model are read."""

    weights: str | None = data_option(None, "Column of sample weights.")
    log_target: bool = data_option(False, "Fit the logarithm of the target; predictions are transformed back.")
    dask: str | None = data_option(
        None,
        "Address of a Dask scheduler, such as tcp://host:8786, whose workers read Parquet files; 'local' starts one "
        "on this machine.",
    )

    def read_options(self, target: str, **more: Any) -> ReadOptions:
        """Return how the columns are used; `more` are further fields of `ReadOptions`."""
        return super().read_options(target, weights=self.weights, log_target=self.log_target, **more)


@dataclass(frozen=True)
class ModelOptions:
    """Parameters of the estimator that `fit` and `tune` share. None stands for the default of the estimator."""

    quantiles: str = model_option(LEVELS, "Quantile levels strictly between 0 and 1, separated by commas.")
    kernel: str | None = kernel_option(
        None, f'Kernel: "auto" (gaussian; with a learned bandwidth, chosen from the data), {", ".join(KERNELS)}.'
    )
    components: str | None = kernel_option(
        None, 'Number of random features; "auto" chooses it by held-out loss, "exact" uses the exact kernel.'
    )
    sampling: str | None = kernel_option(
        None,
        f"How random features are drawn: {', '.join(SAMPLING)}. `quernel plan` compares uniform and leverage.",
    )
    solver: str | None = kernel_option(
        None,
        '"newton", or "admm", the algorithm of the paper, for comparison (data in memory only; use a --tol such as '
        "1e-4). A search always uses newton.",
    )
    tol: float | None = kernel_option(None, "Tolerance: relative duality gap at which the solver stops; 1e-6.")
    max_seconds: float | None = model_option(
        None,
        "Time limit of the fit in seconds: the best model found until then is kept, with its certified gap. None by "
        "default.",
    )
    no_intercept: bool = kernel_option(False, "Fit without the (unpenalized) intercept, as the paper does.")
    seed: int = model_option(0, "Random seed.", min=0)

    @property
    def levels(self) -> list[float]:
        """The quantile levels."""
        return parse_levels(self.quantiles)

    def common_params(self) -> dict[str, Any]:
        """Return keyword arguments of every estimator."""
        return {"quantiles": self.levels, "max_seconds": self.max_seconds, "random_state": self.seed}

    def kernel_params(self) -> dict[str, Any]:
        """Return keyword arguments of kernel estimators; values that these check themselves are passed as they are."""
        components, sampling, solver = self.components, self.sampling, self.solver
        given = {
            "kernel": self.kernel,
            "n_components": int(components) if components is not None and components.isdigit() else components,
            "sampling": None if sampling is None else check_one_of("--sampling", sampling, SAMPLING),
            "solver": None if solver is None else check_one_of("--solver", solver, tuple(SOLVERS)),
            "tol": self.tol,
            "fit_intercept": not self.no_intercept,
        }
        return self.common_params() | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class EstimatorChoice:
    """Which estimator `fit` uses, "tabular" or "kernel", why, and whether no option asks for it."""

    name: str
    reason: str
    is_default: bool = False


@dataclass(frozen=True)
class FitOptions(ModelOptions):
    """Parameters of one fit."""

    estimator: str = model_option(
        "auto",
        '"tabular", a kernel and forests together, any level at prediction; "kernel", one kernel; or "auto": tabular, '
        "unless an option of the kernel is given or the rows do not fit in memory.",
    )
    groups: str | None = data_option(
        None,
        "Column of group labels, such as patients or shops: rows of a group stay in one fold, so that intervals hold "
        "for new groups.",
    )
    alpha: float | None = kernel_option(None, "Ridge weight (regularization strength); chosen from the data.")
    bandwidth: str | None = kernel_option(
        None, '"auto"; "learned" (one per column, tuned together with alpha); or a number.'
    )
    noncrossing: str | None = kernel_option(
        None, '"rearrange" sorts the predictions; "joint" fits all levels under noncrossing constraints; or "none".'
    )
    inference: bool = kernel_option(
        False, "Estimate the covariance of the curves, so that `quernel predict --band` has confidence bands."
    )
    no_recalibrate: bool = kernel_option(
        False, "Do not shift the levels by what held-out residuals show; rows that are streamed never are shifted."
    )
    monotone: str | None = model_option(
        None, "Columns in which quantiles rise (1) or fall (-1), such as mileage=-1,size=1."
    )
    convex: str | None = model_option(None, "Columns in which quantiles are convex (1) or concave (-1), such as age=1.")
    lower: float | None = model_option(None, "Bound below which no quantile is.")
    upper: float | None = model_option(None, "Bound above which no quantile is.")
    tails: str | None = model_option(
        None, '"pareto" fits a generalised Pareto law beyond the outer levels, for levels such as 0.999; or "none".'
    )

    def choose_estimator(self, other_options: Sequence[str]) -> EstimatorChoice:
        """Return the estimator by the options alone; `other_options` of the command are given, and for the kernel."""
        wanted = check_one_of("--estimator", self.estimator, ESTIMATORS)
        given = [_option_name(one) for one in fields(self) if self._is_given(one) and _is_kernel_option(one)]
        given += other_options
        if given and wanted == "tabular":
            raise ValueError(
                f"{given[0]} is an option of the kernel estimator. Leave it out, or use --estimator kernel."
            )
        if wanted != "auto":
            choice = EstimatorChoice(wanted, "as asked for")
        elif given:
            choice = EstimatorChoice("kernel", f"because {given[0]} was given")
        else:
            choice = EstimatorChoice("tabular", "the default", is_default=True)
        if choice.name == "kernel" and self.groups is not None:
            raise ValueError(
                f"--groups is an option of the tabular estimator, but the estimator is kernel, {choice.reason}. Leave "
                "one of the two out; `quernel tune --groups` chooses the parameters of a kernel by units."
            )
        return choice

    def _is_given(self, one: Field[Any]) -> bool:
        return getattr(self, one.name) is not one.default

    def choose_for_streamed(self, choice: EstimatorChoice) -> EstimatorChoice:
        """Return the estimator of rows that do not fit in memory, given the choice by the options."""
        if self.groups is not None:
            raise ValueError(
                "--groups needs all rows in memory, and they do not fit. Raise --max-memory, or take a sample of the "
                "rows by --query."
            )
        if not choice.is_default or self._given_shapes():
            return choice
        return EstimatorChoice("kernel", "because the rows do not fit in memory (--max-memory)")

    def _given_shapes(self) -> dict[str, Any]:
        """Parameters of the estimators; columns are named until `place_shapes`."""
        bounds = {"lower": self.lower, "upper": self.upper}
        signs = {name: parse_signs(f"--{name}", text) for name, text in self._shape_texts()}
        return signs | {name: bound for name, bound in bounds.items() if bound is not None}

    def _shape_texts(self) -> list[tuple[str, str]]:
        return [(name, text) for name in ("monotone", "convex") if (text := getattr(self, name)) is not None]

    def place_shapes(self, estimator: BaseEstimator, encoder: TableEncoder) -> None:
        """Let an estimator know the constrained columns by their positions among the encoded ones."""
        for name, text in self._shape_texts():
            signs = parse_signs(f"--{name}", text)
            found = {find_encoded_column(f"--{name}", column, encoder)[0]: sign for column, sign in signs.items()}
            estimator.set_params(**{name: found})

    def make_estimator(self, name: str, data: TrainingOptions) -> TabularQuantileRegressor | KernelQuantileRegressor:
        """Return the estimator "tabular" or "kernel", unfitted, after checking its parameters."""
        if data.log_target and (self.lower is not None or self.upper is not None):
            raise ValueError("--lower and --upper are for targets as they are. Leave them out, or --log-target.")
        if name == "tabular":
            tabular = TabularQuantileRegressor(
                **self.common_params(), **self._given_shapes(), tails=self._parse_tails()
            )
            with cli_error_names():
                tabular._check_parameters()
            return tabular
        params = self.kernel_params() | {"max_memory": parse_bytes(data.max_memory)}
        if self.alpha is not None:
            params["alpha"] = self.alpha
        if self.bandwidth is not None:
            params["bandwidth"] = parse_bandwidth(self.bandwidth)
        if self.noncrossing is not None:
            noncrossing = check_one_of("--noncrossing", self.noncrossing, NONCROSSING)
            params["noncrossing"] = None if noncrossing == "none" else noncrossing
        if self.no_recalibrate:
            params["recalibrate"] = False
        if self.inference:
            params["inference"] = True
        params["tails"] = self._parse_tails()
        params |= self._given_shapes()
        kernel = KernelQuantileRegressor(**params)
        _check_estimator(kernel, data.dask)
        return kernel

    def _parse_tails(self) -> str | None:
        """Return `tails` of the estimators."""
        name = "none" if self.tails is None else check_one_of("--tails", self.tails, ("pareto", "none"))
        return None if name == "none" else name


@dataclass(frozen=True)
class SearchOptions(ModelOptions):
    """Parameters of a search for ridge weight and bandwidth."""

    alphas: str | None = search_option(None, "Ridge weights to try, separated by commas; a wide grid by default.")
    bandwidths: str = search_option(
        "auto", '"auto" or "learned" (each times 0.5, 1 and 2), or numbers to try, separated by commas.'
    )
    folds: int | None = search_option(None, f"Number of cross-validation folds, {FOLDS} by default.")
    validation: float | None = search_option(
        None, "Fraction of the rows for a single validation split, instead of folds."
    )
    groups: str | None = search_option(
        None, "Column of group labels; the rows of a group are never split between training and validation."
    )
    time: str | None = search_option(
        None, "Column of dates, not an input: validate on later windows of time, whatever the order of the rows."
    )
    time_ordered: bool = search_option(False, "The rows are in time order: validate on later rows.")
    one_standard_error: bool = search_option(False, "Choose the smoothest model within one standard error of the best.")

    def make_estimator(self, data: TrainingOptions) -> KernelQuantileRegressorCV:
        """Return the estimator, unfitted, after checking its parameters."""
        estimator = KernelQuantileRegressorCV(
            **self.kernel_params(),
            alphas=None if self.alphas is None else parse_numbers("--alphas", self.alphas, "1e-5,1e-4,1e-3"),
            bandwidths=parse_bandwidths(self.bandwidths),
            cv=self._make_cv(),
            one_standard_error=self.one_standard_error,
            max_memory=parse_bytes(data.max_memory),
        )
        _check_estimator(estimator, data.dask)
        return estimator

    def _make_cv(self) -> int | float | TimeSeriesSplit | LastRows:
        """Return `cv` of the search: folds or a held-out fraction; in time order, expanding windows or last rows."""
        if self.folds is not None and self.validation is not None:
            raise ValueError("--folds and --validation exclude each other. Give one of them.")
        ways = {"--groups": self.groups, "--time": self.time, "--time-ordered": self.time_ordered or None}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other. Give one of them.")
        if self.folds is not None and self.folds < 2:
            raise ValueError(f"--folds must be 2 or more; got {self.folds}.")
        if self.validation is None:
            folds = self.folds or FOLDS
            return TimeSeriesSplit(folds) if self.time_ordered else folds
        if not 0 < self.validation < 1:
            raise ValueError(f"--validation must be a fraction between 0 and 1; got {self.validation:g}.")
        return LastRows(self.validation) if self.time_ordered else self.validation


@dataclass(frozen=True)
class IntervalOptions:
    """Parameters of a conformal prediction interval, and which rows are held out."""

    conformal: bool = interval_option(False, "Add a conformal prediction interval, calibrated on held-out rows.")
    coverage: float | None = interval_option(
        None, "Nominal coverage of the interval; by default that of the outermost levels."
    )
    calibration_share: float | None = interval_option(
        None, f"Fraction of the rows held out for calibration, {CALIBRATION_SHARE:g} by default."
    )
    conditional: bool = interval_option(
        False, "Widen the interval by a smooth function of the columns, so that it covers as much around each row."
    )
    time_ordered: bool = option(False, "The rows are in time order: hold out the last ones instead of random ones.")

    def wrap(
        self, estimator: TabularQuantileRegressor | KernelQuantileRegressor, levels: list[float]
    ) -> ConformalQuantileRegressor | None:
        """Return the unfitted estimator wrapped for conformal intervals, None without --conformal."""
        if not self.conformal:
            given_without = {
                "--coverage": self.coverage is not None,
                "--calibration-share": self.calibration_share is not None,
                "--conditional": self.conditional,
            }
            for name, given in given_without.items():
                if given:
                    raise ValueError(f"{name} applies to conformal intervals. Add --conformal, or leave it out.")
            return None
        low, high = min(levels), max(levels)
        widest = round(1 - 2 * max(low, 1 - high), 12)
        if widest <= 0 and (self.coverage is None or isinstance(estimator, KernelQuantileRegressor)):
            raise ValueError(f"--conformal needs levels on either side of 0.5; --quantiles has {low:g} to {high:g}.")
        coverage = widest if self.coverage is None else self.coverage
        if widest < coverage < 1 and isinstance(estimator, KernelQuantileRegressor):
            tail = (1 - coverage) / 2
            raise ValueError(
                f"--coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}, but --quantiles has {low:g} to "
                f"{high:g}, enough for {widest:g}. Fit more extreme levels, or lower --coverage."
            )
        interval = ConformalQuantileRegressor(
            estimator,
            coverage,
            calibration_size=CALIBRATION_SHARE if self.calibration_share is None else self.calibration_share,
            time_ordered=self.time_ordered,
            conditional="kernel" if self.conditional else None,
            random_state=estimator.random_state,
        )
        with cli_error_names():
            interval._check_parameters()
        return interval


def _check_estimator(estimator: KernelQuantileRegressor, dask: str | None) -> None:
    """Raise, before any work, for parameters that are wrong or exclude each other."""
    if estimator.sampling != "auto":
        for option, given in (("--components", estimator.n_components), ("--kernel", estimator.kernel)):
            if given in ("exact", "linear"):
                raise ValueError(
                    f"--sampling {estimator.sampling} says how random features are drawn, but {option} {given} uses "
                    "none. Leave one of them out."
                )
    if estimator.solver != "newton" and estimator.noncrossing == "joint":
        raise ValueError(
            f"--noncrossing joint has a solver of its own, not {estimator.solver}. Leave --solver out, or use "
            "--noncrossing rearrange."
        )
    with cli_error_names():
        for what, instead in () if dask is None else estimator._restrictions("out_of_core"):
            raise ValueError(
                f"{what} needs all rows in memory, but with --dask they stay with the workers. Use {instead}, or leave "
                "--dask out."
            )
        estimator._check_parameters()


# From dataclasses to commands, and from estimators' errors to options


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters of a command that are dataclasses of options by their fields, as options of typer."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name])
            parameters += [_make_parameter(one, types[one.name]) for one in fields(groups[name])]
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _option_name(one: Field[Any]) -> str:
    return "--" + one.name.replace("_", "-")


def _is_kernel_option(one: Field[Any]) -> bool:
    return one.metadata["rich_help_panel"] == KERNEL_PANEL


def _make_parameter(one: Field[Any], kind: Any) -> inspect.Parameter:
    """Return the parameter of a command for a field of a dataclass of options."""
    settings = {**one.metadata, **({"metavar": ""} if kind is bool else {})}
    annotation = Annotated[kind, typer.Option(_option_name(one), **settings)]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)


# Parameters of the estimators, and options with another name than the parameter that they set.
RENAMED = {"components": "n_components", "calibration_share": "calibration_size"}
PARAMETERS = {
    RENAMED.get(one.name, one.name): _option_name(one)
    for one in (*fields(FitOptions), *fields(SearchOptions), *fields(IntervalOptions))
} | {"max_memory": "--max-memory", "checkpoint": "--checkpoint", "units": "--groups"}
# What error messages offer, but the command line has not, and parameters that two options set.
SPECIAL = {
    r"conditional='kernel'": "--conditional",
    r"leave conditional as None": "leave --conditional out",
    r", or method='cv\+'": "",
    r", or an object of quernel\.kernels": "",
    r"\bcv=(0?\.\d+)": r"--validation \1",
    r"\bcv=(\d+)\b": r"--folds \1",
}


@contextmanager
def cli_error_names() -> Iterator[None]:
    """Translate the parameter names in an estimator's errors into the names of command-line options."""
    try:
        yield
    except ValueError as error:
        raise ValueError(translate_parameters(str(error))) from error


def translate_parameters(text: str) -> str:
    """Replace n_components=50 by --components 50, and parameter names that are no English words, or begin the text."""
    for pattern, option in SPECIAL.items():
        text = re.sub(pattern, option, text)
    for parameter, option in PARAMETERS.items():
        text = re.sub(rf"\b{parameter}=True\b", option, text)
        text = re.sub(rf"""\b{parameter}=["'](\w+)["']""", rf"{option} \1", text)
        text = re.sub(rf"""\b{parameter}=(?=["'\w])""", f"{option} ", text)
        text = re.sub(rf"\b{parameter}\b" if "_" in parameter else rf"^{parameter}\b", option, text)
    return text
