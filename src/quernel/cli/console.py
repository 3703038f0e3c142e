"""What the commands share: the console, progress, and how they fail."""

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

from quernel.estimators.cost import as_duration
from quernel.solvers.progress import Progress, listening

# Names are printed as they are, `b:smile:` too.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)
# A word of a list, up to the comma behind it: in quotes, where a quote is written twice, or plain.
ENTRY = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>(?!\s*")[^,]*))(?=,|$)')
# What estimators call their arguments, and what these are on the command line.
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
    """One line on stderr, and exit code 1."""
    errors.print(f"[bold red]Error:[/] {escape(_in_one_line(message))}", soft_wrap=True)
    sys.exit(1)


def note(message: str) -> None:
    """Something that the user should know, in one line on stderr."""
    errors.print(f"[yellow]Note:[/] {escape(_in_one_line(message))}", soft_wrap=True, highlight=False)


def _in_one_line(message: str) -> str:
    """Blanks within a line stay: they may be those of a name or a word."""
    return re.sub(r"\s*\n\s*", " ", message.strip())


def flag(name: str, text: str) -> Any:
    """An option without a value; some versions of typer would show one."""
    return typer.Option(name, help=text, metavar="")


def listed(text: str) -> list[str]:
    """The words of a text, separated by commas; those with a comma or blanks around them are in double quotes."""
    words, line, place = list[str](), " ".join(text.splitlines()), 0
    while place <= len(line):
        found = ENTRY.match(line, place)
        if found is None:
            raise ValueError(
                f"A list is separated by commas, and words with a comma are in double quotes; got {text!r}."
            )
        quoted = found["quoted"]
        words.append(found["plain"].strip() if quoted is None else quoted.replace('""', '"'))
        place = found.end() + 1  # behind the comma, or behind the end
    return [word for word in words if word]


@contextmanager
def cli_error_names() -> Iterator[None]:
    """Complaints of estimators in words of the command line: their arguments are options here."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for pattern, option in OPTIONS.items():
            text = re.sub(pattern, option, text)
        raise ValueError(text) from error


@contextmanager
def fitting(text: str) -> Iterator[None]:
    """Show that a fit is under way and, on a terminal, how far its certificate has come."""
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
    """Show that something is under way that does not say how far it has come."""
    text = escape(text)
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
