"""Values of options: lists, numbers, quantile levels, bandwidths and sizes, from the text that was typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from quernel.estimators.validation import check_levels

# Quantile levels by default.
LEVELS = "0.05,0.25,0.5,0.75,0.95"
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# One entry of a comma-separated list, up to the next comma: in double quotes (a quote inside is doubled), or plain.
ENTRY = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>(?!\s*")[^,]*))(?=,|$)')


def split_list(text: str) -> list[str]:
    """Split a comma-separated list; entries with a comma or outer blanks are quoted, empty entries are dropped."""
    entries, line, place = list[str](), " ".join(text.splitlines()), 0
    while place <= len(line):
        found = ENTRY.match(line, place)
        if found is None:
            raise ValueError(
                f"Lists are separated by commas, and entries with a comma must be in double quotes; got {text!r}."
            )
        quoted = found["quoted"]
        entries.append(found["plain"].strip() if quoted is None else quoted.replace('""', '"'))
        place = found.end() + 1  # behind the comma, or behind the end
    return [entry for entry in entries if entry]


def check_one_of(option: str, text: str, known: Sequence[str]) -> str:
    """Return the lower-cased value of an option if it is a known one; else raise, with the closest match."""
    entry = text.strip().lower()
    if entry not in known:
        close = get_close_matches(entry, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{option} must be one of {', '.join(known)}; got {text!r}.{hint}")
    return entry


def parse_numbers(name: str, text: str, example: str) -> list[float]:
    """Parse one or more numbers separated by commas."""
    try:
        return [float(entry) for entry in split_list(text)]
    except ValueError as error:
        raise ValueError(f"{name} must be numbers separated by commas, such as {example}; got {text!r}.") from error


def parse_levels(text: str) -> list[float]:
    """Parse quantile levels such as 0.05,0.5,0.95."""
    levels = parse_numbers("--quantiles", text, LEVELS)
    check_levels(levels)
    return levels


def parse_bandwidth(text: str) -> str | float:
    """Parse a bandwidth: a number, or a name, which the estimator checks."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_bandwidths(text: str) -> str | list[str | float] | None:
    """Parse --bandwidths: None for "auto", a name (the middle of a small grid), or a list of bandwidths to try."""
    entries = [parse_bandwidth(entry) for entry in split_list(text)]
    if text.strip() == "auto":
        return None
    return entries[0] if len(entries) == 1 and isinstance(entries[0], str) else entries


def parse_bytes(text: str | None) -> int | None:
    """Parse a size such as 500MB or 1.5 GiB into bytes; None stays None."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", text.lower())
    unit = UNITS.get(found[2]) if found else None
    try:
        size = round(float(found[1]) * unit) if found and unit else 0
    except ValueError:
        size = 0
    if size < 1:
        raise ValueError(f"--max-memory must be a size such as 500MB, 1.5GB or 2GiB; got {text!r}.")
    return size
