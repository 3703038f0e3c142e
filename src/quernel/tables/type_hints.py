"""Hints about text columns that look like numbers or dates, and how to have them read as such."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quernel.tables.missing_values import NUMBER


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
