"""Statistics of a column that determine its encoding: `compute_stats` summarises it, `choose_encoding` decides."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quernel._validation import LARGEST
from quernel.tables.columns import (
    CYCLES,
    DATE_ORDERS,
    DAY,
    TEXTS,
    BooleanColumn,
    Column,
    DateColumn,
    NumberColumn,
    TargetColumn,
    TextColumn,
    TimeColumn,
)
from quernel.tables.frames import (
    NUMBER,
    Entries,
    TableError,
    factorize,
    has_zone,
    parse_number,
    parse_time,
    to_epoch_seconds,
    to_numbers,
    to_seconds_of_day,
    type_name,
)
from quernel.tables.missing_values import MISSING_MARKERS, Markers

Array = NDArray[np.floating]


@dataclass(frozen=True)
class EncodingOptions:
    """Constants of the choice of encodings."""

    min_category_rows: int = 5  # rows from which a category has an encoded column of its own
    max_categories: int = 50  # how many categories have one at most, if there is no target
    max_one_hot: int = 30  # with a target: columns with more categories are encoded by means of it
    max_distinct: int = 200_000  # distinct values of text that are counted; text with more identifies rows
    many_gaps: float = 0.3  # share of gaps in text from which they may have been a category
    min_repeats: float = 10  # repeated values that chance would bring into a column of whole numbers without any


OPTIONS = EncodingOptions()


class Alarm(str):
    """A sentence, or the reason to leave a column out, that estimators warn of; others are for those who ask."""


NO_VALUES = "it holds no values at all"
AS_CATEGORIES = "is read as categories, but "  # which is not said of a column that is left out
# Names of columns of whole numbers that identify rows, if no number is repeated.
IDENTIFIER = re.compile(r"(^|.*[_\W])(id|key|uuid|guid|index|idx|row|nr|no|number)|.*[a-z](ID|Id|Key|Nr|No)", re.DOTALL)


@dataclass(frozen=True)
class NumberStats:
    """Counts and ranges of a numeric, date or time column.

    Attributes
    ----------
    n_rows, n_null, n_finite, n_infinite : counts of entries
    low, high : range of the finite values; of dates in seconds since 1970
    median : of the finite values
    distinct : whether the values are whole numbers, all different
    daily : of dates, whether their times of day differ
    """

    n_rows: int
    n_null: int
    n_finite: int
    n_infinite: int
    low: float = np.inf
    high: float = -np.inf
    median: float = np.nan
    distinct: bool = False
    daily: bool = False


@dataclass(frozen=True, eq=False)
class TextStats:
    """Counts of a text column.

    Attributes
    ----------
    n_rows, n_null, n_missing : counts of entries; missing ones are null or empty
    counts : rows per distinct value, None if there are too many
    kind : text, category or mixed, as `column_kind` found
    """

    n_rows: int
    n_null: int
    n_missing: int
    counts: dict[str, int] | None
    kind: str = "text"


ColumnStats: TypeAlias = NumberStats | TextStats


def compute_stats(entries: Entries, kind: str, markers: Markers) -> ColumnStats:
    """Return the statistics of a column of this kind, missing-value markers not counted as values."""
    if kind in TEXTS:
        return _text_stats(entries, kind, markers)
    read = {"date": to_epoch_seconds, "time": to_seconds_of_day}.get(kind, to_numbers)
    values = read(entries)
    if markers.numbers and kind == "number":
        values = np.where(np.isin(values, markers.numbers), np.nan, values)
    return _number_stats(values, dates=kind == "date")


def _number_stats(values: Array, *, dates: bool) -> NumberStats:
    """Return the statistics of numbers, or of dates in seconds."""
    finite = values[np.isfinite(values)]
    n_infinite = int(np.isinf(values).sum()) if len(finite) < len(values) else 0
    n_null = len(values) - len(finite) - n_infinite
    if len(finite) == 0:
        return NumberStats(len(values), n_null, 0, n_infinite)
    low, high = float(finite.min()), float(finite.max())
    distinct, daily = _all_different(finite, low, high), dates and bool(np.ptp(finite % DAY) > 0)
    middle = float(np.median(finite, overwrite_input=True))
    return NumberStats(len(values), n_null, len(finite), n_infinite, low, high, middle, distinct, daily)


def _all_different(values: Array, low: float, high: float) -> bool:
    """Whether these are whole numbers, each one different."""
    few = values[:1000]
    if high - low < len(values) - 1 or np.any(few != np.floor(few)) or np.any(values != np.floor(values)):
        return False
    ascending = np.sort(values)
    return len(values) > 1 and bool(np.all(ascending[1:] > ascending[:-1]))


def _text_stats(entries: Entries, kind: str, markers: Markers) -> TextStats:
    """Count the values of a column; None instead of counts if there are too many."""
    series, most = entries.series, OPTIONS.max_distinct
    if series is not None and len(series) > 2 * most and series.head(2 * most).n_unique() > most + 1:
        n_null = int(series.null_count())
        return TextStats(len(series), n_null, n_null, None, kind)
    labels, index = factorize(entries)
    each = np.bincount(index[index >= 0], minlength=len(labels)).tolist()
    counts = dict(zip(labels, each, strict=True))
    n_null = int(np.sum(index < 0))
    given = markers.texts.difference(MISSING_MARKERS)  # the user's: never categories
    n_missing = n_null + sum(counts.pop(text, 0) for text in ("", *given))
    return TextStats(len(index), n_null, n_missing, counts if len(counts) <= most else None, kind)


def choose_encoding(
    name: str, kind: str, stats: ColumnStats, *, keep: bool = False, has_target: bool = False
) -> Column | str:
    """Return the encoding of a column, or the reason to leave it out.

    `keep` is for identifiers that are wanted. With a target, many categories get a `TargetColumn` whose means are still
    to be filled in (`with_target`).
    """
    if stats.n_null == stats.n_rows:
        return NO_VALUES
    if isinstance(stats, TextStats):
        found = parse_counts(stats)
        if found is None:
            return _encode_text(name, stats, keep, has_target)
        kind, stats = found
    if kind == "time":
        return _encode_time(name, stats)
    if kind == "date" or kind in DATE_ORDERS:
        return _encode_date(name, stats, kind if kind in DATE_ORDERS else "year first")
    return _encode_number(name, stats, kind, keep)


def parse_counts(stats: TextStats) -> tuple[str, NumberStats] | None:
    """Return the kind and the statistics of dates, times or numbers that all of the text holds; None for categories."""
    if stats.kind != "text" or not stats.counts:
        return None
    texts = [text for text in stats.counts if text not in MISSING_MARKERS]
    every = {kind: _parse_all(texts, parse) for kind, parse in TEXT_PARSERS.items()}
    parsed = {kind: values for kind, values in every.items() if values is not None}
    found = list(parsed)
    # 1/2/2020 alone may be in January or in February, and dates in one column have a time zone or not.
    if len(found) != 1 or (found == ["year first"] and len({has_zone(text) for text in texts}) > 1):
        return None
    values = np.repeat(parsed[found[0]], [stats.counts[text] for text in texts])
    gaps = np.full(stats.n_rows - len(values), np.nan)
    return found[0], _number_stats(np.append(values, gaps), dates=found[0] in DATE_ORDERS)


def _parse_plain_number(text: str) -> float | None:
    """Parse a number; not one with leading zeros, such as 01234, which is a label."""
    return None if text.lstrip("+-")[:1] == "0" and text.lstrip("+-")[1:2].isdigit() else parse_number(text)


# What text may hold: dates by their order, times, numbers.
TEXT_PARSERS = {**DATE_ORDERS, "time": parse_time, "number": _parse_plain_number}


def _parse_all(texts: Sequence[str], parse: Callable[[str], float | None]) -> list[float] | None:
    values = []
    for text in texts:
        value = parse(text)
        if value is None:
            return None
        values.append(value)
    return values or None


def list_remarks(stats: ColumnStats) -> list[str]:
    """Return remarks on a column for the user, each to follow its name."""
    if isinstance(stats, NumberStats):
        return [f"is infinite in {format_rows(stats.n_infinite)}, treated as missing"] if stats.n_infinite else []
    found = parse_counts(stats)
    if found is not None:
        example = next(text for text in stats.counts or () if text not in MISSING_MARKERS)
        what = f"dates, {found[0]}" if found[0] in DATE_ORDERS else f"{found[0]}s"
        return [f"is text that holds {what}, such as {example!r}, and is read as these"]
    if stats.kind == "mixed":
        return ["mixes text with numbers or other values, and is read as categories"]
    hint = suggest_type(stats.counts or {}) if stats.kind == "text" else None
    if hint is not None:
        return [f"{AS_CATEGORIES}{hint}"]
    if not OPTIONS.many_gaps <= stats.n_missing / stats.n_rows < 1 or stats.kind == "category":
        return []
    return [
        f"is empty in {stats.n_missing / stats.n_rows:.0%} of the rows. If 'None' or 'NA' is one of its categories, "
        "the reader took it for a gap; gaps count as a category of their own"
    ]


def _encode_number(name: str, stats: NumberStats, kind: str, keep: bool) -> Column | str:
    if stats.n_finite == 0:
        return NO_VALUES
    if max(-stats.low, stats.high) > LARGEST:
        raise TableError(
            f"Column {name!r} holds numbers as large as {max(-stats.low, stats.high):.3g}, beyond the supported "
            f"{LARGEST:g}. Rescale it, or leave it out (on the command line, --exclude {shlex.quote(name)})."
        )
    flagged = stats.n_finite < stats.n_rows
    if stats.low == stats.high and not flagged:
        return f"it is {stats.low:g} everywhere"
    if kind == "number" and not keep and is_identifier(name, stats):
        counts = stats.high - stats.low == stats.n_finite - 1
        what = (
            f"it counts the rows from {stats.low:.0f} to {stats.high:.0f}" if counts else "no number is repeated in it"
        )
        return Alarm(f"{what}, like an identifier of the row")
    if kind == "boolean":
        return BooleanColumn(name, stats.median, flagged)
    return NumberColumn(name, stats.median, flagged, duration=kind == "duration")


def is_identifier(name: str, stats: NumberStats) -> bool:
    """Whether whole numbers identify rows: none is repeated, although chance would repeat some, or by their name.

    n whole numbers from a range of R have about n^2 / (2 R) repetitions if they are drawn from it, and more if some
    values are more frequent. Weights in grams of a few hundred parcels may all differ; numbers of rows must.
    """
    if not stats.distinct or stats.n_finite < stats.n_rows:
        return False
    repeats = stats.n_finite**2 / (2 * (stats.high - stats.low + 1))
    return repeats >= OPTIONS.min_repeats or (stats.n_finite > 20 and IDENTIFIER.fullmatch(name) is not None)


def _encode_text(name: str, stats: TextStats, keep: bool, has_target: bool) -> Column | str:
    if stats.counts is None:
        return Alarm(
            f"it has more than {OPTIONS.max_distinct:,} different values, like a name or another identifier of the row"
        )
    ranked = sorted(stats.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    frequent = [text for text, n in ranked if n >= OPTIONS.min_category_rows]
    categories = tuple(sorted(frequent[: OPTIONS.max_categories]))
    # NA and the like are text only where they are frequent enough to be categories; elsewhere they are missing values.
    markers = {text: n for text, n in ranked if text in MISSING_MARKERS and text not in categories}
    counts = {text: n for text, n in ranked if text not in markers}
    missing = stats.n_missing + sum(markers.values())
    if not counts:
        return NO_VALUES
    if not keep and len(counts) > OPTIONS.max_categories and len(counts) > (stats.n_rows - missing) / 2:
        return Alarm(f"it has {len(counts):,} different values, like a name or another identifier of the row")
    if len(counts) == 1 and not missing:
        return f"it is {next(iter(counts))!r} everywhere"
    if not categories and not (has_target and len(counts) > OPTIONS.max_one_hot):
        return f"none of its {len(counts)} categories appears in {OPTIONS.min_category_rows} rows"
    if has_target and len(counts) > OPTIONS.max_one_hot:
        return TargetColumn(name, tuple(sorted(counts)), other=False, missing=False)
    return TextColumn(name, categories, other=len(categories) < len(counts), missing=missing > 0)


def _encode_date(name: str, stats: NumberStats, order: str) -> Column | str:
    if stats.n_finite == 0:
        return NO_VALUES
    flagged, span = stats.n_finite < stats.n_rows, stats.high - stats.low
    if span == 0 and not flagged:
        return "it is the same date everywhere"
    cycles = tuple(cycle for cycle in CYCLES if (stats.daily if cycle == "day" else span >= CYCLES[cycle]))
    return DateColumn(name, stats.median, flagged, stats.low, cycles, order)


def _encode_time(name: str, stats: NumberStats) -> Column | str:
    if stats.n_finite == 0:
        return NO_VALUES
    flagged = stats.n_finite < stats.n_rows
    if stats.low == stats.high and not flagged:
        return "it is the same time everywhere"
    return TimeColumn(name, stats.median, flagged)


def encodable_kind(name: str, entries: Entries, categorical: bool = False) -> tuple[str | None, str]:
    """Return the kind of a column ("category" if requested), or None and the reason for leaving it out."""
    found = entries.kind
    if not name:  # usually row numbers
        return None, "it has no name, like the row numbers that pandas writes. Give it one in the file to use it"
    if found == "nothing":
        return None, NO_VALUES
    if categorical:
        if found not in ("number", "boolean", *TEXTS):
            raise TableError(
                f"Column {name!r} holds {type_name(entries)}, and categorical is for text, numbers and booleans. Leave "
                "it out."
            )
        return "category", ""
    if found is None and type_name(entries) == "binary":  # Arrow's type for text that is not UTF-8
        return found, "it holds bytes that are not UTF-8 text"
    return found, f"it holds {type_name(entries)}, which is not supported"


# What text looks like, and how to have it read as that.


class TextFormat(NamedTuple):
    """A way to write numbers or dates: pattern, name and, if it is not read as such, what to write instead."""

    pattern: str
    name: str
    instead: str | None = None


# The first format that matches counts.
FORMATS = {
    "number": TextFormat(rf"(?![+-]?0\d){NUMBER.pattern}", "numbers"),  # 01234 is a label
    "percent": TextFormat(r"[+-]?\d+([.,]\d+)?\s?%", "percentages", "5 instead of 5%"),
    "thousands": TextFormat(
        r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", "numbers with thousands separators", "1000 for 1,000"
    ),
    "money": TextFormat(r"[+-]?[$€£¥]\s?\d[\d.,]*|[+-]?\d[\d.,]*\s?[$€£¥]", "amounts of money", "1000 for $1,000"),
    "comma": TextFormat(r"[+-]?\d+,\d+", "numbers with a decimal comma", "0.26 for 0,26"),
    "date": TextFormat(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", "dates"),
    "day first": TextFormat(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}([ T].*)?", "dates", "dates like 2020-12-31"),
    "slashes": TextFormat(r"\d{4}([./])\d{1,2}\1\d{1,2}([ T].*)?", "dates", "dates like 2020-12-31"),
}
FIRST_CHARACTERS = frozenset("+-.0123456789$€£¥")
DATE_FORMATS = ("date", "day first", "slashes")
PATTERNS = {name: re.compile(one.pattern) for name, one in FORMATS.items()}
# Values without a format that are shown.
MAX_SHOWN = 3


def suggest_type(counts: Mapping[str, int]) -> str | None:
    """Return what most of the text looks like and how to have it read as that; None for ordinary categories."""
    formats = {text: _find_format(text) for text in counts}
    rows = Counter[str]()
    for text, name in formats.items():
        rows[name or ""] += counts[text]
    numbers = {name: n for name, n in rows.items() if name and name not in DATE_FORMATS}
    dates = {name: n for name, n in rows.items() if name in DATE_FORMATS}
    found = max(numbers, dates, key=lambda each: sum(each.values()))
    if 2 * sum(found.values()) <= sum(counts.values()):
        return None
    unread = [name for name in found if FORMATS[name].instead is not None]
    # The format to be changed, if there is one: "999" is a number beside "1,000", too.
    most = max(unread or found, key=lambda name: found[name])
    hint = f"most of it looks like {FORMATS[most].name}, such as {_first(formats, most)!r}"
    if unread:
        return f"{hint}. Write {FORMATS[most].instead}"
    others = [(text, counts[text]) for text, name in formats.items() if name is None]
    others = sorted(others, key=lambda pair: (-pair[1], pair[0]))[:MAX_SHOWN]
    if not others:
        return f"{hint}. Save it as {FORMATS[most].name}"
    which = ", ".join(f"{text!r} ({format_rows(count)})" for text, count in others)
    entries = ",".join(_quote_entry(text) for text, _ in others)
    return f"{hint}; not {which}. If that marks a missing value in a CSV file, add --missing {shlex.quote(entries)}"


def _find_format(text: str) -> str | None:
    if text[0] not in FIRST_CHARACTERS:  # a shortcut for most text
        return None
    return next((name for name, pattern in PATTERNS.items() if pattern.fullmatch(text)), None)


def _first(formats: Mapping[str, str | None], name: str) -> str:
    return next(text for text, one in formats.items() if one == name)


def _quote_entry(text: str) -> str:
    """Quote an entry of a comma-separated option, if it has a comma, quotes or outer blanks."""
    plain = text == text.strip() and "," not in text and not text.startswith('"')
    return text if plain else '"{}"'.format(text.replace('"', '""'))


def format_rows(count: int) -> str:
    """Format a number of rows."""
    return "1 row" if count == 1 else f"{count:,} rows"
