"""A table of Parquet files read row group by row group, and a map over its batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

from quernel.data.parquet_files import complaints, footer, opened
from quernel.data.prefetch import read_ahead
from quernel.data.sources import BLOCK, RowsError
from quernel.tables.multi_file import Needed, agreed, as_agreed, every, files_of
from quernel.tables.reading import PARQUET, TableError, check_names, ending_of

# Answers of pieces that are joined at a time, so that they never pile up.
JOINED = 16

Step = Callable[[Any], Any]
Join = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Group:
    """A row group of a Parquet file; `first` is the number of its first row among those of all files, from 0 on.

    `called` is what messages call the file, if that is not its path.
    """

    path: str
    number: int
    n_rows: int
    first: int = 0
    called: str = ""

    def __str__(self) -> str:
        return f"{self.called or self.path}, row group {self.number}"


class Slab(NamedTuple):
    """Consecutive rows of a group as an Arrow table, and the number of the first in the group."""

    group: Group
    start: int
    table: Any


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """Row groups that have rows, the schema on which their files agree, and the bytes of all values."""

    groups: tuple[Group, ...]
    schema: Any
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """The rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def of(self, group: Group) -> ParquetTable:
        """The part of the table that is in one group."""
        return replace(self, groups=(group,))

    def slabs(
        self, columns: Sequence[str], groups: Sequence[Group] | None = None, size: int = BLOCK
    ) -> Generator[Slab, None, None]:
        """The rows of these groups (None: all), `size` at a time; each file is opened once."""
        import pyarrow as pa

        schema = pa.schema([self.schema.field(name) for name in columns])
        for path, some in groupby(self.groups if groups is None else groups, key=lambda group: group.path):
            with opened(path) as file:
                for group in some:
                    with complaints(str(group)):
                        batches = file.iter_batches(size, [group.number], list(columns), use_threads=False)
                    for start in range(0, group.n_rows, size):
                        with complaints(str(group)):
                            batch = next(batches, None)
                        if batch is None or len(batch) != min(size, group.n_rows - start):
                            raise RowsError(f"{group} has other rows than before: the file was changed while in use.")
                        yield Slab(group, start, as_agreed(batch, schema, str(group)))

    def fold(self, step: Step, join: Join, columns: Sequence[str]) -> Any:
        """The step's answers for all slabs, joined; read ahead in a thread."""
        return joined_as_they_come(map(step, read_ahead(self.slabs(columns))), join)


def open_parquet(data: Path, called: dict[str, str] | None = None, needed: Needed = every) -> ParquetTable:
    """The files of a path, a pattern or a folder; only their ends are read. Messages call them what `called` says.

    Files need not agree on columns that are not needed.
    """
    called = called or {}
    files = files_of(data)
    for path in files:
        if not path.is_file():
            raise TableError(f"{path} is not a file. Give a Parquet file, a folder or a pattern.")
        if ending_of(path)[0] not in PARQUET:
            raise TableError(f"{path} is no Parquet file, and only those are read group by group.")
    footers = [footer(str(path)) for path in files]
    for path, one in zip(files, footers, strict=True):
        check_names(path, one.schema.names)
    sizes = [
        (str(path), number, n_rows)
        for path, one in zip(files, footers, strict=True)
        for number, n_rows in enumerate(one.sizes)
        if n_rows
    ]
    firsts = accumulate((n_rows for *_, n_rows in sizes), initial=0)
    groups = tuple(Group(*size, first, called.get(size[0], "")) for size, first in zip(sizes, firsts, strict=False))
    named = (Path(called.get(str(path), path)) for path in files)
    schema = agreed(zip(named, (one.schema for one in footers), strict=True), needed)
    return ParquetTable(groups, schema, sum(map(_bytes, map(str, files))))


def _bytes(path: str) -> int:
    """What the values of a file take when they are not compressed."""
    with opened(path) as file, complaints(path):
        return sum(file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups))


def joined_as_they_come(answers: Any, join: Join) -> Any:
    """All answers joined, a few at a time."""
    held: list[Any] = []
    for answer in answers:
        held.append(answer)
        if len(held) == JOINED:
            held = [join(held)]
    return join(held)
