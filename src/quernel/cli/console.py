"""What the commands share: the console, progress, and how they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from quernel.solvers.progress import Progress, listening

console = Console()
errors = Console(stderr=True)


def fail(message: str) -> NoReturn:
    """One line on stderr, and exit code 1."""
    errors.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    sys.exit(1)


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
