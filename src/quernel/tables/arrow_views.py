"""Casts of Arrow's string and binary views, as polars writes them, to types that all Arrow functions accept."""

from __future__ import annotations

from typing import Any


def schema_without_views(schema: Any) -> Any:
    """The schema of the same columns without views."""
    import pyarrow as pa

    fields = [field.with_type(_without_view(field.type)) for field in schema]
    return schema if [field.type for field in fields] == schema.types else pa.schema(fields)


def without_views(table: Any) -> Any:
    """An Arrow table, or a piece of one, without views."""
    schema = schema_without_views(table.schema)
    if schema is table.schema or schema == table.schema:
        return table
    columns = [_cast(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return type(table).from_arrays(columns, schema=schema)


def _without_view(kind: Any) -> Any:
    import pyarrow as pa

    name = str(kind)  # earlier versions of Arrow have no functions that ask for views
    if name == "string_view":
        return pa.large_string()
    if name == "binary_view":
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_field.with_type(_without_view(kind.value_type))
        return pa.list_(inner) if pa.types.is_list(kind) else pa.large_list(inner)
    return kind


def _cast(column: Any, kind: Any) -> Any:
    """The column as another type: Arrow does not cast dictionaries of views."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            column.indices, column.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
    return column.cast(kind)
