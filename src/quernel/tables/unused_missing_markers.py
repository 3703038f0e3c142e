"""Find missing-value markers given by `--missing` that occur in no file, usually typos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from quernel.tables.missing_values import NUMBER, spellings
from quernel.tables.reading import BLOCK_BYTES, complaints, ending_of, opened_stream, separator_of


def unmet(files: Sequence[Path], words: Sequence[str]) -> list[str]:
    """Return the markers that are no field of any of these CSV files, which are read until all are found."""
    left = list(words)
    for path in files:
        fields = {word: _field(word, separator_of(ending_of(path)[0])) for word in left}
        for lines in _blocks(path) if left else ():
            left = [word for word in left if not fields[word].search(lines)]
            if not left:
                break
    return left


def _field(word: str, separator: str) -> re.Pattern[bytes]:
    """Return a pattern of a field with the marker; numbers match with any trailing zeros."""
    ways = [re.escape(way) for way in spellings(word)]
    if NUMBER.fullmatch(word):
        number = repr(float(word)).removesuffix(".0")
        ways.append(re.escape(number) + ("0*" if "." in number else "(?:[.]0*)?"))
    ends = re.escape(separator)
    return re.compile(f'(?:^|[{ends}"])(?:{"|".join(ways)})(?:[{ends}"\r\n]|\\Z)'.encode(), re.MULTILINE)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file in large blocks."""
    ending, compression = ending_of(path)
    with complaints(path, ending), opened_stream(path, compression) as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            lines, _, rest = (rest + block).rpartition(b"\n")
            yield lines
        yield rest
