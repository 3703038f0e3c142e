"""Shared by the commands: consoles for results (stdout) and messages (stderr), progress bars, errors and notes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from quernel.solvers.progress import Progress, listening
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

        def show(progress: Progress) -> None:
            if progress.sweep:
                left = f"about {as_duration(progress.left or 0)} left"
                bars.update(
                    task, total=1, completed=progress.done, state=f"pass {progress.sweep} over the rows, {left}"
                )
                return
            if progress.stage:
                state = f"{progress.stage}, about {as_duration(progress.left or 0)} left"
                bars.update(task, total=1, completed=progress.done, state=state)
                return
            bars.update(task, state=f"step {progress.iteration}, gap {progress.gap:.0e}")

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
