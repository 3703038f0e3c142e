"""Statistics of a column that determine its encoding, accumulated batch by batch.

`compute_stats` summarises a batch, `merge_stats` merges batches, and `choose_encoding` decides: in the same way for a
table in memory, which is one batch, and for files larger than memory. Medians are filled in afterwards.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.estimators.validation import LARGEST
from quernel.tables.arrow_casts import (
    ArrowColumn,
    column_kind,
    factorize,
    is_duration,
    parse_dates,
    parse_times,
    to_epoch_seconds,
    to_float64,
    to_seconds_of_day,
)
from quernel.tables.columns import CYCLES, DAY, BooleanColumn, Column, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.missing_values import MISSING_MARKERS, NUMBER
from quernel.tables.reading import TableError

Array = NDArray[np.floating]

# Rows from which a category has an encoded column of its own, and how many categories have one at most.
MIN_CATEGORY_ROWS, MAX_CATEGORIES = 5, 50
# Distinct values that are counted; a text column with more identifies rows rather than describing them.
MAX_DISTINCT = 200_000
NO_FORMATS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NumberStats:
    """Counts and ranges of a numeric, date or time column.

    Attributes
    ----------
    n_rows, n_null, n_finite, n_infinite : counts of entries
    low, high : range of the finite values; of dates in seconds since 1970
    earliest, latest : range of the finite values modulo a day, which tells dates from dates with times
    """

    n_rows: int
    n_null: int
    n_finite: int
    n_infinite: int
    low: float = np.inf
    high: float = -np.inf
    earliest: float = np.inf
    latest: float = -np.inf


@dataclass(frozen=True, eq=False)
class TextStats:
    """Counts of a text column.

    Attributes
    ----------
    n_rows, n_null, n_missing : counts of entries; missing ones are null or empty
    counts : rows per distinct value, None if there are more than MAX_DISTINCT
    formats : what the text looks like
    parsed_as : ways in which all text can be read as dates ("local", "zoned") or times of day ("clock")
    dates : statistics of these dates or times, None if there is no such way
    """

    n_rows: int
    n_null: int
    n_missing: int
    counts: dict[str, int] | None
    formats: TextFormats
    parsed_as: frozenset[str] = NO_FORMATS
    dates: NumberStats | None = None


ColumnStats: TypeAlias = NumberStats | TextStats


def compute_stats(name: str, column: ArrowColumn, kind: str) -> ColumnStats:
    """Return the statistics of a batch of a number, duration, boolean, date, time, text or category column."""
    if kind in ("text", "category"):
        return _text_stats(column, categorical=kind == "category")
    read = {"date": to_epoch_seconds, "time": to_seconds_of_day}.get(kind)
    return _number_stats(to_float64(column) if read is None else read(column, name), column.null_count)


def _number_stats(values: Array, n_null: int) -> NumberStats:
    """Return the statistics of numbers, or of dates in seconds."""
    finite, n_infinite = values[np.isfinite(values)], int(np.isinf(values).sum())
    if len(finite) == 0:
        return NumberStats(len(values), n_null, 0, n_infinite)
    times = finite % DAY
    low, high, earliest, latest = map(float, (finite.min(), finite.max(), times.min(), times.max()))
    return NumberStats(len(values), n_null, len(finite), n_infinite, low, high, earliest, latest)


def _text_stats(column: ArrowColumn, categorical: bool) -> TextStats:
    """Return the statistics of text; with `categorical`, it is categories even if it looks like dates."""
    labels, index = factorize(column)
    each = np.bincount(index[index >= 0], minlength=len(labels)).tolist()
    counts = dict(zip(labels, each, strict=True))
    n_missing = int(np.sum(index < 0)) + counts.pop("", 0)
    parsed, parsed_as = (None, NO_FORMATS) if categorical else _parse_as_dates(column)
    dates = None if parsed is None else _number_stats(to_epoch_seconds(parsed, ""), parsed.null_count)
    formats = classify_text({} if categorical else counts)
    few = counts if len(counts) <= MAX_DISTINCT else None
    return TextStats(len(index), column.null_count, n_missing, few, formats, parsed_as, dates)


def _parse_as_dates(column: ArrowColumn) -> tuple[ArrowColumn | None, frozenset[str]]:
    """Parse text as dates or times, None if it is neither, and say in which ways it can be: all, if it is empty."""
    parsed = parse_dates(column)
    if parsed is None:
        times = parse_times(column)
        return times, NO_FORMATS if times is None else frozenset({"clock"})
    if parsed.null_count == len(parsed):
        return parsed, frozenset({"local", "zoned", "clock"})
    return parsed, frozenset({"zoned" if parsed.type.tz else "local"})


def merge_stats(parts: Sequence[ColumnStats]) -> ColumnStats:
    """Merge the statistics of batches of one column."""
    texts = [part for part in parts if isinstance(part, TextStats)]
    if texts:
        return _merge_text_stats(texts)
    return _merge_number_stats([part for part in parts if isinstance(part, NumberStats)])


def _merge_number_stats(parts: Sequence[NumberStats]) -> NumberStats:
    return NumberStats(
        sum(part.n_rows for part in parts),
        sum(part.n_null for part in parts),
        sum(part.n_finite for part in parts),
        sum(part.n_infinite for part in parts),
        min(part.low for part in parts),
        max(part.high for part in parts),
        min(part.earliest for part in parts),
        max(part.latest for part in parts),
    )


def _merge_text_stats(parts: Sequence[TextStats]) -> TextStats:
    counts: Counter[str] | None = Counter()
    for part in parts:
        if counts is None or part.counts is None:
            counts = None
            break
        counts.update(part.counts)
        counts = counts if len(counts) <= MAX_DISTINCT else None
    parsed_as = frozenset.intersection(*(part.parsed_as for part in parts))
    dates = _merge_number_stats([part.dates for part in parts if part.dates is not None]) if parsed_as else None
    n_rows, n_null, n_missing = (
        sum(getattr(part, name) for part in parts) for name in ("n_rows", "n_null", "n_missing")
    )
    formats = merge_formats([part.formats for part in parts])
    return TextStats(n_rows, n_null, n_missing, None if counts is None else dict(counts), formats, parsed_as, dates)


def choose_encoding(name: str, kind: str, stats: ColumnStats) -> Column | str:
    """Return the encoding of a column, its median still to be filled in, or the reason to leave it out."""
    if stats.n_null == stats.n_rows:
        raise _no_values_error(name)
    if isinstance(stats, TextStats):
        if stats.dates is None:
            return _encode_text(name, stats)
        return _encode_time(name, stats.dates) if stats.parsed_as == {"clock"} else _encode_date(name, stats.dates)
    if kind == "time":
        return _encode_time(name, stats)
    return _encode_date(name, stats) if kind == "date" else _encode_number(name, stats, kind)


def list_remarks(stats: ColumnStats) -> list[str]:
    """Return remarks on a column for the user, each to follow its name."""
    if isinstance(stats, NumberStats):
        return [f"is infinite in {format_rows(stats.n_infinite)}, treated as missing"] if stats.n_infinite else []
    hint = None if stats.dates is not None else suggest_type(stats.formats)
    return [] if hint is None else [f"is read as categories, but {hint}"]


def _encode_number(name: str, stats: NumberStats, kind: str) -> Column | str:
    if stats.n_finite == 0:
        raise _no_values_error(name, "finite number")
    if max(-stats.low, stats.high) > LARGEST:
        raise TableError(
            f"Column {name!r} holds numbers as large as {max(-stats.low, stats.high):.3g}, beyond the supported "
            f"{LARGEST:g}. Rescale it, or leave it out with --exclude {shlex.quote(name)}."
        )
    flagged = stats.n_finite < stats.n_rows
    if stats.low == stats.high and not flagged:
        return f"it is {stats.low:g} everywhere"
    if kind == "boolean":
        return BooleanColumn(name, np.nan, flagged)
    return NumberColumn(name, np.nan, flagged, duration=kind == "duration")


def _encode_text(name: str, stats: TextStats) -> Column | str:
    if stats.counts is None:
        return f"it has more than {MAX_DISTINCT:,} different values, like a name or another identifier of the row"
    ranked = sorted(stats.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    categories = tuple(sorted([text for text, n in ranked if n >= MIN_CATEGORY_ROWS][:MAX_CATEGORIES]))
    # NA and the like are text only where they are frequent enough to be categories; elsewhere they are missing values.
    markers = {text: n for text, n in ranked if text in MISSING_MARKERS and text not in categories}
    counts = {text: n for text, n in ranked if text not in markers}
    missing = stats.n_missing + sum(markers.values())
    if not counts:
        raise _no_values_error(name)
    if len(counts) > MAX_CATEGORIES and len(counts) > (stats.n_rows - missing) / 2:
        return f"it has {len(counts):,} different values, like a name or another identifier of the row"
    if len(counts) == 1 and not missing:
        return f"it is {next(iter(counts))!r} everywhere"
    if not categories:
        return f"none of its {len(counts)} categories appears in {MIN_CATEGORY_ROWS} rows"
    return TextColumn(name, categories, other=len(categories) < len(counts), missing=missing > 0)


def _encode_date(name: str, stats: NumberStats) -> Column | str:
    if stats.n_finite == 0:
        raise _no_values_error(name)
    flagged, span = stats.n_finite < stats.n_rows, stats.high - stats.low
    if span == 0 and not flagged:
        return "it is the same date everywhere"
    shown = {"day": stats.latest > stats.earliest}
    shown |= {cycle: span >= CYCLES[cycle] for cycle in ("week", "year")}
    cycles = tuple(cycle for cycle in CYCLES if shown[cycle])
    return DateColumn(name, np.nan, flagged, stats.low, cycles)


def _encode_time(name: str, stats: NumberStats) -> Column | str:
    if stats.n_finite == 0:
        raise _no_values_error(name)
    flagged = stats.n_finite < stats.n_rows
    if stats.low == stats.high and not flagged:
        return "it is the same time everywhere"
    return TimeColumn(name, np.nan, flagged)


def encodable_kind(name: str, kind: pa.DataType, categorical: bool = False) -> tuple[str | None, str]:
    """Return the column kind of an Arrow type ("category" if requested), or None and the reason for leaving it out."""
    found = column_kind(kind)
    if not name:  # usually row numbers
        return None, "it has no name, like the row numbers that pandas writes. Give it one in the file to use it"
    if found == "nothing":
        raise _no_values_error(name)
    if categorical:
        if found not in ("number", "boolean", "text") or is_duration(kind):
            raise TableError(
                f"Column {name!r} holds {kind}, and --categorical is for text, numbers and booleans. Leave it out."
            )
        return "category", ""
    if is_duration(kind):
        return "duration", ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):  # Arrow's type for text that is not UTF-8
        return found, "it holds bytes that are not UTF-8 text"
    return found, f"it holds {kind}, which is not supported"


def _no_values_error(name: str, what: str = "values at all") -> TableError:
    return TableError(f"Column {name!r} holds no {what}. Leave it out with --exclude {shlex.quote(name)}.")


# What text looks like, and how to have it read as that.


class TextFormat(NamedTuple):
    """A way to write numbers or dates: pattern, name and, if it is not read as such, what to write instead."""

    pattern: str
    name: str
    instead: str | None = None


# The first format that matches counts.
FORMATS = {
    "number": TextFormat(NUMBER.pattern, "numbers"),
    "percent": TextFormat(r"[+-]?\d+([.,]\d+)?\s?%", "percentages", "5 instead of 5%"),
    "thousands": TextFormat(
        r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", "numbers with thousands separators", "1000 for 1,000"
    ),
    "comma": TextFormat(r"[+-]?\d+,\d+", "numbers with a decimal comma", "0.26 for 0,26"),
    "date": TextFormat(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", "dates"),
    "day first": TextFormat(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}([ T].*)?", "dates", "dates like 2020-12-31"),
    "slashes": TextFormat(r"\d{4}([./])\d{1,2}\1\d{1,2}([ T].*)?", "dates", "dates like 2020-12-31"),
}
FIRST_CHARACTERS = frozenset("+-.0123456789")
DATE_FORMATS = ("date", "day first", "slashes")
PATTERNS = {name: re.compile(one.pattern) for name, one in FORMATS.items()}
# Values without a format that are stored as examples, and those that are shown.
MAX_EXAMPLES, MAX_SHOWN = 50, 3


@dataclass(frozen=True, eq=False)
class TextFormats:
    """Rows whose text has each format, an example of each, and counts of some other values."""

    rows: Mapping[str, int]
    examples: Mapping[str, str]
    others: Mapping[str, int]
    n_rows: int


def classify_text(counts: Mapping[str, int]) -> TextFormats:
    """Classify values, given with their counts, by format."""
    rows, examples, others = Counter[str](), dict[str, str](), Counter[str]()
    for text, count in counts.items():
        found = _find_format(text)
        if found is None:
            others[text] = count
        else:
            rows[found] += count
            examples.setdefault(found, text)
    return TextFormats(rows, examples, dict(others.most_common(MAX_EXAMPLES)), sum(counts.values()))


def _find_format(text: str) -> str | None:
    if text[0] not in FIRST_CHARACTERS:  # a shortcut for most text
        return None
    return next((name for name, pattern in PATTERNS.items() if pattern.fullmatch(text)), None)


def merge_formats(parts: Sequence[TextFormats]) -> TextFormats:
    """Merge the counts of batches."""
    rows, examples, others = Counter[str](), dict[str, str](), Counter[str]()
    for part in parts:
        rows.update(part.rows)
        examples = {**part.examples, **examples}
        others.update(part.others)
    return TextFormats(rows, examples, dict(others.most_common(MAX_EXAMPLES)), sum(part.n_rows for part in parts))


def suggest_type(formats: TextFormats) -> str | None:
    """Return what most of the text looks like and how to have it read as that; None for ordinary categories."""
    numbers = {name: n for name, n in formats.rows.items() if name not in DATE_FORMATS}
    dates = {name: n for name, n in formats.rows.items() if name in DATE_FORMATS}
    found = max(numbers, dates, key=lambda rows: sum(rows.values()))
    if 2 * sum(found.values()) <= formats.n_rows:
        return None
    unread = [name for name in found if FORMATS[name].instead is not None]
    # The format to be changed, if there is one: "999" is a number beside "1,000", too.
    most = max(unread or found, key=lambda name: found[name])
    hint = f"most of it looks like {FORMATS[most].name}, such as {formats.examples[most]!r}"
    if unread:
        return f"{hint}. Write {FORMATS[most].instead}"
    others = sorted(formats.others.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_SHOWN]
    if not others:
        return f"{hint}. Save it as {FORMATS[most].name}"
    which = ", ".join(f"{text!r} ({format_rows(count)})" for text, count in others)
    entries = ",".join(_quote_entry(text) for text, _ in others)
    return f"{hint}; not {which}. If that marks a missing value in a CSV file, add --missing {shlex.quote(entries)}"


def _quote_entry(text: str) -> str:
    """Quote an entry of a comma-separated option, if it has a comma, quotes or outer blanks."""
    plain = text == text.strip() and "," not in text and not text.startswith('"')
    return text if plain else '"{}"'.format(text.replace('"', '""'))


def format_rows(count: int) -> str:
    """Format a number of rows."""
    return "1 row" if count == 1 else f"{count:,} rows"
