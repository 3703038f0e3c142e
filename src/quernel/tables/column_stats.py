"""The choice of a column's encoding from all its values, advice on text, and traps: columns that tell the target."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel._validation import LARGEST
from quernel.tables.columns import (
    CYCLES,
    DATE_ORDERS,
    DAY,
    MISSING_MARKERS,
    TEXTS,
    Column,
    Markers,
    NumericColumn,
    TargetColumn,
    TextColumn,
)
from quernel.tables.frames import (
    DATE,
    NUMBER,
    Entries,
    Frame,
    Parser,
    TableError,
    factorize,
    parse_date,
    parse_number,
    parse_time,
    to_numbers,
    type_name,
)

Array = NDArray[np.floating]


@dataclass(frozen=True)
class EncodingOptions:
    """Constants of the choice of encodings."""

    min_category_rows: int = 5  # rows from which a category has an encoded column of its own
    max_categories: int = 50  # how many categories have one at most, if there is no target
    max_one_hot: int = 30  # with a target: columns with more categories are encoded by means of it
    max_distinct: int = 200_000  # distinct values of text that are counted; text with more identifies rows
    min_repeats: float = 10  # repeated values that chance would bring into a column of whole numbers without any
    many_gaps: float = 0.3  # share of missing text from which it may have been a category
    # The search for columns that tell the target, and for long tails of it.
    max_rows: int = 5000  # rows that are looked at
    min_rows: int = 50  # with fewer, nothing is said
    explained: float = 0.999  # share of the variance of the target from which a column tells it
    tail: float = 1.6  # upper part of the target's range over the lower one, medians to outer quantiles
    spread: float = 3.0  # upper over lower outer quantile


OPTIONS = EncodingOptions()


class Alarm(str):
    """A sentence, or the reason to leave a column out, that estimators warn of; others are for those who ask."""


NO_VALUES, IDENTIFIES = "it holds no values at all", "identifier of the row"
# Names of columns of whole numbers that identify rows, if no number is repeated.
IDENTIFIER = re.compile(r"(^|.*[_\W])(id|key|uuid|guid|index|idx|row|nr|no|number)|.*[a-z](ID|Id|Key|Nr|No)", re.DOTALL)


class FittedColumn(NamedTuple):
    """What was found out about a column."""

    column: Column | str  # its encoding, or the reason to leave it out
    remarks: Sequence[str] = ()  # to follow its name
    leaks: Sequence[str] = ()  # on the target


def choose_encoding(
    name: str, entries: Entries, markers: Markers, *, categorical: bool, keep: bool, has_target: bool
) -> FittedColumn:
    """Choose the encoding of a column.

    `keep` is for identifiers that are wanted. With a target, many categories get a `TargetColumn` whose means are still
    to be filled in (`with_target`).
    """
    kind = entries.kind
    if not name:  # usually row numbers
        return FittedColumn(
            "it has no name, like the row numbers that pandas writes. Give it one in the file to use it"
        )
    if kind == "nothing":
        return FittedColumn(NO_VALUES)
    if categorical and kind not in ("number", "boolean", *TEXTS):
        raise TableError(f"Column {name!r} holds {type_name(entries)}; categorical is for text, numbers and booleans.")
    if kind is None:
        binary = type_name(entries) == "binary"  # Arrow's type for text that is not UTF-8
        what = "bytes that are not UTF-8 text" if binary else f"{type_name(entries)}, which is not supported"
        return FittedColumn(f"it holds {what}")
    if categorical or kind in TEXTS:
        kind = "category" if categorical else kind
        return _encode_text(name, entries, kind, markers, keep=keep, has_target=has_target)
    values = to_numbers(entries)
    if kind == "number" and markers.numbers:
        values = np.where(np.isin(values, markers.numbers), np.nan, values)
    n_infinite = int(np.isinf(values).sum())
    remarks = [f"is infinite in {format_rows(n_infinite)}, treated as missing"] if n_infinite else []
    return FittedColumn(_encode_numeric(name, values, kind, keep), remarks)


def _encode_numeric(name: str, values: Array, kind: str, keep: bool) -> Column | str:
    """Return the encoding of numbers, of dates (of a kind in DATE_ORDERS if they were text) or of times in seconds."""
    kind, order = ("date", kind) if kind in DATE_ORDERS else (kind, "year first")
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return NO_VALUES
    low, high, flagged = float(finite.min()), float(finite.max()), len(finite) < len(values)
    if low == high and not flagged:
        return f"it is {f'the same {kind}' if kind in ('date', 'time') else f'{low:g}'} everywhere"
    if kind == "number" and not keep and not flagged and is_identifier(name, finite):
        counts = f"it counts the rows from {low:.0f} to {high:.0f}"
        what = counts if high - low == len(finite) - 1 else "no number is repeated in it"
        return Alarm(f"{what}, like an {IDENTIFIES}")
    if kind != "date" and max(-low, high) > LARGEST:
        raise TableError(
            f"Column {name!r} holds numbers as large as {max(-low, high):.3g}, beyond the supported {LARGEST:g}. "
            f"Rescale it, or leave it out (on the command line, --exclude {shlex.quote(name)})."
        )
    cycles: tuple[str, ...] = ("day",) if kind == "time" else ()
    if kind == "date":
        daily = np.ptp(finite % DAY) > 0
        cycles = tuple(cycle for cycle in CYCLES if (daily if cycle == "day" else high - low >= CYCLES[cycle]))
    middle = float(np.median(finite, overwrite_input=True))
    return NumericColumn(name, kind, middle, flagged, low if kind == "date" else 0.0, cycles, order)


def is_identifier(name: str, values: Array) -> bool:
    """Whether whole numbers identify rows: none is repeated, although chance would repeat some, or by their name.

    n whole numbers from a range of R have about n^2 / (2 R) repetitions if they are drawn from it, and more if some
    values are more frequent. Weights in grams of a few hundred parcels may all differ; numbers of rows must.
    """
    n, few, span = len(values), values[:1000], float(np.ptp(values))
    if n < 2 or span < n - 1 or np.any(few != np.floor(few)) or np.any(values != np.floor(values)):
        return False
    named = n > 20 and IDENTIFIER.fullmatch(name) is not None
    if not named and n**2 / (2 * (span + 1)) < OPTIONS.min_repeats:
        return False
    ascending = np.sort(values)
    return bool(np.all(ascending[1:] > ascending[:-1]))


def _encode_text(
    name: str, entries: Entries, kind: str, markers: Markers, *, keep: bool, has_target: bool
) -> FittedColumn:
    """Choose the encoding of text, of a categorical type, or mixed with other objects."""
    n_rows, counts = len(entries), _count_values(entries)
    if counts is None:
        many = f"it has more than {OPTIONS.max_distinct:,} different values, like a name or another {IDENTIFIES}"
        return FittedColumn(Alarm(many))
    given = markers.texts.difference(MISSING_MARKERS)  # the user's: never categories
    n_missing = sum(counts.pop(text, 0) for text in ("", *given))
    found = _parse_counts(counts) if kind == "text" else None
    if found is not None:
        parsed, texts, numbers = found
        values = np.repeat(numbers, [counts[text] for text in texts])
        gaps = np.full(n_rows - len(values), np.nan)
        what = f"dates, {parsed}" if parsed in DATE_ORDERS else f"{parsed}s"
        remark = f"is text that holds {what}, such as {texts[0]!r}, and is read as these"
        return FittedColumn(_encode_numeric(name, np.append(values, gaps), parsed, keep), [remark])
    column, remarks = _encode_categories(name, counts, n_rows, n_missing, keep, has_target), []
    if kind == "mixed":
        remarks.append("mixes text with numbers or other values, and is read as categories")
    elif kind == "text" and (hint := _suggest_type(counts)) is not None:
        if isinstance(column, str):
            return FittedColumn(type(column)(f"{column}, but {hint}"))
        remarks.append(f"is read as categories, but {hint}")
    elif kind == "text" and OPTIONS.many_gaps <= n_missing / n_rows < 1:
        remarks.append(GAPS.format(share=n_missing / n_rows))
    if isinstance(column, TargetColumn):
        remarks.append(f"has {len(column.categories):,} categories: means of the target stand for them")
    elif isinstance(column, TextColumn) and len(column.categories) == OPTIONS.max_categories and column.other:
        n = OPTIONS.max_categories
        remarks.append(f"has more than {n} categories: all but the {n} most frequent count as one")
    return FittedColumn(column, remarks)


def _count_values(entries: Entries) -> Counter[str] | None:
    """Return the number of rows of each distinct value, those without one as empty text; None if there are too many."""
    series, most = entries.series, OPTIONS.max_distinct
    if series is not None and len(series) > 2 * most and series.head(2 * most).n_unique() > most + 1:
        return None
    labels, index = factorize(entries)
    n_missing, *each = np.bincount(index + 1, minlength=len(labels) + 1).tolist()
    counts = Counter(dict(zip(labels, each, strict=True)))
    counts[""] += n_missing
    return counts if len(labels) <= most else None


def _parse_counts(counts: Mapping[str, int]) -> tuple[str, list[str], list[Any]] | None:
    """Return what all of the text holds, dates by their order, times or numbers, the text and the values; or None."""
    texts, parsed = [text for text in counts if text not in MISSING_MARKERS], []
    for kind, parse in TEXT_PARSERS.items():
        values = [*takewhile(lambda value: value is not None, map(parse, texts))]
        if texts and len(values) == len(texts):
            parsed.append((kind, texts, values))
    # 1/2/2020 alone may be in January or in February, and dates in one column have a time zone or not.
    zoned = {found["zone"] is not None for text in texts if parsed and (found := DATE.fullmatch(text))}
    return parsed[0] if len(parsed) == 1 and len(zoned) < 2 else None


# Numbers with leading zeros are labels.
LABEL = re.compile(r"[+-]*0\d")
# What text may hold: dates by their order, times, numbers.
TEXT_PARSERS: dict[str, Parser] = {
    **DATE_ORDERS,
    "time": parse_time,
    "number": lambda text: None if LABEL.match(text) else parse_number(text),
}


def _encode_categories(
    name: str, counts: Mapping[str, int], n_rows: int, n_missing: int, keep: bool, has_target: bool
) -> Column | str:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    frequent = [text for text, n in ranked if n >= OPTIONS.min_category_rows]
    categories = tuple(sorted(frequent[: OPTIONS.max_categories]))
    # NA and the like are text only where they are frequent enough to be categories; elsewhere they are missing values.
    markers = {text: n for text, n in ranked if text in MISSING_MARKERS and text not in categories}
    counts = {text: n for text, n in ranked if text not in markers}
    missing, many = n_missing + sum(markers.values()), has_target and len(counts) > OPTIONS.max_one_hot
    if not counts:
        return NO_VALUES
    if not keep and len(counts) > OPTIONS.max_categories and len(counts) > (n_rows - missing) / 2:
        return Alarm(f"it has {len(counts):,} different values, like a name or another {IDENTIFIES}")
    if len(counts) == 1 and not missing:
        return f"it is {next(iter(counts))!r} everywhere"
    if many:
        return TargetColumn(name, tuple(sorted(counts)), other=False, missing=False)
    if not categories:
        return f"none of its {len(counts)} categories appears in {OPTIONS.min_category_rows} rows"
    return TextColumn(name, categories, other=len(categories) < len(counts), missing=missing > 0)


# Numbers and dates in any format; 01234 is a label.
ANY_NUMBER = re.compile(rf"(?![+-]?0\d){NUMBER.pattern}|[+-]?[$€£¥]?\s?(?!0\d)\d[\d.,]*\s?[$€£¥%]?")
ANY_DATE = re.compile(r"(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3\d{2,4})([ T].*)?")
# What text may look like: name, pattern, how it is read as that, and the format in which it is.
LOOKS = (("dates", ANY_DATE, parse_date, "2020-12-31"), ("numbers", ANY_NUMBER, parse_number, "1234.5"))


def _suggest_type(counts: Mapping[str, int]) -> str | None:
    """Return what most of the text looks like and how to have it read as that; None for ordinary categories."""
    looks = [(look, [text for text in counts if look[1].fullmatch(text)]) for look in LOOKS]
    most = [pair for pair in looks if 2 * sum(counts[text] for text in pair[1]) > sum(counts.values())]
    if not most:
        return None
    (what, _, parse, example), alike = most[0]
    unread = [text for text in alike if parse(text) is None]
    hint = f"most of it looks like {what}, such as {(unread or alike)[0]!r}"
    others = sorted(counts.keys() - {*alike}, key=lambda text: (-counts[text], text))[:3]
    if unread or not others:
        return f"{hint}. Write them like {example}"
    which = ", ".join(f"{text!r} ({format_rows(counts[text])})" for text in others)
    plain = [text == text.strip() and not {*',"'} & {*text} for text in others]
    quoted = [text if ok else '"{}"'.format(text.replace('"', '""')) for text, ok in zip(others, plain, strict=True)]
    option = shlex.quote(",".join(quoted))
    return f"{hint}; not {which}. If that marks a missing value in a CSV file, add --missing {option}"


def format_rows(count: int) -> str:
    """Format a number of rows."""
    return "1 row" if count == 1 else f"{count:,} rows"


# Traps in training data, called out before any work: columns that tell the target, long tails, dates in parts.


class TableWarning(UserWarning):
    """Training data have a column that tells the target, or one that identifies rows."""


GAPS = (
    "is empty in {share:.0%} of the rows. If 'None' or 'NA' is one of its categories, the reader took it for a gap; "
    "gaps count as a category of their own"
)
# Names of the parts of a date that make one together.
DATE_PARTS = (("year", "yr", "yyyy"), ("month", "mnth", "mon", "mm"), ("day", "dd", "mday"))
LONG_TAIL = (
    "The target is positive and has a long right tail: its logarithm may be easier to predict, and quantiles of a "
    "logarithm are logarithms of quantiles: try --log-target, or in Python scikit-learn's "
    "TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)."
)


def describe_leak(name: str, values: NDArray[np.generic], y: Array) -> list[Alarm]:
    """Return a sentence if a column equals the target, or predicts it alone.

    Values are numbers, or integer codes of categories; at most `max_rows` rows, evenly spaced, are looked at.
    """
    step = max(-(-len(y) // OPTIONS.max_rows), 1)
    values, y = values[::step], y[::step]
    if len(y) < OPTIONS.min_rows or not np.ptp(y) > 0:
        return []
    if values.dtype.kind == "f" and np.array_equal(values, y):
        return [Alarm(f"Column {name!r} equals the target. Leave it out, unless new rows have it, too.")]
    if _explained_share(values, y) <= OPTIONS.explained:
        return []
    return [Alarm(f"Column {name!r} predicts the target almost alone: if it is not known before, leave it out.")]


def _explained_share(values: NDArray[np.generic], y: Array) -> float:
    """Return the share of the variance of y that a column explains: numbers, or integer codes of categories.

    A row is predicted by its two neighbours in the order of the numbers, or by the other rows of its category.
    """
    if values.dtype.kind == "f":
        known = np.isfinite(values)
        order = np.argsort(values[known], kind="stable")
        target = y[known][order]
        if len(target) < OPTIONS.min_rows:
            return 0.0
        target, predicted = target[1:-1], (target[:-2] + target[2:]) / 2
    else:
        count, total = (np.bincount(values, weights)[values] for weights in (None, y))
        several = count > 1
        if several.sum() < OPTIONS.min_rows:
            return 0.0
        target, predicted = y[several], (total[several] - y[several]) / (count[several] - 1)
    spread = np.var(target)
    return float(1 - np.mean((target - predicted) ** 2) / spread) if spread > 0 else 0.0


def describe_tail(y: Array) -> str | None:
    """Return advice if a target is positive and has a long right tail."""
    if len(y) < OPTIONS.min_rows or not y.min() > 0:
        return None
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
    if high < OPTIONS.spread * low or high - middle < OPTIONS.tail * (middle - low):
        return None
    return LONG_TAIL


def find_numeric_traps(frame: Frame, y: Array) -> list[Alarm]:
    """Return sentences on columns of a table of numbers that identify rows or tell the target; all are still used."""
    values = {name: frame.get(name).array for name in frame.names}
    numbers = {name: column.astype(float) for name, column in values.items() if column.dtype.kind in "iuf"}
    counting = [name for name, column in values.items() if column.dtype.kind in "iu"]
    notes = [
        Alarm(
            f"Column {name!r} looks like an identifier of the row: no number is repeated in it. Leave it out, unless "
            "new rows continue it."
        )
        for name in counting
        if len(np.unique(numbers[name][:1000])) == min(len(y), 1000) and is_identifier(name, numbers[name])
    ]
    return notes + [note for name, column in numbers.items() for note in describe_leak(name, column, y)]


def describe_date_parts(names: Sequence[str]) -> str | None:
    """Return advice if a table has year, month and day in columns of their own."""
    lower = {name.lower(): name for name in names}
    found = [next((lower[part] for part in parts if part in lower), None) for parts in DATE_PARTS]
    if None in found:
        return None
    named = ", ".join(map(repr, found))
    return f"The columns {named} stand for one date: as one column, by pandas.to_datetime, it has a trend and cycles."
