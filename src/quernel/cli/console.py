"""Shared by the commands: what was typed as values, consoles for results and messages, progress bars, errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from quernel.estimators.inputs import check_levels
from quernel.solvers.progress import USUAL_PASSES, Progress, listening, share_done
from quernel.tuning.cost import as_duration

# Without emoji, a column named `b:smile:` is printed as it is; sentences are printed without coloured numbers.
console = Console(emoji=False, highlight=False)
errors = Console(stderr=True, emoji=False, highlight=False)


def fail(message: str) -> NoReturn:
    """Print an error in one line on stderr and exit with code 1."""
    errors.print(f"[bold red]Error:[/] {escape(_as_one_line(message))}", soft_wrap=True)
    sys.exit(1)


def note(message: str) -> None:
    """Print a note to the user in one line on stderr."""
    errors.print(f"[yellow]Note:[/] {escape(_as_one_line(message))}", soft_wrap=True)


def _as_one_line(message: str) -> str:
    """Join the lines of a message; blanks within a line stay, as they may belong to a column name."""
    return re.sub(r"\s*\n\s*", " ", message.strip())


@contextmanager
def fitting(text: str, detail: str = "") -> Iterator[None]:
    """Show a fit's progress: its stage, the duality gap or, for streamed data, the pass over the rows; the time left.

    Where stderr is no terminal, a single line is printed. `detail` is printed with the text, and not repeated beside
    the progress.
    """
    more = f" ({escape(detail)})" if detail else ""
    text = escape(text)
    if not errors.is_terminal:
        errors.print(f"{text}{more} ...", soft_wrap=True)
        yield
        return
    if detail:
        errors.print(f"{text}{more}", soft_wrap=True)
        text = text.split()[0]
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=errors) as bars:
        task = bars.add_task(text, total=None, state="")

        furthest = 0.0  # the bar never goes back, also where passes follow stages

        def show(progress: Progress) -> None:
            nonlocal furthest
            parts = [progress.stage] if progress.stage else []
            if progress.sweep:
                parts = [f"pass {progress.sweep} over the rows"]
                furthest = max(furthest, share_done(progress.sweep - 1 + progress.done, USUAL_PASSES))
            elif progress.columns:
                parts.append(f"step {progress.iteration}, gap {progress.gap:.0e}")
            if progress.stage and not progress.sweep:
                furthest = max(furthest, progress.done)
            if progress.left is not None:
                parts.append(f"about {as_duration(progress.left)} left")
            bars.update(task, total=1 if furthest else None, completed=furthest, state=", ".join(parts))

        with listening(show):
            yield
        bars.update(task, total=1, completed=1, state="[green]done[/]")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner during work of unknown length."""
    text = escape(text)
    if not errors.is_terminal:
        errors.print(f"{text} ...", soft_wrap=True)
        yield
        return
    with errors.status(text):
        yield


@contextmanager
def counting(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show, on a terminal, how many rows are processed; yields the function to call with each number of new rows."""
    if not errors.is_terminal:
        yield lambda _: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} rows")
    with Bars(*columns, TimeElapsedColumn(), console=errors) as bars:
        task = bars.add_task(text, total=total)
        yield lambda rows: bars.advance(task, rows)


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


def parse_signs(name: str, text: str) -> dict[str, int]:
    """Parse columns with their signs, such as mileage=-1,size=1."""
    signs = {}
    for entry in split_list(text):
        column, _, sign = entry.rpartition("=")
        if not column.strip() or sign.strip() not in ("1", "+1", "-1"):
            raise ValueError(f"{name} must be columns with 1 or -1, such as mileage=-1,size=1; got {entry!r}.")
        signs[column.strip()] = int(sign)
    return signs


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
