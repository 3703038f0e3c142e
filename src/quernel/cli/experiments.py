"""`quernel bench` and `quernel reproduce`: timings on this machine, and the paper's experiments. No data are needed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable

from quernel import __version__
from quernel.bench import Task as BenchTask
from quernel.bench import compare, count_cores, describe_machine
from quernel.cli.console import console, errors, fail
from quernel.cli.data import check_folder
from quernel.cli.options import flag
from quernel.tuning.cost import as_duration

if TYPE_CHECKING:
    from quernel.paper import Experiment, Verdict
    from quernel.paper.experiment import Size
    from quernel.paper.output import Chapter
    from quernel.paper.reproduction import Finished, Listener, Reproduction, Work

SYSTEMS = "quernel.bench:"
# Seconds per system and task.
TIME_LIMIT = 10.0
# A large and a small problem, with the systems that run on each; quernel first, for its lower bound.
SMALL_SET = (
    (BenchTask(n=100_000, level=0.5, alpha=1e-4, M=100), ("QUERNEL", "RIDGE")),
    (BenchTask(n=2_000, level=0.5, alpha=1e-8, M=50, bandwidth=0.2), ("QUERNEL", "HIGHS", "HIGHS_IPM")),
)
# Number of progress lines where stderr is no terminal.
REPORT_EVERY = 20


def bench(
    as_json: Annotated[bool, flag("--json", "Print JSON instead of tables.")] = False,
) -> None:
    """Benchmark quernel against ridge regression and scikit-learn on this machine (one thread, half a minute)."""
    machine, rows = describe_machine(), []
    for task, names in SMALL_SET:
        rows += compare([SYSTEMS + name for name in names], task, time_limit=TIME_LIMIT, callback=_print_status)
    if as_json:
        typer.echo(json.dumps({"machine": machine, "results": rows}, indent=1))
        return
    console.print("{processor}, {memory}, Python {python}; {packages}".format(**machine))
    for task, _ in SMALL_SET:
        console.print(_timing_table(str(task), [row for row in rows if row["problem"] == str(task)]))
    console.print(
        "Seconds are the best of three runs. Excess: the objective, mean pinball loss + alpha |u|^2, relative to the "
        "lower bound that quernel certifies. Systems without this penalty solve alpha = 0."
    )


def _print_status(row: dict[str, Any]) -> None:
    errors.print(f"{row['system']}: {row['status']}")


def _timing_table(title: str, rows: list[dict[str, Any]]) -> RichTable:
    table = RichTable(title=title, title_justify="left")
    table.add_column("system")
    table.add_column("version")
    for heading in ("seconds", "excess"):
        table.add_column(heading, justify="right")
    table.add_column("note")
    for row in rows:
        done = row["seconds"] is not None
        table.add_row(
            row["system"],
            row["version"],
            f"{row['seconds']:.3g}" if done else "",
            f"{row['excess']:.0e}" if row["excess"] is not None else "",
            row["note"] if done else row["status"],
        )
    return table


def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments to run, by name or by label in the paper (tab.2); all by default."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results, figures, tables and index.html.")] = Path(
        "reproduction"
    ),
    quick: Annotated[bool, flag("--quick", "Few repetitions and small sample sizes: about two minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    solver: Annotated[
        str, typer.Option(help='"newton", or "admm", the algorithm of the paper: the same fits, more slowly.')
    ] = "newton",
    jobs: Annotated[int | None, typer.Option(help="Worker processes; one per core by default.", min=1)] = None,
    used_cars: Annotated[
        Path | None, typer.Option(help="The UK used cars data: a CSV file, or the folder from Kaggle.")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Also copy tables and figures into this folder, with a README.md.")
    ] = None,
    listing: Annotated[bool, flag("--list", "List the experiments and exit.")] = False,
    force: Annotated[
        bool, flag("--force", "Write into any folder, and discard results of other settings in it.")
    ] = False,
) -> None:
    """Reproduce the paper's experiments and write a page that compares its numbers with ours.

    An interrupted run resumes when the same command is given again.
    """
    from quernel.paper import EXPERIMENTS  # loads the whole library, which the other commands need not wait for
    from quernel.paper.reproduction import Reproduction, summarise

    if listing:
        console.print(_list_experiments(EXPERIMENTS))
        return
    chosen = _find_experiments(items, EXPERIMENTS) if items else list(EXPERIMENTS)
    size: Size = "quick" if quick else "full"
    plan = Reproduction(out, chosen, EXPERIMENTS, size, seed, _check_data(used_cars), solver)
    _check_setup(plan, named=bool(items), force=force)
    command = _command(items, quick=quick, seed=seed, solver=solver, used_cars=used_cars is not None)
    work = plan.open(discard=force)
    workers = jobs or count_cores()
    try:
        with _progress(work, workers) as listener:
            plan.measure(work, jobs=workers, listener=listener)
    except KeyboardInterrupt:
        fail(f"Interrupted. Finished results are in {out}: the same command resumes from there.")
    heading = [*_heading(command, plan, workers), *plan.describe_gaps(work)]
    chapters = plan.present(work, heading)
    for chapter in chapters:
        console.print(f"{chapter.experiment.name}: {_count_verdicts(chapter)}")
    console.print(f"Page: [bold]{escape(str(out / 'index.html'))}[/]")
    if summary is not None:
        summarise(out, summary, _readme(heading, chapters))
        console.print(f"Summary: [bold]{escape(str(summary / 'README.md'))}[/]")


def _find_experiments(items: list[str], known: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments with these names or labels, in the order of the page."""
    names = {name for one in known for name in (one.label, one.name)}
    for item in items:
        if item not in names:
            near = get_close_matches(item, names, n=1, cutoff=0.0)[0]
            fail(f"There is no experiment {item!r}. Did you mean {near!r}? `quernel reproduce --list` shows all.")
    return [one for one in known if one.name in items or one.label in items]


def _check_data(used_cars: Path | None) -> dict[str, str]:
    """Return the data files by option name, after checking that they can be read."""
    if used_cars is None:
        return {}
    from quernel.datasets import load_used_cars

    load_used_cars(used_cars)
    return {"used_cars": str(used_cars.resolve())}


def _check_setup(plan: Reproduction, *, named: bool, force: bool) -> None:
    """Fail, before any work, without matplotlib, a known solver, data that a named experiment needs, or a folder."""
    from quernel.datasets.real import CAR_ADVICE
    from quernel.paper.holdout_fit import PAPER_SOLVERS
    from quernel.paper.reproduction import MARKER
    from quernel.plots.style import require_matplotlib

    require_matplotlib()
    if plan.solver not in PAPER_SOLVERS:
        fail(f"There is no solver {plan.solver!r}. Known: {', '.join(PAPER_SOLVERS)}.")
    wanting = [one.name for one in plan.chosen if not plan.has_data(one)]
    if wanting and named:
        fail(f"{wanting[0]} needs --used-cars PATH. {CAR_ADVICE}")
    for name in wanting:
        errors.print(f"{name} is left out: it needs --used-cars PATH. {CAR_ADVICE}", soft_wrap=True)
    out = plan.folder
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists() and not force:
        fail(f"{out} has files that `quernel reproduce` did not write. Choose another --out, or add --force.")
    check_folder(out)


def _list_experiments(known: Sequence[Experiment]) -> RichTable:
    table = RichTable("experiment", "in the paper", "description")
    for one in known:
        table.add_row(one.name, one.label, one.title)
    return table


@contextmanager
def _progress(work: Work, workers: int) -> Iterator[Listener]:
    """Show a progress bar with the time left on a terminal, else an occasional line."""
    from quernel.paper.reproduction import task_key

    to_do = [
        one.cost(task)
        for one, results, tasks in work.values()
        for task in tasks
        if task_key(task) not in results.finished
    ]
    already = sum(len(tasks) for _, _, tasks in work.values()) - len(to_do)
    if already:
        errors.print(f"{already} tasks were finished before; {len(to_do)} are left.")
    done = {"tasks": 0, "cost": 0.0, "seconds": 0.0}

    def enter(finished: Finished, cost: float) -> str:
        done["tasks"] += 1
        done["cost"] += cost
        done["seconds"] += finished.seconds
        pace = done["seconds"] / done["cost"]
        return f"about {as_duration(max(1.0, (sum(to_do) - done['cost']) * pace / workers))} left"

    if not errors.is_terminal:

        def tell(experiment: Experiment, finished: Finished, cost: float) -> None:
            left = enter(finished, cost)
            if done["tasks"] % max(1, len(to_do) // REPORT_EVERY) == 0:
                errors.print(f"{done['tasks']} of {len(to_do)} tasks, {experiment.name}, {left}")

        yield tell
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=errors) as bars:
        bar = bars.add_task("starting", total=len(to_do), left="")

        def show(experiment: Experiment, finished: Finished, cost: float) -> None:
            bars.update(bar, advance=1, description=experiment.name, left=enter(finished, cost))

        yield show


def _command(items: list[str] | None, *, quick: bool, seed: int, solver: str, used_cars: bool) -> str:
    """Return the command of this run, as the page states it."""
    arguments = ["quernel", "reproduce", *(items or ()), *(["--quick"] if quick else []), "--seed", str(seed)]
    arguments += [] if solver == "newton" else ["--solver", solver]
    return shlex.join(arguments) + (" --used-cars PATH" if used_cars else "")


def _heading(command: str, plan: Reproduction, workers: int) -> list[str]:
    """Return the first paragraphs of the page: what it shows, how to read verdicts, and how it was made."""
    machine = describe_machine()
    size = "a quick one, with few repetitions and small sizes" if plan.size == "quick" else "the full size of the paper"
    return [
        'Every numerical item of the paper "Optimal Kernel Quantile Learning with Random Features", run with quernel, '
        "and some beyond it. PQE is the paper's predicted quantile error, the mean check loss on test rows. Excess "
        "risk is computed from the known law of the noise at the test rows, so that test noise does not enter. "
        "Standard errors (s.e.) are those of means over repetitions: the standard deviation (sd) over the root of "
        "their number.",
        "Each verdict begins with a word: shown, where what was measured bears out what was to be shown; not shown, "
        "where it does not; undecided, where it is too little to tell; stated, where formulas were evaluated and "
        "nothing was measured. What has none of these is a remark.",
        f"Made by `{command}`, quernel {__version__}; this run is {size}. {machine['processor']}, {workers} worker "
        f"processes with one thread each, Python {machine['python']}; {machine['packages']}.",
    ]


def _count_verdicts(chapter: Chapter) -> str:
    """Summarize an experiment in one line: its verdicts by kind, and the time that it took."""
    if chapter.section is None:
        return chapter.left_out
    held = [verdict.holds for verdict in chapter.section.verdicts]
    counts = {"shown": True, "not shown": False, "undecided": "undecided", "stated": "stated"}
    found = ", ".join(f"{held.count(kind)} {name}" for name, kind in counts.items() if kind in held)
    return f"{found or 'remarks only'}; {as_duration(chapter.seconds)} of one core"


def _mark(verdict: Verdict) -> str:
    from quernel.paper.output import MARKS

    return "" if verdict.holds is None else f"**{MARKS[verdict.holds][1]}** "


def _readme(heading: Sequence[str], chapters: Sequence[Chapter]) -> str:
    """Return the summary's first page: how it was made, time per item, what the paper reports, and every verdict."""
    from quernel.paper.output import REPORTED

    lines = ["# The paper, reproduced: summary", "", *(f"{text}\n" for text in heading)]
    lines += ["| item | in the paper | seconds of one core |", "| --- | --- | ---: |"]
    titles = [one.experiment.title.replace("|", "\\|") for one in chapters]
    lines += [
        f"| {title} | {one.experiment.label} | {one.seconds:.0f} |" for title, one in zip(titles, chapters, strict=True)
    ]
    lines += [f"| all | | {sum(one.seconds for one in chapters):.0f} |", ""]
    for chapter in (one for one in chapters if one.section is not None):
        assert chapter.section is not None
        lines += [f"## {chapter.experiment.title} ({chapter.experiment.label})", ""]
        lines += [f"### {REPORTED}", "", *(f"{text}\n" for text in chapter.section.reported), "### Verdict", ""]
        lines += [f"- {_mark(verdict)}{verdict.text}" for verdict in chapter.section.verdicts]
        lines += ["", "### Figures and tables"]
        for item in chapter.section.items:
            if "<img" in item.html:
                lines += ["", f"![{item.caption}](figures/{item.name}.png)"]
            else:
                lines += ["", f"[{item.caption}](tables/{item.name}.md)"]
        lines.append("")
    return "\n".join(lines)
