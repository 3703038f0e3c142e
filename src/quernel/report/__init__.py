"""Self-contained HTML report on a fitted model: its data, its hyperparameters, and its evaluation on held-out rows.

Names are imported when they are first used: the report needs pyarrow, and `import quernel` must not.
"""

from __future__ import annotations

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
    model: Any, X: Any, y: ArrayLike, out: str | PathLike[str] | None = None, *, overwrite: bool = False
) -> str:
    """Evaluate a fitted model on rows that it has not seen, and return the report on it as one HTML page.

    The page has the loss beside that of baselines (five-fold cross-validation on the same rows), coverage and width of
    intervals, the effect of each column, the worst rows, and how the model was fitted. Needs pyarrow.

    Parameters
    ----------
    model : fitted TabularQuantileRegressor or KernelQuantileRegressor, or a model of a table from `quernel.load`
    X : data frame of pandas or polars, Arrow table or array of shape (n, d), with the columns of the fit
        At least 20 rows, which were not used to fit the model.
    y : array-like of shape (n,), the targets
    out : path of the page to write, or None
    overwrite : whether `out` may replace a file

    Returns
    -------
    str, the page
    """
    if out is not None and Path(out).exists() and not overwrite:
        raise FileExistsError(f"{out} exists. Choose another name, or pass overwrite=True.")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError("A report needs pyarrow, which is not installed. Run: pip install pyarrow") from error
    from quernel.report import evaluation, sections

    table_model = evaluation.as_table_model(model, X, str(getattr(y, "name", None) or "y"))
    table = evaluation.as_arrow(X, table_model.encoder.inputs, table_model.target, y)
    target = evaluation.check_target(table_model, np.asarray(y, dtype=float))
    found = evaluation.evaluate_on(table_model, table_model.encoder.transform(table), target)
    page = sections.report_page(table_model, table, found, data=type(X).__name__, model_file="m.quernel")
    if out is not None:
        write_text_atomically(Path(out), page, overwrite=overwrite)
    return page
