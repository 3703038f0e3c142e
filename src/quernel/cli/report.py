"""`quernel report`: a page about a model and how well it does on a data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from quernel.cli.console import flag, working
from quernel.cli.data import FEWEST_ROWS
from quernel.cli.pages import check_page, judged_summary, tell, write_page
from quernel.cli.predict import table_model
from quernel.report import judge_on, report_page
from quernel.report.judging import check_target
from quernel.tables import TableError, TableModel, in_batches
from quernel.tables.columns import kind_of, numbers
from quernel.tables.reading import nearest


def report(
    model: Annotated[Path, typer.Argument(help="Model file that `quernel fit` wrote.")],
    data: Annotated[Path, typer.Argument(help="File with the target too, best of rows that the model has not seen.")],
    out: Annotated[Path, typer.Option(help="File for the page, such as report.html.")],
    force: Annotated[bool, flag("--force", "Replace an earlier file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a sentence.")] = False,
) -> None:
    """Judge a model on a file and write one self-contained HTML page about it."""
    check_page(out, force=force)
    fitted = table_model(model)
    table = _read(fitted, data)
    target = numbers(table[fitted.target])
    there = np.isfinite(target)
    if there.sum() < FEWEST_ROWS:
        raise TableError(f"{data} has {there.sum()} rows with a target; at least {FEWEST_ROWS} are needed.")
    y = check_target(fitted, target[there])
    with working(f"Judging the model on {there.sum():,} rows"):
        judged = judge_on(fitted, fitted.encoder.encode(table.filter(there)), y)
        text = report_page(fitted, table, judged, data=data.name, model_file=model.name)
    write_page(text, out, force=force)
    if as_json:
        typer.echo(json.dumps({"report": str(out)} | judged_summary(judged)))
    else:
        tell(judged, out)


def _read(fitted: TableModel, data: Path) -> Any:
    """The columns of the model and its target."""
    import pyarrow as pa

    with in_batches(data, [*fitted.encoder.inputs, fitted.target], fitted.encoder.csv_types()) as batches:
        fitted.encoder.check(batches.schema, of=str(data))
        if fitted.target not in batches.schema.names:
            raise TableError(
                f"{data} has no column {fitted.target!r}, the target, without which nothing can be judged. "
                f"{nearest(fitted.target, batches.schema.names)}"
            )
        kind = batches.schema.field(fitted.target).type
        if kind_of(kind) not in ("number", "boolean", "nothing"):
            raise TableError(f"The target {fitted.target!r} of {data} holds {kind}, not numbers.")
        pieces = [
            pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece for piece in batches.pieces
        ]
    if not pieces:
        raise TableError(f"{data} has no rows.")
    return pa.concat_tables(pieces)
