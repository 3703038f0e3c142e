"""`quernel tune`: choose ridge weight and bandwidth for a data file by held-out loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table as RichTable
from sklearn.model_selection import TimeSeriesSplit

from quernel._files import check_writable
from quernel.cli.console import cli_error_names, console, errors, flag, note, split_list
from quernel.cli.data import (
    CATEGORICAL,
    COLUMNS,
    DASK,
    DATA,
    EXCLUDE,
    MAX_MEMORY,
    MISSING,
    load_training_data,
    parse_bytes,
    read_mode,
)
from quernel.cli.fit import (
    KERNEL_HELP,
    LEVELS,
    NO_INTERCEPT,
    SAMPLING,
    SAMPLING_HELP,
    SOLVER_HELP,
    TOL,
    TOL_HELP,
    check_compatible,
    check_one_of,
    fit_with_progress,
    parse_bandwidth,
    parse_levels,
    print_model,
)
from quernel.cli.output_checks import check_outputs
from quernel.estimators.quantile_cv import FACTORS, KernelQuantileRegressorCV
from quernel.estimators.splits import LastRows
from quernel.persistence import save
from quernel.report.formatting import format_count
from quernel.solvers import SOLVERS
from quernel.tables import StreamedTrainingData, TableModel, TrainingData

# Default number of cross-validation folds.
FOLDS = 5


def tune(
    data: Annotated[Path, typer.Argument(help=DATA)],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    model: Annotated[Path | None, typer.Option(help="File to write the tuned model to, such as m.quernel.")] = None,
    quantiles: Annotated[str, typer.Option(help="Quantile levels between 0 and 1, separated by commas.")] = LEVELS,
    alphas: Annotated[
        str | None, typer.Option(help="Ridge weights to try, separated by commas; a wide grid by default.")
    ] = None,
    bandwidths: Annotated[
        str, typer.Option(help='"auto" or "learned" (each times 0.5, 1 and 2), or numbers to try, separated by commas.')
    ] = "auto",
    folds: Annotated[int | None, typer.Option(help=f"Number of cross-validation folds, {FOLDS} by default.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Fraction of the rows for a single validation split, instead of folds.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="Column of group labels; the rows of a group are never split between training and validation."
        ),
    ] = None,
    time_ordered: Annotated[
        bool, flag("--time-ordered", "The rows are in time order: validate on later rows.")
    ] = False,
    one_standard_error: Annotated[
        bool, flag("--one-standard-error", "Choose the smoothest model within one standard error of the best.")
    ] = False,
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
    sampling: Annotated[str, typer.Option(help=SAMPLING_HELP)] = "auto",
    solver: Annotated[str, typer.Option(help=f"{SOLVER_HELP} The search always uses newton.")] = "newton",
    tol: Annotated[float, typer.Option(help=TOL_HELP)] = TOL,
    no_intercept: Annotated[bool, flag("--no-intercept", NO_INTERCEPT)] = False,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    dask: Annotated[str | None, typer.Option(help=DASK)] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing model file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Choose ridge weight and bandwidth by held-out loss, print every trial, and save the best model."""
    _check_splits(folds, validation, groups, time_ordered)
    estimator = KernelQuantileRegressorCV(
        parse_levels(quantiles),
        alphas=None if alphas is None else _parse_alphas(alphas),
        bandwidths=_parse_bandwidths(bandwidths),
        cv=_make_cv(folds or FOLDS, validation, time_ordered),
        one_standard_error=one_standard_error,
        kernel=kernel,
        n_components=int(components) if components.isdigit() else components,
        sampling=check_one_of("--sampling", sampling, SAMPLING),
        solver=check_one_of("--solver", solver, tuple(SOLVERS)),
        tol=tol,
        fit_intercept=not no_intercept,
        random_state=seed,
        max_memory=parse_bytes(max_memory),
    )
    check_compatible(estimator, dask)
    with cli_error_names():
        estimator._check_parameters()
    check_outputs({"--model": model}, data)
    if model is not None:
        check_writable(model, overwrite=force, remedy="--force")
    with load_training_data(
        data, target, columns, exclude, missing=missing, categorical=categorical,
        weights=weights, groups=groups, log_target=log_target, max_memory=estimator.max_memory, dask=dask,
    ) as (_, training):  # fmt: skip
        _check_groups(groups, training, folds, validation)
        text = f"Searching {format_count(len(estimator.quantiles), 'quantile level')} of {training.n_rows:,} rows"
        seconds = fit_with_progress(estimator, training, text, groups=training.groups)
    if model is not None:
        save(TableModel(training.encoder, estimator, target, log_target), model, overwrite=force)
    summary = _summarize(estimator, training, data, target, model, seconds)
    edges = _note_grid_edges(summary, learned="learned" in split_list(bandwidths))
    summary["notes"] += edges
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        console.print(_loss_table(estimator, bandwidths, log_target))
    for sentence in edges:
        note(sentence)
    if not as_json:
        _print_summary(summary)


def _check_splits(folds: int | None, validation: float | None, groups: str | None, time_ordered: bool) -> None:
    if folds is not None and validation is not None:
        raise ValueError("--folds and --validation exclude each other. Give one of them.")
    if groups is not None and time_ordered:
        raise ValueError("--groups and --time-ordered exclude each other. Give one of them.")
    if folds is not None and folds < 2:
        raise ValueError(f"--folds must be 2 or more; got {folds}.")
    if validation is not None and not 0 < validation < 1:
        raise ValueError(f"--validation must be a fraction between 0 and 1; got {validation:g}.")


def _check_groups(
    groups: str | None, training: TrainingData | StreamedTrainingData, folds: int | None, validation: float | None
) -> None:
    """Raise if there are fewer groups than folds."""
    if groups is None or training.groups is None:
        return
    needed, found = (folds or FOLDS) if validation is None else 2, len(np.unique(training.groups))
    if found < needed:
        raise ValueError(
            f"The column {groups!r} has {format_count(found, 'group')}, but "
            f"{'--folds ' + str(needed) if validation is None else '--validation'} needs at least {needed}. Use "
            "fewer folds, or choose another column."
        )


def _parse_alphas(text: str) -> list[float]:
    try:
        return [float(entry) for entry in split_list(text)]
    except ValueError as error:
        raise ValueError(
            f"--alphas must be numbers separated by commas, such as 1e-5,1e-4,1e-3; got {text!r}."
        ) from error


def _parse_bandwidths(text: str) -> Any:
    """Parse --bandwidths: None for "auto", a name (the middle of a small grid), or a list of bandwidths to try."""
    entries = [parse_bandwidth(entry) for entry in split_list(text)]
    if text.strip() == "auto":
        return None
    return entries[0] if len(entries) == 1 and isinstance(entries[0], str) else entries


def _make_cv(folds: int, validation: float | None, time_ordered: bool) -> Any:
    """Return the `cv` of the search: folds or a held-out fraction; in time order, expanding windows or last rows."""
    if time_ordered:
        return TimeSeriesSplit(folds) if validation is None else LastRows(validation)
    return folds if validation is None else validation


def _summarize(
    estimator: KernelQuantileRegressorCV,
    training: TrainingData | StreamedTrainingData,
    data: Path,
    target: str,
    model: Path | None,
    seconds: float,
) -> dict[str, Any]:
    """Summarize a search, as printed by --json."""
    results, n_splits = estimator.cv_results_, estimator.n_splits_
    error = results["std_test_score"] / np.sqrt(max(n_splits - 1, 1))
    tried = np.flatnonzero(np.isfinite(results["mean_test_score"]))
    path = [
        {
            "alpha": float(results["param_alpha"][k]),
            "bandwidth": _to_json(results["param_bandwidth"][k]),
            "loss": -float(results["mean_test_score"][k]),
            "standard_error": float(error[k]) if n_splits > 1 else None,
        }
        for k in tried
    ]
    return {
        "data": str(data),
        "target": target,
        "rows": training.n_rows,
        "read": read_mode(training),
        "rows_without_target": training.dropped,
        "quantiles": estimator.quantiles_.tolist(),
        "splits": n_splits,
        "alpha": estimator.alpha_,
        "bandwidth": _to_json(estimator.bandwidth_),
        "loss": -estimator.best_score_,
        "path": path,
        "n_components": estimator.n_components_,
        "duality_gap": estimator.duality_gap_.tolist(),
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
        "model": None if model is None else str(model),
        "bytes": None if model is None else model.stat().st_size,
    }


def _to_json(bandwidth: Any) -> Any:
    """Convert a bandwidth for JSON: a number, one per column, or None."""
    return None if bandwidth is None else np.asarray(bandwidth, dtype=float).tolist()


def _loss_table(estimator: KernelQuantileRegressorCV, bandwidths: str, log_target: bool) -> RichTable:
    """Tabulate the held-out loss of every ridge weight tried (rows) and bandwidth (columns)."""
    results, labels = estimator.cv_results_, _bandwidth_labels(estimator, bandwidths)
    n_alphas = len(results["params"]) // len(labels)
    losses = -results["mean_test_score"].reshape(len(labels), n_alphas).T
    alphas = results["param_alpha"][:n_alphas]
    best = divmod(estimator.best_index_, n_alphas)[::-1]
    unit = " (on the log scale)" if log_target else ""
    table = RichTable(title=f"Pinball loss on held-out rows{unit}; * is chosen", title_justify="left")
    table.add_column("alpha", justify="right")
    for label in labels:
        table.add_column(label, justify="right")
    for a in np.argsort(-alphas, kind="stable"):
        if np.isfinite(losses[a]).any():
            cells = [
                f"[bold]* {loss:.5g}[/]" if (a, b) == best else f"{loss:.5g}" if np.isfinite(loss) else ""
                for b, loss in enumerate(losses[a])
            ]
            table.add_row(f"{alphas[a]:.3g}", *cells)
    return table


def _bandwidth_labels(estimator: KernelQuantileRegressorCV, bandwidths: str) -> list[str]:
    """Label the columns of the table by the bandwidths as the user gave them."""
    if estimator.bandwidth_ is None:
        return ["loss"]
    names = split_list(bandwidths)
    if len(names) == 1 and isinstance(parse_bandwidth(names[0]), str):
        return [f"{factor:g} x {names[0]} bandwidth" for factor in FACTORS]
    return [f"bandwidth {entry}" for entry in names]


def _note_grid_edges(summary: dict[str, Any], *, learned: bool) -> list[str]:
    """Return notes where the best alpha or bandwidth is at an end of its grid: a value beyond may be better."""
    notes = []
    for name, others in (("alpha", "numbers"), ("bandwidth", "numbers" if learned else '"learned", or numbers')):
        tried = [np.mean(one[name]) for one in summary["path"] if one[name] is not None]
        if len(set(tried)) < 3:  # the best of one or two is always at an end
            continue
        chosen = np.mean(summary[name])
        for end, which in ((min(tried), "smallest"), (max(tried), "largest")):
            if chosen == end:
                notes.append(
                    f"The {which} {name} of those tried was chosen; extend the grid with --{name}s ({others})."
                )
    return notes


def _print_summary(summary: dict[str, Any]) -> None:
    splits = f"{summary['splits']} splits" if summary["splits"] > 1 else "one split"
    console.print(
        f"Chosen from {len(summary['path'])} trials by {splits} of {summary['rows']:,} rows, in "
        f"{summary['seconds']:.1f} s: alpha {summary['alpha']:.3g}, held-out loss {summary['loss']:.5g}. Refitted to "
        f"all rows with {summary['n_components']:,} features, certified gap {max(summary['duality_gap']):.0e}.",
        highlight=False,
    )
    if summary["model"] is None:
        errors.print("The tuned model was not saved. Add --model FILE to save it.", highlight=False)
        return
    print_model(summary)
