"""`quernel fit`: fit conditional quantiles to a data file and save the model, its encoder included."""

from __future__ import annotations

import json
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table as RichTable

from quernel._files import check_writable
from quernel.cli.console import cli_error_names, console, errors, fitting, flag, note, split_list
from quernel.cli.data import (
    CATEGORICAL,
    COLUMNS,
    DASK,
    DATA,
    EXCLUDE,
    MAX_MEMORY,
    MISSING,
    READ,
    load_training_data,
    parse_bytes,
    print_training,
    read_mode,
)
from quernel.cli.output_checks import check_checkpoint, check_outputs
from quernel.cli.report_file import (
    check_report_path,
    print_evaluation,
    report_by_refitting,
    summarize_evaluation,
    write_report,
)
from quernel.conformal import ConformalQuantileRegressor
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor
from quernel.estimators.levels import check_levels
from quernel.features import SAMPLINGS
from quernel.kernels import KERNELS
from quernel.persistence import save
from quernel.report.formatting import format_count
from quernel.solvers import SOLVERS
from quernel.tables import StreamedTrainingData, TableModel, TrainingData

LEVELS = "0.05,0.25,0.5,0.75,0.95"
# Ratio of upper to lower tail, (q95 - q50) / (q50 - q05), above which --log-target is suggested; a log-normal target
# with sigma = 0.7 has 3.2.
LONG_TAIL = 3.0
KERNEL_HELP = f'Kernel: "auto" (gaussian; chosen from the data for learned bandwidths), {", ".join(KERNELS)}.'
CALIBRATION_SHARE = 0.25
NONCROSSING = ("rearrange", "joint", "none")
SAMPLING = ("auto", *SAMPLINGS, "landmarks")
SAMPLING_HELP = f"Random feature sampling: {', '.join(SAMPLING)}; `quernel plan` compares uniform and leverage."
SOLVER_HELP = '"newton", or "admm" of the paper for comparison (data in memory only; use a --tol such as 1e-4).'
TOL = 1e-6
TOL_HELP = "Tolerance: relative duality gap at which the solver stops."
NO_INTERCEPT = "Fit without the (unpenalized) intercept, as the paper does."
# Up to this many input columns are printed one by one.
MOST_SHOWN = 30


def fit(
    data: Annotated[Path, typer.Argument(help=DATA)],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    model: Annotated[Path, typer.Option(help="File to write the model to, such as m.quernel.")],
    quantiles: Annotated[str, typer.Option(help="Quantile levels between 0 and 1, separated by commas.")] = LEVELS,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    exclude: Annotated[str | None, typer.Option(help=EXCLUDE)] = None,
    missing: Annotated[str | None, typer.Option(help=MISSING)] = None,
    categorical: Annotated[str | None, typer.Option(help=CATEGORICAL)] = None,
    weights: Annotated[str | None, typer.Option(help="Column of sample weights.")] = None,
    log_target: Annotated[
        bool, flag("--log-target", "Fit the logarithm of the target; predictions are transformed back.")
    ] = False,
    kernel: Annotated[str, typer.Option(help=KERNEL_HELP)] = "auto",
    components: Annotated[
        str,
        typer.Option(
            help='Number of random features; "auto" chooses it by held-out loss, "exact" uses the exact kernel.'
        ),
    ] = "auto",
    alpha: Annotated[
        float | None, typer.Option(help="Ridge weight (regularization strength); chosen from the data by default.")
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help='"auto"; "learned" (one per column, tuned together with alpha); or a number.')
    ] = "auto",
    sampling: Annotated[str, typer.Option(help=SAMPLING_HELP)] = "auto",
    solver: Annotated[str, typer.Option(help=SOLVER_HELP)] = "newton",
    tol: Annotated[float, typer.Option(help=TOL_HELP)] = TOL,
    no_intercept: Annotated[bool, flag("--no-intercept", NO_INTERCEPT)] = False,
    noncrossing: Annotated[
        str,
        typer.Option(
            help='"rearrange" sorts the predictions; "joint" fits all levels under noncrossing constraints; or "none".'
        ),
    ] = "rearrange",
    conformal: Annotated[
        bool, flag("--conformal", "Add a conformal prediction interval, calibrated on held-out rows.")
    ] = False,
    coverage: Annotated[
        float | None, typer.Option(help="Nominal coverage of that interval; by default that of the outermost levels.")
    ] = None,
    calibration_share: Annotated[
        float | None,
        typer.Option(help=f"Fraction of the rows held out for calibration, {CALIBRATION_SHARE:g} by default."),
    ] = None,
    time_ordered: Annotated[
        bool,
        flag("--time-ordered", "The rows are in time order: hold out the last ones instead of random ones."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    report: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML report that evaluates the model on held-out rows, such as r.html."),
    ] = None,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    dask: Annotated[str | None, typer.Option(help=DASK)] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File from which an interrupted fit resumes; removed when the fit is complete.")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Fit conditional quantiles of one column given the others, and save the model.

    Missing values, categories, dates and times are encoded automatically.
    """
    estimator = KernelQuantileRegressor(
        parse_levels(quantiles),
        kernel=kernel,
        n_components=int(components) if components.isdigit() else components,
        alpha="auto" if alpha is None else alpha,
        bandwidth=parse_bandwidth(bandwidth),
        sampling=check_one_of("--sampling", sampling, SAMPLING),
        solver=check_one_of("--solver", solver, tuple(SOLVERS)),
        tol=tol,
        fit_intercept=not no_intercept,
        noncrossing=_parse_noncrossing(noncrossing),
        random_state=seed,
        max_memory=parse_bytes(max_memory),
    )
    check_compatible(estimator, dask)
    with cli_error_names():
        estimator._check_parameters()
    if time_ordered and not conformal and report is None:
        raise ValueError("--time-ordered says which rows are held out. Add --conformal or --report, or leave it out.")
    interval = _conformal_wrapper(estimator, conformal, coverage, calibration_share, time_ordered)
    check_outputs({"--model": model, "--report": report, "--checkpoint": checkpoint}, data)
    check_checkpoint(checkpoint)
    check_writable(model, overwrite=force, remedy="--force")
    if report is not None:
        check_report_path(report, force=force)
    with load_training_data(
        data, target, columns, exclude, missing=missing, categorical=categorical,
        weights=weights, log_target=log_target, max_memory=estimator.max_memory, dask=dask,
    ) as (table, training):  # fmt: skip
        doing = "Fitting and calibrating" if interval else "Fitting"
        text = f"{doing} {format_count(len(estimator.quantiles), 'quantile level')} on {training.n_rows:,} rows"
        more = {} if checkpoint is None else {"checkpoint": checkpoint}
        seconds = fit_with_progress(interval or estimator, training, text, **more)
        fitted = interval.estimators_[0] if interval else estimator
        table_model = TableModel(training.encoder, fitted, target, log_target, interval)
        save(table_model, model, overwrite=force)
        summary = summarize_fit(fitted, training, data, target, model, seconds)
        if interval:
            summary |= {"coverage": interval.coverage_, "calibration_rows": interval.n_calibration_}
        if report is not None:
            names = {"data": data.name, "model_file": model.name}
            with _explain_report_failure(model, data, report):
                evaluation, page = report_by_refitting(
                    table_model, table, training, seed=seed, time_ordered=time_ordered, **names
                )
                write_report(page, report, force=force)
            summary |= {"report": str(report), "evaluation": summarize_evaluation(evaluation)}
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        console.print(columns_table(training))
        print_fit(summary)
        if report is not None:
            print_evaluation(evaluation, report)
        if bandwidth == "auto" and fitted.bandwidth_ is not None and len(training.encoder.names) > 1:
            errors.print("Tip: with several columns, --bandwidth learned is usually more accurate, but slower")
        if not log_target and _is_right_skewed(training):
            errors.print(
                "Tip: the target is positive and right-skewed: try --log-target, which keeps predictions positive"
            )


def _is_right_skewed(training: TrainingData | StreamedTrainingData) -> bool:
    """Whether all targets are positive and the upper tail exceeds LONG_TAIL lower ones; False for streamed data."""
    if not isinstance(training, TrainingData) or training.y.min() <= 0:
        return False
    low, median, high = np.quantile(training.y, [0.05, 0.5, 0.95])
    return bool(high - median > LONG_TAIL * (median - low))


@contextmanager
def _explain_report_failure(model: Path, data: Path, report: Path) -> Iterator[None]:
    """If the report fails after the fit, say that the model is saved and how to build the report later."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        reason = str(error).rstrip(".") or "there is not enough memory for the report"
        again = shlex.join(["quernel", "report", str(model), str(data), "--out", str(report)])
        raise ValueError(
            f"The model was saved to {model}, but its report failed: {reason}. Once that is fixed, run: {again}"
        ) from error


def parse_levels(text: str) -> list[float]:
    """Parse quantile levels such as 0.05,0.5,0.95."""
    try:
        levels = [float(entry) for entry in split_list(text)]
    except ValueError as error:
        raise ValueError(f"--quantiles must be numbers separated by commas, such as {LEVELS}; got {text!r}.") from error
    check_levels(levels)
    return levels


def check_one_of(option: str, text: str, known: Sequence[str]) -> str:
    """Return the lower-cased value of an option if it is a known one; else raise, with the closest match."""
    entry = text.strip().lower()
    if entry not in known:
        close = get_close_matches(entry, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{option} must be one of {', '.join(known)}; got {text!r}.{hint}")
    return entry


def check_compatible(estimator: KernelQuantileRegressor, dask: str | None) -> None:
    """Raise, before any work, for options that exclude each other."""
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
    for what, instead in () if dask is None else estimator._in_memory_only():
        with cli_error_names():
            raise ValueError(
                f"{what} needs all rows in memory, but with --dask they stay with the workers. Use {instead}, or leave "
                "--dask out."
            )


def _parse_noncrossing(text: str) -> str | None:
    """Return one of NONCROSSING, None for "none"."""
    entry = check_one_of("--noncrossing", text, NONCROSSING)
    return None if entry == "none" else entry


def parse_bandwidth(text: str) -> str | float:
    """Parse a bandwidth: a number, or a name, which the estimator checks."""
    try:
        return float(text)
    except ValueError:
        return text


def _conformal_wrapper(
    estimator: KernelQuantileRegressor,
    conformal: bool,
    coverage: float | None,
    share: float | None,
    time_ordered: bool,
) -> ConformalQuantileRegressor | None:
    """Return the unfitted estimator wrapped for conformal intervals, None without --conformal."""
    if not conformal:
        for name, given in (("--coverage", coverage is not None), ("--calibration-share", share is not None)):
            if given:
                raise ValueError(f"{name} applies to conformal intervals. Add --conformal, or leave it out.")
        return None
    low, high = min(estimator.quantiles), max(estimator.quantiles)
    widest = round(1 - 2 * max(low, 1 - high), 12)
    if widest <= 0:
        raise ValueError(f"--conformal needs levels on either side of 0.5; --quantiles has {low:g} to {high:g}.")
    coverage = widest if coverage is None else coverage
    if widest < coverage < 1:
        tail = (1 - coverage) / 2
        raise ValueError(
            f"--coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}, but --quantiles has {low:g} to "
            f"{high:g}, enough for {widest:g}. Fit more extreme levels, or lower --coverage."
        )
    interval = ConformalQuantileRegressor(
        estimator,
        coverage,
        calibration_size=CALIBRATION_SHARE if share is None else share,
        time_ordered=time_ordered,
        random_state=estimator.random_state,
    )
    with cli_error_names():
        interval._check_parameters()
    return interval


def fit_with_progress(estimator: Any, training: TrainingData | StreamedTrainingData, text: str, **more: Any) -> float:
    """Fit with a progress display, print warnings as notes, and return the seconds it took."""
    print_training(training)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter(
            "ignore", ExtrapolationWarning
        )  # calibration rows may extrapolate; their scores account for it
        with cli_error_names(), fitting(text):
            if isinstance(training, StreamedTrainingData):
                estimator.fit(training.rows, **more)
            else:
                estimator.fit(training.X, training.y, sample_weight=training.weight, **more)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(message)
    return time.perf_counter() - start


def summarize_fit(
    estimator: KernelQuantileRegressor,
    training: TrainingData | StreamedTrainingData,
    data: Path,
    target: str,
    model: Path,
    seconds: float,
) -> dict[str, Any]:
    """Summarize a fit, as printed by --json."""
    return {
        "model": str(model),
        "bytes": model.stat().st_size,
        "data": str(data),
        "target": target,
        "rows": training.n_rows,
        "read": read_mode(training),
        "rows_without_target": training.dropped,
        "columns": {column.name: column.kind for column in training.encoder.columns},
        "encoded_columns": len(training.encoder.names),
        "quantiles": estimator.quantiles_.tolist(),
        "n_components": estimator.n_components_,
        "alpha": estimator.alpha_,
        "bandwidth": np.ravel(estimator.bandwidth_).tolist() if estimator.bandwidth_ is not None else None,
        "duality_gap": estimator.duality_gap_.tolist(),
        "crossing_rate": float(estimator.crossing_rate_),
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
    }


def columns_table(training: TrainingData | StreamedTrainingData) -> RichTable:
    """Tabulate each column's type and encoding; of more than MOST_SHOWN, the unchanged ones of a type share a line."""
    table = RichTable(title="Input columns")
    for heading in ("column", "type", "encoded as"):
        table.add_column(heading)
    columns, unchanged = training.encoder.columns, Counter[str]()
    if len(columns) > MOST_SHOWN:
        unchanged.update(column.kind for column in columns if column.names == [column.name])
    for column in columns:
        if column.kind in unchanged and column.names == [column.name]:
            continue
        names = [name.removeprefix(column.name).removeprefix(" = ").strip() or "itself" for name in column.names]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        table.add_row(escape(column.name), column.kind, escape(shown))
    for kind, count in unchanged.items():
        table.add_row(format_count(count, "other column"), kind, "themselves")
    return table


def print_fit(summary: dict[str, Any]) -> None:
    """Print the summary of a fit in sentences."""
    console.print(
        f"{format_count(len(summary['quantiles']), 'quantile level')} of {escape(repr(summary['target']))} fitted to "
        f"{summary['rows'] - summary.get('calibration_rows', 0):,} rows in "
        f"{summary['seconds']:.1f} s: {summary['n_components']:,} features, alpha {summary['alpha']:.2g}, "
        f"certified gap {max(summary['duality_gap']):.0e}."
        + ("" if summary["read"] == "whole" else f" {READ[summary['read']]}"),
        highlight=False,
    )
    if "coverage" in summary:
        console.print(
            f"A {summary['coverage']:.0%} interval calibrated on the other {summary['calibration_rows']:,} rows.",
            highlight=False,
        )
    print_model(summary)


def print_model(summary: dict[str, Any]) -> None:
    """Print where the model is and the command that predicts with it."""
    name = summary["model"]
    console.print(f"Model: [bold]{escape(name)}[/] ({summary['bytes'] / 1000:,.0f} kB)", highlight=False)
    command = f"quernel predict {shlex.quote(name)} NEW_DATA --out PREDICTIONS.csv"
    errors.print(f"Next: {escape(command)}", highlight=False, soft_wrap=True)  # on one line, to be pasted
