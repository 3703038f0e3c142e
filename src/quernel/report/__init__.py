"""Self-contained HTML report on a fitted model: its data, its hyperparameters, and its evaluation on held-out rows.

Names are imported when they are first used: the report needs pyarrow, and `import quernel` must not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from quernel._files import write_text_atomically

if TYPE_CHECKING:
    from quernel.report.evaluation import (
        Evaluation,
        evaluate_by_refitting,
        evaluate_on,
        evaluate_streamed,
        held_out_rows,
    )
    from quernel.report.sections import report_page

__all__ = [
    "Evaluation",
    "evaluate_by_refitting",
    "evaluate_on",
    "evaluate_streamed",
    "held_out_rows",
    "make_report",
    "report_page",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'quernel.report' has no attribute {name!r}")
    return getattr(
        import_module("quernel.report.sections" if name == "report_page" else "quernel.report.evaluation"), name
    )


def make_report(
    model: Any,
    X: Any,
    y: ArrayLike,
    out: str | PathLike[str] | None = None,
    *,
    output: str = "html",
    time_ordered: bool = False,
    overwrite: bool = False,
) -> str:
    """Evaluate a fitted model on rows that it has not seen, and return the report on it as one HTML page.

    The page says how good the model is, what it rests on and where not to trust it: the loss beside that of baselines
    (five-fold cross-validation on the same rows), coverage and width of intervals, by group and over time, the effect
    of each column, the worst rows, and how the model was fitted. Needs pyarrow.

    Parameters
    ----------
    model : fitted TabularQuantileRegressor or KernelQuantileRegressor, ConformalQuantileRegressor around one of these,
        or a model of a table from `quernel.load`
        Or several of the same target, as a list or as a dict from names to models: the page is on the first, beside the
        others at its levels.
    X : data frame of pandas or polars, Arrow table or array of shape (n, d), with the columns of the fit
        At least 20 rows, which were not used to fit the model.
    y : array-like of shape (n,), the targets
    out : path of the file to write, or None
    output : {"html", "json"}, default="html"
        The page, or its numbers as JSON.
    time_ordered : bool, default=False
        Whether the rows are in time order: then coverage over time, and drift, are shown even if no column has dates.
    overwrite : whether `out` may replace a file

    Returns
    -------
    str, the page or the JSON
    """
    if output not in ("html", "json"):
        raise ValueError(f"output must be 'html' or 'json'; got {output!r}.")
    if out is not None and Path(out).exists() and not overwrite:
        raise FileExistsError(f"{out} exists. Choose another name, or pass overwrite=True.")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError("A report needs pyarrow, which is not installed. Run: pip install pyarrow") from error
    from quernel.conformal.table_model import as_table_model
    from quernel.report import content, evaluation, sections

    target = str(getattr(y, "name", None) or "y")
    models = {name: as_table_model(one, X, target) for name, one in _name_models(model).items()}
    evaluation.check_comparable(models)
    (name, first), *others = models.items()
    inputs = dict.fromkeys(column for one in models.values() for column in one.encoder.inputs)
    table = evaluation.as_arrow(X, list(inputs), first.target, y)
    values = evaluation.check_target(first, np.asarray(y, dtype=float))
    found = evaluation.evaluate_on(first, first.encoder.transform(table), values, time_ordered=time_ordered)
    page = content.compute_page(first, table, found, data=type(X).__name__, model_file="m.quernel")
    page = content.compare_with(page, name, dict(others))
    text = sections.render_page(page) if output == "html" else json.dumps(content.summarize_page(page), indent=1)
    if out is not None:
        write_text_atomically(Path(out), text, overwrite=overwrite)
    return text


def _name_models(model: Any) -> dict[str, Any]:
    """Return the models by name: those given, or the names of their classes, numbered where there are several."""
    if isinstance(model, Mapping):
        models = {str(name): one for name, one in model.items()}
    elif isinstance(model, list | tuple):
        kinds = [type(one).__name__ for one in model]
        models = {
            f"{kind} {k + 1}" if len(kinds) > 1 else kind: one
            for k, (kind, one) in enumerate(zip(kinds, model, strict=True))
        }
    else:
        models = {"This model": model}
    if not models:
        raise ValueError("A report needs a model; got none.")
    return models
