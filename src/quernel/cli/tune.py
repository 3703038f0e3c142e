"""`quernel tune`: ridge weight and bandwidth for a data file, chosen on held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table as RichTable
from sklearn.model_selection import TimeSeriesSplit

from quernel.cli.console import cli_error_names, console, errors, flag, listed, note
from quernel.cli.data import (
    CATEGORICAL,
    COLUMNS,
    DASK,
    DATA,
    EXCLUDE,
    MAX_MEMORY,
    MISSING,
    bytes_from,
    how_read,
    load_training_data,
)
from quernel.cli.fit import (
    LEVELS,
    NO_INTERCEPT,
    SAMPLING,
    SAMPLING_HELP,
    SOLVER_HELP,
    TOL,
    TOL_HELP,
    bandwidth_from,
    check_together,
    fit_with_progress,
    levels_from,
    one_of,
    tell_model,
)
from quernel.cli.output_checks import check_outputs
from quernel.estimators.quantile_cv import FACTORS, KernelQuantileRegressorCV
from quernel.estimators.splits import LastRows
from quernel.kernels import KERNELS
from quernel.persistence import save
from quernel.report.number_format import counted
from quernel.solvers import SOLVERS
from quernel.tables import StreamedTraining, TableModel, Training
from quernel.tables.files import check_free

FOLDS = 5


def tune(
    data: Annotated[Path, typer.Argument(help=DATA)],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    model: Annotated[Path | None, typer.Option(help="File to write the tuned model to, such as m.quernel.")] = None,
    quantiles: Annotated[str, typer.Option(help="Levels between 0 and 1, separated by commas.")] = LEVELS,
    alphas: Annotated[
        str | None, typer.Option(help="Ridge weights to try, separated by commas; a long grid by default.")
    ] = None,
    bandwidths: Annotated[
        str, typer.Option(help='"auto" or "learned": these times 0.5, 1 and 2; or numbers, separated by commas.')
    ] = "auto",
    folds: Annotated[int | None, typer.Option(help=f"Folds of cross-validation, {FOLDS} by default.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the rows to hold out once, instead of folds.")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Column whose equal entries are never both fitted and held out.")
    ] = None,
    time_ordered: Annotated[
        bool, flag("--time-ordered", "The file is in order of time: later rows are held out.")
    ] = False,
    one_standard_error: Annotated[
        bool, flag("--one-standard-error", "Take the smoothest model that is not clearly worse.")
    ] = False,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    exclude: Annotated[str | None, typer.Option(help=EXCLUDE)] = None,
    missing: Annotated[str | None, typer.Option(help=MISSING)] = None,
    categorical: Annotated[str | None, typer.Option(help=CATEGORICAL)] = None,
    weights: Annotated[str | None, typer.Option(help="Column with the weight of each row.")] = None,
    log_target: Annotated[
        bool, flag("--log-target", "Fit the logarithm of the target; quantiles are mapped back.")
    ] = False,
    kernel: Annotated[str, typer.Option(help=f"One of {', '.join(KERNELS)}.")] = "auto",
    components: Annotated[
        str, typer.Option(help='Number of random features; "auto" looks for it, "exact" uses the kernel itself.')
    ] = "auto",
    sampling: Annotated[str, typer.Option(help=SAMPLING_HELP)] = "auto",
    solver: Annotated[str, typer.Option(help=f"{SOLVER_HELP} The search is made by newton.")] = "newton",
    tol: Annotated[float, typer.Option(help=TOL_HELP)] = TOL,
    no_intercept: Annotated[bool, flag("--no-intercept", NO_INTERCEPT)] = False,
    seed: Annotated[int, typer.Option(help="Makes the search repeatable.", min=0)] = 0,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    dask: Annotated[str | None, typer.Option(help=DASK)] = None,
    force: Annotated[bool, flag("--force", "Replace an earlier model file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Choose ridge weight and bandwidth on held-out rows of a file, print every trial, and keep the best model."""
    _check_splitting(folds, validation, groups, time_ordered)
    estimator = KernelQuantileRegressorCV(
        levels_from(quantiles),
        alphas=None if alphas is None else _numbers(alphas),
        bandwidths=_bandwidths(bandwidths),
        cv=_splitting(folds or FOLDS, validation, time_ordered),
        one_standard_error=one_standard_error,
        kernel=kernel,
        n_components=int(components) if components.isdigit() else components,
        sampling=one_of("--sampling", sampling, SAMPLING),
        solver=one_of("--solver", solver, tuple(SOLVERS)),
        tol=tol,
        fit_intercept=not no_intercept,
        random_state=seed,
        max_memory=bytes_from(max_memory),
    )
    check_together(estimator, dask)
    with cli_error_names():
        estimator._check_parameters()
    check_outputs({"--model": model}, data)
    if model is not None:
        check_free(model, overwrite=force, remedy="--force")
    with load_training_data(
        data, target, columns, exclude, missing=missing, categorical=categorical,
        weights=weights, groups=groups, log_target=log_target, max_memory=estimator.max_memory, dask=dask,
    ) as (_, training):  # fmt: skip
        _check_groups(groups, training, folds, validation)
        text = f"Searching {counted(len(estimator.quantiles), 'quantile level')} of {training.n_rows:,} rows"
        seconds = fit_with_progress(estimator, training, text, groups=training.groups)
    if model is not None:
        save(TableModel(training.encoder, estimator, target, log_target), model, overwrite=force)
    summary = _summarized(estimator, training, data, target, model, seconds)
    edges = _at_the_edge(summary, learned="learned" in listed(bandwidths))
    summary["notes"] += edges
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        console.print(_path(estimator, bandwidths, log_target))
    for sentence in edges:
        note(sentence)
    if not as_json:
        _tell(summary)


def _check_splitting(folds: int | None, validation: float | None, groups: str | None, time_ordered: bool) -> None:
    if folds is not None and validation is not None:
        raise ValueError("--folds and --validation are two ways to hold rows out. Give one of them.")
    if groups is not None and time_ordered:
        raise ValueError("--groups and --time-ordered are two ways to divide the rows. Give one of them.")
    if folds is not None and folds < 2:
        raise ValueError(f"--folds must be 2 or more; got {folds}.")
    if validation is not None and not 0 < validation < 1:
        raise ValueError(f"--validation must be a share between 0 and 1; got {validation:g}.")


def _check_groups(
    groups: str | None, training: Training | StreamedTraining, folds: int | None, validation: float | None
) -> None:
    """There must be as many groups as parts into which they are divided."""
    if groups is None or training.groups is None:
        return
    needed, found = (folds or FOLDS) if validation is None else 2, len(np.unique(training.groups))
    if found < needed:
        raise ValueError(
            f"The column {groups!r} makes {counted(found, 'group')}, and "
            f"{'--folds ' + str(needed) if validation is None else '--validation'} needs at least {needed}. Ask for "
            "fewer folds, or choose another column."
        )


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in listed(text)]
    except ValueError as error:
        raise ValueError(
            f"--alphas must be numbers separated by commas, such as 1e-5,1e-4,1e-3; got {text!r}."
        ) from error


def _bandwidths(text: str) -> Any:
    """A single word is the middle of a small grid; anything else is tried as it is. None for kernels without any."""
    entries = [bandwidth_from(word) for word in listed(text)]
    if text.strip() == "auto":
        return None
    return entries[0] if len(entries) == 1 and isinstance(entries[0], str) else entries


def _splitting(folds: int, validation: float | None, time_ordered: bool) -> Any:
    """Folds, or a share to hold out. In order of time: the next piece, fold by fold, or the last share of the rows."""
    if time_ordered:
        return TimeSeriesSplit(folds) if validation is None else LastRows(validation)
    return folds if validation is None else validation


def _summarized(
    estimator: KernelQuantileRegressorCV,
    training: Training | StreamedTraining,
    data: Path,
    target: str,
    model: Path | None,
    seconds: float,
) -> dict[str, Any]:
    """What was found, for machines and people."""
    results, n_splits = estimator.cv_results_, estimator.n_splits_
    error = results["std_test_score"] / np.sqrt(max(n_splits - 1, 1))
    tried = np.flatnonzero(np.isfinite(results["mean_test_score"]))
    path = [
        {
            "alpha": float(results["param_alpha"][k]),
            "bandwidth": _plain(results["param_bandwidth"][k]),
            "loss": -float(results["mean_test_score"][k]),
            "standard_error": float(error[k]) if n_splits > 1 else None,
        }
        for k in tried
    ]
    return {
        "data": str(data),
        "target": target,
        "rows": training.n_rows,
        "read": how_read(training),
        "rows_without_target": training.dropped,
        "quantiles": estimator.quantiles_.tolist(),
        "splits": n_splits,
        "alpha": estimator.alpha_,
        "bandwidth": _plain(estimator.bandwidth_),
        "loss": -estimator.best_score_,
        "path": path,
        "n_components": estimator.n_components_,
        "duality_gap": estimator.duality_gap_.tolist(),
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
        "model": None if model is None else str(model),
        "bytes": None if model is None else model.stat().st_size,
    }


def _plain(bandwidth: Any) -> Any:
    """A bandwidth as JSON has it: a number, one per column, or None."""
    return None if bandwidth is None else np.asarray(bandwidth, dtype=float).tolist()


def _path(estimator: KernelQuantileRegressorCV, bandwidths: str, log_target: bool) -> RichTable:
    """Held-out loss of every ridge weight that was tried (rows) with every bandwidth (columns)."""
    results, labels = estimator.cv_results_, _labels(estimator, bandwidths)
    n_alphas = len(results["params"]) // len(labels)
    losses = -results["mean_test_score"].reshape(len(labels), n_alphas).T
    alphas = results["param_alpha"][:n_alphas]
    best = divmod(estimator.best_index_, n_alphas)[::-1]
    unit = " (of the logarithm)" if log_target else ""
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


def _labels(estimator: KernelQuantileRegressorCV, bandwidths: str) -> list[str]:
    """What the columns of the table are called: the bandwidths, as they were asked for."""
    if estimator.bandwidth_ is None:
        return ["loss"]
    words = listed(bandwidths)
    if len(words) == 1 and isinstance(bandwidth_from(words[0]), str):
        return [f"{factor:g} x {words[0]} bandwidth" for factor in FACTORS]
    return [f"bandwidth {word}" for word in words]


def _at_the_edge(summary: dict[str, Any], *, learned: bool) -> list[str]:
    """Where the best of what was tried is its end, something beyond it may be better."""
    told = []
    for name, others in (("alpha", "others"), ("bandwidth", "numbers" if learned else '"learned", or numbers')):
        tried = [np.mean(one[name]) for one in summary["path"] if one[name] is not None]
        if len(set(tried)) < 3:  # of one or two, the best is always an end
            continue
        chosen = np.mean(summary[name])
        for end, word in ((min(tried), "smallest"), (max(tried), "largest")):
            if chosen == end:
                told.append(f"The {word} {name} of those tried is chosen; --{name}s takes {others}.")
    return told


def _tell(summary: dict[str, Any]) -> None:
    splits = f"{summary['splits']} splits" if summary["splits"] > 1 else "one split"
    console.print(
        f"Chosen from {len(summary['path'])} trials by {splits} of {summary['rows']:,} rows, in "
        f"{summary['seconds']:.1f} s: alpha {summary['alpha']:.3g}, held-out loss {summary['loss']:.5g}. Fitted to all "
        f"rows with {summary['n_components']:,} features, certified gap {max(summary['duality_gap']):.0e}.",
        highlight=False,
    )
    if summary["model"] is None:
        errors.print("Nothing was written. Add --model FILE to keep the tuned model.", highlight=False)
        return
    tell_model(summary)
