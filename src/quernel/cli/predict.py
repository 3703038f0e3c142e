"""`quernel predict`: predict quantiles for every row of a data file, batch by batch."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from quernel._files import check_writable, write_atomically
from quernel.cli.console import console, counting, flag, note, split_list
from quernel.cli.data import DATA
from quernel.cli.fit import parse_levels
from quernel.cli.output_checks import check_outputs
from quernel.cli.passthrough_columns import PassthroughColumns, select_passthrough, table_writer
from quernel.estimators import ExtrapolationWarning
from quernel.persistence import load
from quernel.report.formatting import format_count
from quernel.tables import TableError, TableModel, in_batches
from quernel.tables.model import UnseenCategories
from quernel.tables.reading import Batches, split_extension, suggest_name


def predict(
    model: Annotated[Path, typer.Argument(help="Model file written by `quernel fit` or `quernel tune`.")],
    data: Annotated[Path, typer.Argument(help=DATA)],
    out: Annotated[
        Path, typer.Option(help="File for the predictions; the extension (.csv, .parquet, ...) sets the format.")
    ],
    quantiles: Annotated[
        str | None,
        typer.Option(
            help="Levels to predict, between the lowest and the highest fitted one; the fitted ones by default."
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns of the data to copy to the output, separated by commas.")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a sentence.")] = False,
) -> None:
    """Predict quantiles for every row of a file, in order. Large files are processed in batches."""
    split_extension(out)
    check_outputs({"--out": out}, data, model)
    check_writable(out, overwrite=force, remedy="--force")
    fitted = load_table_model(model)
    levels = fitted.quantiles_.tolist() if quantiles is None else parse_levels(quantiles)
    kept = select_passthrough(list(dict.fromkeys(split_list(keep or ""))), fitted.encoder, data, out)
    names = [_column_name(level) for level in levels] + (["lower", "upper"] if fitted.interval is not None else [])
    unseen = UnseenCategories(fitted.encoder)
    with in_batches(data, [*dict.fromkeys([*fitted.encoder.inputs, *kept.names])], kept.csv_options()) as batches:
        _check_columns(fitted, batches, data, kept, names)
        with write_atomically(out, overwrite=force) as part, table_writer(part, out) as write:
            rows, outside, infinite, beyond = _predict_batches(fitted, batches, levels, kept, unseen, names, write)
    for sentence in unseen.describe():
        note(sentence)
    if rows == 0:
        note(f"{data} has no rows: {out} has none either.")
    if infinite:
        note(f"{format_count(infinite, 'row')} with an infinite input, treated as missing.")
    if outside:
        note(
            f"{outside:,} of {rows:,} rows are outside the range of the training data ({_top_columns(beyond)}): "
            "predictions there are extrapolations and less reliable."
        )
    if as_json:
        result = {
            "out": str(out),
            "rows": rows,
            "rows_outside": outside,
            "rows_infinite": infinite,
            "quantiles": levels,
            "columns": [*kept.names, *names],
        }
        typer.echo(json.dumps(result))
    else:
        interval = f" and its {fitted.interval.coverage_:.0%} interval" if fitted.interval is not None else ""
        console.print(
            f"{format_count(rows, 'row')}, {format_count(len(levels), 'quantile')} of {escape(repr(fitted.target))}"
            f"{interval}: [bold]{escape(str(out))}[/]"
        )


def _column_name(level: float) -> str:
    """Name the output column of a level, such as q0.05, with as many digits as distinguish levels near 1 from 1."""
    short = f"{level:g}"
    return f"q{short}" if abs(float(short) - level) < 1e-12 else f"q{level!r}"


def load_table_model(path: Path) -> TableModel:
    """Load a TableModel from a model file."""
    if not path.is_file():
        raise TableError(f"{path} is not a file. Give a model file written by `quernel fit`.")
    fitted = load(path)
    if not isinstance(fitted, TableModel):
        raise TableError(
            f"{path} holds a {type(fitted).__name__} of arrays, without the columns of a table. Fit models for files "
            "with quernel fit, or use this one from Python."
        )
    return fitted


def _check_columns(
    fitted: TableModel, batches: Batches, data: Path, kept: PassthroughColumns, names: list[str]
) -> None:
    fitted.encoder.check(batches.schema, of=str(data))
    for name in kept.names:
        if name not in batches.schema.names:
            raise TableError(f"{data} has no column {name!r} to keep. {suggest_name(name, batches.schema.names)}")
        if name in names:
            raise TableError(
                f"The column {name!r} cannot be kept: the predictions have a column of that name. Rename it."
            )
    kept.check(batches.schema.empty_table())


def _predict_batches(
    fitted: TableModel,
    batches: Batches,
    levels: list[float],
    kept: PassthroughColumns,
    unseen: UnseenCategories,
    names: list[str],
    write: Callable[[Any], None],
) -> tuple[int, int, int, Counter[str]]:
    """Predict and write every batch.

    Returns the number of rows, of rows outside the training range, of rows with infinite inputs, and for each encoded
    column the number of rows outside its range.
    """
    import pyarrow as pa

    rows, outside, infinite, beyond = 0, 0, 0, Counter[str]()
    with counting("Predicting", batches.n_rows) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)  # counted instead
        for batch in batches.pieces:
            if len(batch) == 0:
                continue
            inputs = kept.inputs(batch)
            unseen.check(inputs)
            X = fitted.encoder.encode(inputs)
            answers = [*fitted.predict_encoded(X, levels).T]
            if fitted.interval is not None:
                answers += [*fitted.predict_interval_encoded(X).T]
            infinite += int(fitted.encoder.has_infinite(inputs).sum())
            found = fitted.extrapolates(X)
            outside += int(found.any(axis=1).sum())
            beyond.update(dict(zip(fitted.encoder.names, found.sum(axis=0).tolist(), strict=True)))
            copies = kept.columns(batch)
            with kept.complaints(copies):
                write(pa.table([*copies.values(), *map(pa.array, answers)], names=[*copies, *names]))
            rows += len(X)
            advance(len(X))
    if rows == 0:  # still write a file, with the right columns
        copies = kept.columns(batches.schema.empty_table())
        answers = [pa.array([], pa.float64()) for _ in names]
        write(pa.table([*copies.values(), *answers], names=[*copies, *names]))
    return rows, outside, infinite, beyond


def _top_columns(beyond: Counter[str]) -> str:
    """Name the three columns with the most rows outside the training range, with counts."""
    found = [f"{name}: {count:,}" for name, count in beyond.most_common(3) if count]
    return ", ".join(found) + (", ..." if sum(count > 0 for count in beyond.values()) > len(found) else "")
