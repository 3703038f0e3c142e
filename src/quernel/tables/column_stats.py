"""Statistics of a column that determine its encoding, accumulated batch by batch.

`facts_of` looks at a piece, `joined` puts pieces together, and `column_from` decides: the same for a table in memory,
which is one piece, and for files that are larger than memory. Medians come after that (`medians`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.estimators.validation import LARGEST
from quernel.tables.arrow_casts import (
    as_words,
    clock,
    is_duration,
    kind_of,
    numbers,
    parsed_dates,
    parsed_times,
    seconds,
)
from quernel.tables.columns import CYCLES, DAY, BooleanColumn, Column, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.missing_values import GAPS, NUMBER
from quernel.tables.reading import TableError

Array = NDArray[np.floating]

# A level of a column of text has a column of its own from so many rows on, and so many levels have one at most.
LEVEL_ROWS, MOST_LEVELS = 5, 50
# Different words that are counted; a column of text with more says which row it is, not what is in it.
MOST_WORDS = 200_000
NO_FORM: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NumberFacts:
    """Counts and range of a numeric, date or time column: rows, missing, finite values, minimum and maximum.

    `infinite` is how many numbers are.
    """

    n_rows: int
    nulls: int
    there: int
    low: float = np.inf
    high: float = -np.inf
    earliest: float = np.inf
    latest: float = -np.inf
    infinite: int = 0


@dataclass(frozen=True, eq=False)
class TextFacts:
    """Counts of a text column: rows, missing, empty, and rows per category (None if there are too many).

    `look` says what the words look like. `forms` are the ways in which all text can be read as dates ("local" or
    "zoned") or times of day ("clock"), and `dates` is then what is known of them.
    """

    n_rows: int
    nulls: int
    missing: int
    words: dict[str, int] | None
    look: Look
    forms: frozenset[str] = frozenset()
    dates: NumberFacts | None = field(default=None)


Facts = NumberFacts | TextFacts


def facts_of(name: str, column: Any, kind: str) -> Facts:
    """Return the statistics of a batch of a number, duration, boolean, date, time, text or category column."""
    if kind in ("text", "category"):
        return _text_facts(column, plainly=kind == "category")
    read = {"date": seconds, "time": clock}.get(kind)
    return number_facts(numbers(column) if read is None else read(column, name), column.null_count)


def number_facts(values: Array, nulls: int) -> NumberFacts:
    """Return the statistics of numbers, or of dates in seconds."""
    there, infinite = values[np.isfinite(values)], int(np.isinf(values).sum())
    if len(there) == 0:
        return NumberFacts(len(values), nulls, 0, infinite=infinite)
    times = there % DAY
    ends = (there.min(), there.max(), times.min(), times.max())
    return NumberFacts(len(values), nulls, len(there), *map(float, ends), infinite)


def _text_facts(column: Any, plainly: bool) -> TextFacts:
    """Return the statistics of text; `plainly` treats it as categories even if it looks like dates."""
    words, index = as_words(column)
    each = np.bincount(index[index >= 0], minlength=len(words)).tolist()
    counts = dict(zip(words, each, strict=True))
    missing = int(np.sum(index < 0)) + counts.pop("", 0)
    parsed, forms = (None, NO_FORM) if plainly else _as_dates(column)
    dates = None if parsed is None else number_facts(seconds(parsed, ""), parsed.null_count)
    return TextFacts(
        len(index), column.null_count, missing, _few(counts), look_at({} if plainly else counts), forms, dates
    )


def _as_dates(column: Any) -> tuple[Any, frozenset[str]]:
    """Text as points in time, or None, and the ways in which it can be read so: all of them where there is no text."""
    parsed = parsed_dates(column)
    if parsed is None:
        times = parsed_times(column)
        return times, NO_FORM if times is None else frozenset({"clock"})
    if parsed.null_count == len(parsed):
        return parsed, frozenset({"local", "zoned", "clock"})
    return parsed, frozenset({"zoned" if parsed.type.tz else "local"})


def joined(parts: Sequence[Any]) -> Any:
    """Merge the statistics of batches of one column."""
    return _joined_text(parts) if isinstance(parts[0], TextFacts) else _joined_numbers(parts)


def _joined_numbers(parts: Sequence[NumberFacts]) -> NumberFacts:
    return NumberFacts(
        sum(part.n_rows for part in parts),
        sum(part.nulls for part in parts),
        sum(part.there for part in parts),
        min(part.low for part in parts),
        max(part.high for part in parts),
        min(part.earliest for part in parts),
        max(part.latest for part in parts),
        sum(part.infinite for part in parts),
    )


def _joined_text(parts: Sequence[TextFacts]) -> TextFacts:
    words: Counter[str] | None = Counter()
    for part in parts:
        if words is not None:
            words = None if part.words is None else words
        if words is not None:
            words.update(part.words)
            words = words if len(words) <= MOST_WORDS else None
    forms = frozenset.intersection(*(part.forms for part in parts))
    dates = _joined_numbers([part.dates for part in parts if part.dates is not None]) if forms else None
    rows, nulls, missing = (sum(getattr(part, name) for part in parts) for name in ("n_rows", "nulls", "missing"))
    look = join_looks([part.look for part in parts])
    return TextFacts(rows, nulls, missing, None if words is None else dict(words), look, forms, dates)


def _few(words: dict[str, int]) -> dict[str, int] | None:
    return words if len(words) <= MOST_WORDS else None


def column_from(name: str, kind: str, facts: Facts) -> Column | str:
    """Return the encoding of a column, its median still to be filled in, or the reason to leave it out."""
    if facts.nulls == facts.n_rows:
        raise _without(name)
    if isinstance(facts, TextFacts):
        if facts.dates is None:
            return _text(name, facts)
        return _time(name, facts.dates) if facts.forms == {"clock"} else _date(name, facts.dates)
    if kind == "time":
        return _time(name, facts)
    return _date(name, facts) if kind == "date" else _number(name, facts, kind)


def remarks(facts: Facts) -> list[str]:
    """Return remarks on a column for the user, each to follow its name."""
    if isinstance(facts, NumberFacts):
        return [f"is infinite in {in_rows(facts.infinite)}, treated as missing"] if facts.infinite else []
    hint = None if facts.dates is not None else advice(facts.look)
    return [] if hint is None else [f"is read as categories, but {hint}"]


def _number(name: str, facts: NumberFacts, kind: str) -> Column | str:
    if facts.there == 0:
        raise _without(name, "finite number")
    if max(-facts.low, facts.high) > LARGEST:
        raise TableError(
            f"Column {name!r} holds numbers as large as {max(-facts.low, facts.high):.3g}, beyond the supported "
            f"{LARGEST:g}. Rescale it, or leave it out with --exclude {shlex.quote(name)}."
        )
    flagged = facts.there < facts.n_rows
    if facts.low == facts.high and not flagged:
        return f"it is {facts.low:g} everywhere"
    if kind == "boolean":
        return BooleanColumn(name, np.nan, flagged)
    return NumberColumn(name, np.nan, flagged, duration=kind == "duration")


def _text(name: str, facts: TextFacts) -> Column | str:
    counts, missing = facts.words, facts.missing
    if counts is None:
        return f"it has more than {MOST_WORDS:,} different values, like a name or another identifier of the row"
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    levels = tuple(sorted([word for word, n in ranked if n >= LEVEL_ROWS][:MOST_LEVELS]))
    # NA and its like are words only where they are levels: wherever else they are met, they stand for gaps.
    gaps = {word: n for word, n in ranked if word in GAPS and word not in levels}
    counts, missing = {word: n for word, n in ranked if word not in gaps}, missing + sum(gaps.values())
    if not counts:
        raise _without(name)
    if len(counts) > MOST_LEVELS and len(counts) > (facts.n_rows - missing) / 2:
        return f"it has {len(counts):,} different values, like a name or another identifier of the row"
    if len(counts) == 1 and not missing:
        return f"it is {next(iter(counts))!r} everywhere"
    if not levels:
        return f"none of its {len(counts)} categories appears in {LEVEL_ROWS} rows"
    return TextColumn(name, levels, other=len(levels) < len(counts), missing=missing > 0)


def _date(name: str, facts: NumberFacts) -> Column | str:
    if facts.there == 0:
        raise _without(name)
    flagged, span = facts.there < facts.n_rows, facts.high - facts.low
    if span == 0 and not flagged:
        return "it is the same date everywhere"
    shown = {"day": facts.latest > facts.earliest}
    shown |= {cycle: span >= CYCLES[cycle] for cycle in ("week", "year")}
    cycles = tuple(cycle for cycle in CYCLES if shown[cycle])
    return DateColumn(name, np.nan, flagged, facts.low, cycles)


def _time(name: str, facts: NumberFacts) -> Column | str:
    if facts.there == 0:
        raise _without(name)
    flagged = facts.there < facts.n_rows
    if facts.low == facts.high and not flagged:
        return "it is the same time everywhere"
    return TimeColumn(name, np.nan, flagged)


def kind_or_reason(name: str, kind: Any, categorical: bool = False) -> tuple[str | None, str]:
    """Return the column kind of an Arrow type ("category" if requested), or None and the reason for leaving it out."""
    import pyarrow as pa

    found = kind_of(kind)
    if not name:  # nobody could speak of it, and mostly it is the number of the row
        return None, "it has no name, like the row numbers that pandas writes. Give it one in the file to use it"
    if found == "nothing":
        raise _without(name)
    if categorical:
        if found not in ("number", "boolean", "text") or is_duration(kind):
            raise TableError(
                f"Column {name!r} holds {kind}, and --categorical is for text, numbers and booleans. Leave it out."
            )
        return "category", ""
    if is_duration(kind):
        return "duration", ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):  # so Arrow has text of other encodings
        return found, "it holds bytes that are not UTF-8 text"
    return found, f"it holds {kind}, which is not supported"


def _without(name: str, what: str = "values at all") -> TableError:
    return TableError(f"Column {name!r} holds no {what}. Leave it out with --exclude {shlex.quote(name)}.")


# What text looks like, and how to have it read as that.


class Form(NamedTuple):
    """A way to write numbers or dates: the pattern, what it is called and, if it is not read as such, what to write."""

    pattern: str
    called: str
    instead: str | None = None


# Of those that fit, the first one counts.
FORMS = {
    "number": Form(NUMBER.pattern, "numbers"),
    "percent": Form(r"[+-]?\d+([.,]\d+)?\s?%", "percentages", "5 instead of 5%"),
    "thousands": Form(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", "numbers with thousands separators", "1000 for 1,000"),
    "comma": Form(r"[+-]?\d+,\d+", "numbers with a decimal comma", "0.26 for 0,26"),
    "date": Form(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", "dates"),
    "day first": Form(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}([ T].*)?", "dates", "dates like 2020-12-31"),
    "slashes": Form(r"\d{4}([./])\d{1,2}\1\d{1,2}([ T].*)?", "dates", "dates like 2020-12-31"),
}
BEGINNINGS = frozenset("+-.0123456789")
DATES = ("date", "day first", "slashes")
PATTERNS = {name: re.compile(form.pattern) for name, form in FORMS.items()}
# Other words that are kept as examples, and those that are shown.
KEPT, SHOWN = 50, 3


@dataclass(frozen=True, eq=False)
class Look:
    """Rows whose text has each form, an example of each, and counts of some other values."""

    rows: Mapping[str, int]
    examples: Mapping[str, str]
    others: Mapping[str, int]
    n_rows: int


def look_at(words: Mapping[str, int]) -> Look:
    """Classify values, given with their counts, by form."""
    rows, examples, others = Counter[str](), dict[str, str](), Counter[str]()
    for word, count in words.items():
        form = _form(word)
        if form is None:
            others[word] = count
        else:
            rows[form] += count
            examples.setdefault(form, word)
    return Look(rows, examples, dict(others.most_common(KEPT)), sum(words.values()))


def _form(word: str) -> str | None:
    if word[0] not in BEGINNINGS:  # most words, of which there may be very many
        return None
    return next((name for name, pattern in PATTERNS.items() if pattern.fullmatch(word)), None)


def join_looks(looks: Sequence[Look]) -> Look:
    """Merge the counts of batches."""
    rows, examples, others = Counter[str](), dict[str, str](), Counter[str]()
    for look in looks:
        rows.update(look.rows)
        examples = {**look.examples, **examples}
        others.update(look.others)
    return Look(rows, examples, dict(others.most_common(KEPT)), sum(look.n_rows for look in looks))


def advice(look: Look) -> str | None:
    """Return what most of the text looks like and how to have it read as that; None for ordinary categories."""
    numbers = {form: n for form, n in look.rows.items() if form not in DATES}
    dates = {form: n for form, n in look.rows.items() if form in DATES}
    seen = max(numbers, dates, key=lambda forms: sum(forms.values()))
    if 2 * sum(seen.values()) <= look.n_rows:
        return None
    unread = [form for form in seen if FORMS[form].instead is not None]
    # The form to be mended, if there is one: "999" is a number beside "1,000", too.
    form = max(unread or seen, key=lambda name: seen[name])
    told = f"most of it looks like {FORMS[form].called}, such as {look.examples[form]!r}"
    if unread:
        return f"{told}. Write {FORMS[form].instead}"
    others = sorted(look.others.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN]
    if not others:
        return f"{told}. Save it as {FORMS[form].called}"
    which = ", ".join(f"{word!r} ({in_rows(count)})" for word, count in others)
    listed = ",".join(_in_a_list(word) for word, _ in others)
    return f"{told}; not {which}. If that marks a missing value in a CSV file, add --missing {shlex.quote(listed)}"


def _in_a_list(word: str) -> str:
    """Quote an entry of a comma-separated option, if it has a comma, quotes or outer blanks."""
    plain = word == word.strip() and "," not in word and not word.startswith('"')
    return word if plain else '"{}"'.format(word.replace('"', '""'))


def in_rows(count: int) -> str:
    """Format a number of rows."""
    return "1 row" if count == 1 else f"{count:,} rows"
