"""The choice of a column's encoding from all its values, and traps in training data: columns that tell the target."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quernel._validation import LARGEST
from quernel.tables.columns import (
    CYCLES,
    DATE_ORDERS,
    MISSING_MARKERS,
    NUMBER,
    PARSERS,
    TEXTS,
    Column,
    Markers,
    NumericColumn,
    Parser,
    TextColumn,
    parse_date,
    parse_number,
)
from quernel.tables.frames import Entries, Frame, TableError, factorize

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


class TableWarning(UserWarning):
    """Training data have a column that tells the target, or one that identifies rows."""


class Alarm(str):
    """A sentence, or the reason to leave a column out, that estimators warn of; others are for those who ask."""


NO_VALUES, IDENTIFIES = "it holds no values at all", "identifier of the row"
# Names of columns of whole numbers that identify rows, if no number is repeated.
IDENTIFIER = re.compile(r"(^|.*[_\W])(id|key|uuid|guid|index|idx|row|nr|no|number)|.*[a-z](ID|Id|Key|Nr|No)", re.DOTALL)
# Numbers and dates in any format; 01234 is a label.
LIKE_NUMBERS = re.compile(
    rf"(?![+-]?0\d){NUMBER.pattern}|[+-]?[$€£¥]?\s?(?!0\d)\d[\d.,]*\s?[$€£¥%]?"
    r"|(\d{4}([./-])\d{1,2}\4\d{1,2}|\d{1,2}([./-])\d{1,2}\5\d{2,4})([ T].*)?"
)
# The encoding of a column or the reason to leave it out, and remarks to follow its name.
Choice = tuple[Column | str, list[str]]


def choose_encoding(
    name: str, entries: Entries, markers: Markers, *, categorical: bool, keep: bool, has_target: bool
) -> Choice:
    """Choose the encoding of a column.

    `keep` is for identifiers that are wanted. With a target, columns of more than `max_one_hot` categories still lack
    its means (`with_target`).
    """
    kind, order, remarks = entries.kind, "year first", list[str]()
    if not name:  # usually row numbers
        return "it has no name, like the row numbers that pandas writes. Give it one in the file to use it", []
    if kind == "nothing":
        return NO_VALUES, []
    if categorical and kind not in ("number", "boolean", *TEXTS):
        raise TableError(f"Column {name!r} holds {entries.type_name}; categorical is for text, numbers and booleans.")
    if categorical or kind in TEXTS:
        counts = count_categories(entries)
        if len(counts) > OPTIONS.max_distinct:
            most = f"{OPTIONS.max_distinct:,}"
            return Alarm(f"it has more than {most} different values, like a name or another {IDENTIFIES}"), []
        given = markers.texts.difference(MISSING_MARKERS)  # the user's: never categories
        counts = {text: count for text, count in counts.items() if text and text not in given}
        texts = [text for text in counts if text not in MISSING_MARKERS]
        found = find_type(texts) if kind == "text" and not categorical else None
        if found is None:
            how = "category" if categorical else kind
            return _encode_categories(name, counts, len(entries), how, keep, has_target)
        kind, order = found
        what = f"dates, {order}" if kind == "date" else f"{kind}s"
        remarks = [f"is text that holds {what}, such as {texts[0]!r}, and is read as these"]
    if kind is None:
        return f"it holds {entries.type_name}, which is not supported", []
    values = NumericColumn(name, kind, fill=0.0, flagged=False, order=order).read(entries, markers, finite=False)
    if n_infinite := int(np.isinf(values).sum()):
        remarks.append(f"is infinite in {n_infinite:,} of {len(values):,} rows, treated as missing")
    return _encode_numbers(name, values, kind, order, keep), remarks


def _encode_numbers(name: str, values: Array, kind: str, order: str, keep: bool) -> Column | str:
    """Choose the encoding of numbers, or of durations, dates or times in seconds."""
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
    spans = {"day": np.ptp(finite % CYCLES["day"]) > 0} | {one: high - low >= CYCLES[one] for one in ("week", "year")}
    cycles = {"date": tuple(one for one in CYCLES if spans[one]), "time": ("day",)}.get(kind, ())
    middle = float(np.median(finite, overwrite_input=True))
    return NumericColumn(name, kind, middle, flagged, low if kind == "date" else 0.0, cycles, order)


def is_identifier(name: str, values: Array) -> bool:
    """Whether whole numbers identify rows: none is repeated, although chance would repeat some, or by their name.

    n whole numbers from a range of R have about n^2 / (2 R) repetitions if they are drawn from it, and more if some
    values are more frequent. Weights in grams of a few hundred parcels may all differ; numbers of rows must.
    """
    n, few = len(values), values[:1000]  # which settle most columns
    if n < 2 or len(np.unique(few)) < len(few) or np.any(few != np.floor(few)) or np.any(values != np.floor(values)):
        return False
    named = n > 20 and IDENTIFIER.fullmatch(name) is not None
    expected = n**2 / (2 * (np.ptp(values) + 1))
    return bool(named or expected >= OPTIONS.min_repeats) and len(np.unique(values)) == n


def count_categories(entries: Entries) -> dict[str, int]:
    """Return the number of rows of each value as text; of a long column of many values, those of its first rows."""
    few = entries.values[: 2 * OPTIONS.max_distinct]
    labels, index = factorize(Entries(few))
    if len(few) < len(entries) and len(labels) <= OPTIONS.max_distinct:
        labels, index = factorize(entries)
    return dict(zip(labels, np.bincount(index + 1, minlength=len(labels) + 1)[1:].tolist(), strict=True))


def find_type(texts: Sequence[str]) -> tuple[str, str] | None:
    """Return what all of the text holds, dates (and their order), times or numbers; None if that is unclear."""
    parsers: dict[tuple[str, str], Parser] = {("date", one): partial(parse_date, order=one) for one in DATE_ORDERS}
    parsers |= {(kind, "year first"): PARSERS[kind] for kind in ("time", "number")}
    found = [one for one, parse in parsers.items() if texts and all(parse(text) is not None for text in texts)]
    found = found[:1] if ("date", "year first") in found else found  # which the other orders read, too
    labels = ("number", "year first") in found and any(re.match(r"[+-]*0\d", text) for text in texts)
    zoned = {re.search(r":.*([Z+]|-\d)", text) is None for text in texts}
    # 1/2/2020 alone may be in January or in February, 01234 is a label, and dates in one column have a zone or not.
    return found[0] if len(found) == 1 and not labels and len(zoned) == 1 else None


def _encode_categories(
    name: str, counts: dict[str, int], n_rows: int, kind: str | None, keep: bool, has_target: bool
) -> Choice:
    """Choose the encoding of categories, given the number of rows of each; of a categorical type, text, or mixed."""
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    frequent = [text for text in ranked if counts[text] >= OPTIONS.min_category_rows]
    categories = tuple(sorted(frequent[: OPTIONS.max_categories]))
    # NA and the like are text only where they are frequent enough to be categories; elsewhere they are missing values.
    known = [text for text in ranked if text in categories or text not in MISSING_MARKERS]
    n_missing = n_rows - sum(counts.values())
    missing = n_missing > 0 or len(known) < len(ranked)
    remarks = _suggest_type(counts) if kind == "text" else []
    if not known:
        return NO_VALUES, []
    if not keep and len(known) > max(OPTIONS.max_categories, sum(counts[text] for text in known) / 2):
        return Alarm(f"it has {len(known):,} different values, like a name or another {IDENTIFIES}"), remarks
    if len(known) == 1 and not missing:
        return f"it is {known[0]!r} everywhere", remarks
    if kind == "mixed":
        remarks.append("mixes text with numbers or other values, and is read as categories")
    elif kind == "text" and not remarks and n_missing / n_rows >= OPTIONS.many_gaps:
        remarks.append(
            f"is empty in {n_missing / n_rows:.0%} of the rows. If 'None' or 'NA' is one of its categories, the reader "
            "took it for a gap; gaps count as a category of their own"
        )
    if has_target and len(known) > OPTIONS.max_one_hot:
        remarks.append(f"has {len(known):,} categories: means of the target stand for them")
        return TextColumn(name, tuple(sorted(known)), other=False, missing=False), remarks
    if not categories:
        return f"none of its {len(known)} categories appears in {OPTIONS.min_category_rows} rows", remarks
    other = len(categories) < len(known)
    if other and len(categories) == (n := OPTIONS.max_categories):
        remarks.append(f"has more than {n} categories: all but the {n} most frequent count as one")
    return TextColumn(name, categories, other, missing), remarks


def _suggest_type(counts: dict[str, int]) -> list[str]:
    """Return a remark if most of the text looks like numbers or dates: how to have it read as these."""
    alike = [text for text in counts if LIKE_NUMBERS.fullmatch(text)]
    if 2 * sum(counts[text] for text in alike) <= sum(counts.values()):
        return []
    unread = [text for text in alike if parse_number(text) is None and parse_date(text) is None]
    remark = f"is text that mostly looks like numbers or dates, such as {(unread or alike)[0]!r}"
    if unread or len(alike) == len(counts):
        return [f"{remark}. Write them like 1234.5 and 2020-12-31"]
    other = max(counts.keys() - {*alike}, key=lambda text: (counts[text], text))
    option = shlex.quote('"{}"'.format(other.replace('"', '""')))  # an item of a list
    remark = f"{remark}; not {other!r} (in {counts[other]:,} of {sum(counts.values()):,} rows)"
    return [f"{remark}. If that marks a missing value in a CSV file, add --missing {option}"]


# Traps in training data, called out before any work: columns that tell the target, long tails, dates in parts.


# Names of the parts of a date that make one together.
DATE_PARTS = (("year", "yr", "yyyy"), ("month", "mnth", "mon", "mm"), ("day", "dd", "mday"))
LONG_TAIL = (
    "The target is positive and has a long right tail: its logarithm may be easier to predict, and quantiles of a "
    "logarithm are logarithms of quantiles: try --log-target, or in Python scikit-learn's "
    "TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)."
)


def give_advice(names: Sequence[str], y: Array | None) -> list[str]:
    """Return advice if year, month and day have columns of their own, or a positive target has a long right tail."""
    lower, advice = {name.lower(): name for name in names}, []
    parts = [next((repr(lower[part]) for part in known if part in lower), "") for known in DATE_PARTS]
    if all(parts):
        one = "stand for one date: as one column, by pandas.to_datetime, it has a trend and cycles."
        advice.append(f"The columns {', '.join(parts)} {one}")
    if y is not None and len(y) >= OPTIONS.min_rows and y.min() > 0:
        low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
        if high >= OPTIONS.spread * low and high - middle >= OPTIONS.tail * (middle - low):
            advice.append(LONG_TAIL)
    return advice


@np.errstate(over="ignore", invalid="ignore")  # targets out of range are refused by estimators
def find_leak(name: str, values: NDArray[np.generic], y: Array) -> list[Alarm]:
    """Return a sentence if a column, numbers or integer codes of categories, equals the target or predicts it alone.

    A row is predicted by its two neighbours in the order of the numbers, or by the other rows of its category. At most
    `max_rows` rows, evenly spaced, are looked at.
    """
    step = max(-(-len(y) // OPTIONS.max_rows), 1)
    values, y = values[::step], y[::step]
    if values.dtype.kind == "f":
        if len(y) >= OPTIONS.min_rows and np.ptp(y) > 0 and np.array_equal(values, y):
            return [Alarm(f"Column {name!r} equals the target. Leave it out, unless new rows have it, too.")]
        known = np.isfinite(values)
        ordered = y[known][np.argsort(values[known], kind="stable")]
        target, predicted = ordered[1:-1], (ordered[:-2] + ordered[2:]) / 2
    else:
        count, total = (np.bincount(values, weights)[values] for weights in (None, y))
        several = count > 1
        target, predicted = y[several], (total[several] - y[several]) / (count[several] - 1)
    if len(target) < OPTIONS.min_rows or np.mean((target - predicted) ** 2) >= (1 - OPTIONS.explained) * np.var(target):
        return []
    return [Alarm(f"Column {name!r} predicts the target almost alone: if it is not known before, leave it out.")]


def find_numeric_traps(frame: Frame, y: Array) -> list[Alarm]:
    """Return sentences on columns of a table of numbers that identify rows or tell the target; all are still used."""
    notes = []
    for name in frame.names:
        values = frame.get(name).array
        if values.dtype.kind in "iu" and is_identifier(name, values.astype(float)):
            what = "looks like an identifier of the row: no number is repeated in it"
            notes.append(Alarm(f"Column {name!r} {what}. Leave it out, unless new rows continue it."))
        if values.dtype.kind in "iuf":
            notes += find_leak(name, values.astype(float), y)
    return notes
