"""Shared by the commands: consoles for results (stdout) and messages (stderr), progress bars, errors and notes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from quernel.solvers.progress import Progress, listening
from quernel.tuning.cost import as_duration

# Without emoji, a column named `b:smile:` is printed as it is.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)
# One entry of a comma-separated list, up to the next comma: in double quotes (a quote inside is doubled), or plain.
ENTRY = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>(?!\s*")[^,]*))(?=,|$)')
# Parameters in the estimators' error messages (regular expressions) and the options that set them here.
OPTIONS = {
    r", or method='cv\+'": "",
    r", or an object of quernel\.kernels": "",
    r"\bcalibration_size\b": "--calibration-share",
    r"""\b(noncrossing|bandwidth|kernel|sampling|solver)=["'](\w+)["']""": r"--\1 \2",
    r"""\bn_components=["']?(\w+)["']?""": r"--components \1",
    r"\bn_components\b": "--components",
    r"\bmax_memory\b": "--max-memory",
    r"\bone_standard_error=True\b": "--one-standard-error",
    r"\bcv=(0?\.\d+)": r"--validation \1",
    r"\bcv=(\d+)\b": r"--folds \1",
    r"\bcheckpoint='": "--checkpoint '",
    r"^(alphas?|bandwidths?|kernel|coverage|checkpoint|tol)\b": r"--\1",
}


def fail(message: str) -> NoReturn:
    """Print an error in one line on stderr and exit with code 1."""
    errors.print(f"[bold red]Error:[/] {escape(_as_one_line(message))}", soft_wrap=True)
    sys.exit(1)


def note(message: str) -> None:
    """Print a note to the user in one line on stderr."""
    errors.print(f"[yellow]Note:[/] {escape(_as_one_line(message))}", soft_wrap=True, highlight=False)


def _as_one_line(message: str) -> str:
    """Join the lines of a message; blanks within a line stay, as they may belong to a column name."""
    return re.sub(r"\s*\n\s*", " ", message.strip())


def flag(name: str, text: str) -> Any:
    """Return a boolean option; the empty metavar keeps some versions of typer from showing a value."""
    return typer.Option(name, help=text, metavar="")


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


@contextmanager
def cli_error_names() -> Iterator[None]:
    """Translate the parameter names in an estimator's errors into the names of command-line options."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for pattern, option in OPTIONS.items():
            text = re.sub(pattern, option, text)
        raise ValueError(text) from error


@contextmanager
def fitting(text: str) -> Iterator[None]:
    """Show a fit's progress: the current duality gap or, for streamed data, the pass over the rows and the time left.

    Where stderr is no terminal, a single line is printed.
    """
    text = escape(text)
    if not errors.is_terminal:
        errors.print(f"{text} ...")
        yield
        return
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
            bars.update(task, state=f"step {progress.iteration}, gap {progress.gap:.0e}")

        with listening(show):
            yield
        bars.update(task, total=1, completed=1, state="[green]done[/]")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner during work of unknown length."""
    text = escape(text)
    if not errors.is_terminal:
        errors.print(f"{text} ...")
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
