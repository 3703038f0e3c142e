"""What the commands share: the console, progress, and how they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from quernel.solvers.progress import Progress, listening
from quernel.tables.passing import watching

console = Console()
errors = Console(stderr=True)


def fail(message: str) -> NoReturn:
    """One line on stderr, and exit code 1."""
    errors.print(f"[bold red]Error:[/] {escape(' '.join(message.split()))}", soft_wrap=True)
    sys.exit(1)


def note(message: str) -> None:
    """Something that the user should know, in one line on stderr."""
    errors.print(f"[yellow]Note:[/] {escape(' '.join(message.split()))}", soft_wrap=True, highlight=False)


def listed(text: str) -> list[str]:
    """The words of a text, separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


@contextmanager
def fitting(text: str) -> Iterator[None]:
    """Show that a fit is under way and, on a terminal, how far its certificate has come."""
    if not errors.is_terminal:
        errors.print(f"{text} ...")
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=errors) as bars:
        task = bars.add_task(text, total=None, state="")

        def show(progress: Progress) -> None:
            bars.update(task, state=f"step {progress.iteration}, gap {progress.gap:.0e}")

        with listening(show):
            yield
        bars.update(task, total=1, completed=1, state="[green]done[/]")


# How often the rows of files pass by in a usual fit: to learn the columns, to choose, to sample, to sweep.
USUAL_PASSES = 14


@contextmanager
def streaming(text: str, n_rows: int) -> Iterator[None]:
    """Show, on a terminal, how the rows of files pass by, and how long a usual fit still takes."""
    if not errors.is_terminal:
        errors.print(f"{text} ...")
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("pass {task.fields[turn]}{task.fields[state]}"),
        TimeElapsedColumn(),
        TextColumn("about"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bars(*columns, console=errors) as bars:
        task = bars.add_task(text, total=USUAL_PASSES * n_rows, turn=1, state="")
        bar = bars.tasks[0]

        def show(rows: float) -> None:
            turn = int((bar.completed + rows) / n_rows) + 1
            # A fit that takes more passes than usual has another one to go, and one more after that.
            bars.update(task, advance=rows, turn=turn, total=max(bar.total or 0, (turn + 1) * n_rows))

        def tell(progress: Progress) -> None:
            bars.update(task, state=f", gap {progress.gap:.0e}")

        with watching(show), listening(tell):
            yield
        bars.update(task, completed=bar.total, state=" [green]done[/]")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show that something is under way that does not say how far it has come."""
    if not errors.is_terminal:
        errors.print(f"{text} ...")
        yield
        return
    with errors.status(text):
        yield


@contextmanager
def counting(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show, on a terminal, how many rows are done; the function that is given counts them."""
    if not errors.is_terminal:
        yield lambda _: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} rows")
    with Bars(*columns, TimeElapsedColumn(), console=errors) as bars:
        task = bars.add_task(text, total=total)
        yield lambda rows: bars.advance(task, rows)
