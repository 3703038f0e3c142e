"""Commands that need no data: `quernel demo` on a wind farm, `quernel bench` on this machine, `quernel reproduce`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.table import Table as RichTable

from quernel import __version__
from quernel.bench import Task as BenchTask
from quernel.bench import compare, count_cores, describe_machine
from quernel.cli.console import console, errors, fail, fitting
from quernel.cli.data import check_folder
from quernel.cli.options import flag
from quernel.cli.report import write_report
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.datasets import load_wind
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.metrics import coverage, pinball_loss
from quernel.persistence import save
from quernel.plots.style import require_matplotlib
from quernel.report import evaluate_on, report_page
from quernel.tables import TableEncoder
from quernel.tuning.cost import as_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        "and some beyond it. PQE is the paper's predicted quantile error, the mean check loss on test rows. KQR is "
        "kernel quantile regression, KRR kernel ridge regression, and -RF marks random features. Excess risk is "
        "computed from the known law of the noise at the test rows, so that test noise does not enter. "
        "Standard errors (s.e.) are those of means over repetitions: the standard deviation (sd) over the root of "
        "their number.",
        "Each verdict begins with a word. Shown: the measurements support the claim. Not shown: they do not. "
        "Undecided: they cannot tell. Stated: a formula was evaluated, nothing was measured. What has none of these "
        "words is a remark.",
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


Array = NDArray[np.float64]

# Quantile levels, and the nominal coverage of the calibrated interval.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
INTERVAL = 0.9
# Fractions of the rows for training and calibration; the rest is the test set.
FITTED, CALIBRATING = 0.6, 0.15
# A coarser grid of ridge weights than the search's default, to save time.
ALPHAS = 10.0 ** np.arange(-11, -5)
FOLDS, COMPONENTS = 3, 300
FAN_PLOT, SEARCH_PLOT = "wind_power.png", "wind_tuning.png"
REPORT, MODEL = "wind_report.html", "wind.quernel"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for plots, report and model; created if needed.")] = Path("."),
    force: Annotated[bool, flag("--force", "Overwrite files of an earlier run.")] = False,
) -> None:
    """Tune, fit, calibrate, evaluate and plot the power curve of a real wind farm."""
    _check_outputs(out, force=force)
    wind = load_wind()
    speed = wind.X[:, :1]
    fit, calibrate, test = _split_rows(len(speed))
    console.print(
        f"Wind farm La Haute Borne: {len(speed):,} ten-minute averages. Power (kW) given wind speed (m/s), "
        f"fitted on {len(fit):,} rows, calibrated on {len(calibrate):,}, evaluated on {len(test):,} others."
    )
    model = _tune(speed[fit], wind.y[fit])
    console.print(_loss_table(model, speed[test], wind.y[fit], wind.y[test]))
    calibrated = ConformalQuantileRegressor(model, INTERVAL, method="prefit").fit(speed[calibrate], wind.y[calibrate])
    console.print(_describe_coverage(model, calibrated, speed[test], wind.y[test]))
    _save_plots(model, speed[:, 0], wind.y, out)
    _save_report(model, calibrated, pa.table({"wind_speed": speed[test, 0], "power": wind.y[test]}), out)
    picture, path, page, file = (escape(str(out / name)) for name in (FAN_PLOT, SEARCH_PLOT, REPORT, MODEL))
    console.print(f"Plots: [bold]{picture}[/] (the fit), [bold]{path}[/] (the search)")
    console.print(
        f"Report: [bold]{page}[/]   Model: [bold]{file}[/] (quernel predict {file} FILE --out PREDICTIONS.csv)"
    )


def _save_report(
    model: KernelQuantileRegressorCV, calibrated: ConformalQuantileRegressor, held_out: pa.Table, out: Path
) -> None:
    """Write the report on the test rows, and the model."""
    inputs, y = held_out.select(["wind_speed"]), held_out["power"].to_numpy()
    table_model = TableModel(TableEncoder().fit(inputs, y), model, "power", False, calibrated)
    evaluation = evaluate_on(table_model, table_model.encoder.transform(inputs), y)
    page = report_page(table_model, held_out, evaluation, data="the held-out rows", model_file=MODEL)
    write_report(page, out / REPORT, force=True)
    save(table_model, out / MODEL, overwrite=True)


def _check_outputs(out: Path, *, force: bool) -> None:
    """Fail, before any work, without matplotlib or if files exist, and create the folder."""
    require_matplotlib()
    for file in (out / FAN_PLOT, out / SEARCH_PLOT, out / REPORT, out / MODEL):
        if file.exists() and not force:
            raise FileExistsError(f"{file} exists already. Choose another --out, or add --force to replace it.")
    check_folder(out)


def _split_rows(n_rows: int) -> list[NDArray[np.intp]]:
    """Split the row indices at random into training, calibration and test rows."""
    order = np.random.default_rng(0).permutation(n_rows)
    return np.split(order, [round(FITTED * n_rows), round((FITTED + CALIBRATING) * n_rows)])


def _tune(X: Array, y: Array) -> KernelQuantileRegressorCV:
    """Fit all levels with ridge weight and bandwidth chosen by cross-validation and the one-standard-error rule."""
    model = KernelQuantileRegressorCV(
        LEVELS, alphas=ALPHAS, cv=FOLDS, one_standard_error=True, n_components=COMPONENTS, random_state=0
    )
    start = time.perf_counter()
    with fitting(f"Tuning and fitting {len(LEVELS)} quantile levels"):
        model.fit(X, y)
    console.print(
        f"Tuned by cross-validation ({len(model.cv_results_['params'])} pairs of ridge weight and bandwidth on {FOLDS} "
        f"folds) and fitted, all {len(LEVELS)} levels, in {time.perf_counter() - start:.1f} seconds: "
        f"{model.n_components_} random features, bandwidth {np.ravel(np.asarray(model.bandwidth_))[0]:.2g} m/s, and "
        f"ridge weight {model.alpha_:.0e}, the largest within one standard error of the best."
    )
    return model


def _loss_table(model: KernelQuantileRegressorCV, X: Array, y_train: Array, y: Array) -> Table:
    """Tabulate, per level, the test loss, that of the unconditional quantile, the rows below, and the gap."""
    loss = pinball_loss(y, model.predict(X), LEVELS)
    constant = pinball_loss(y, np.tile(np.quantile(y_train, LEVELS), (len(y), 1)), LEVELS)
    below = np.mean(y[:, None] <= model.predict(X), axis=0)
    table = Table(title="Held-out rows")
    for heading in ("level", "pinball loss", "unconditional", "rows below", "certified gap"):
        table.add_column(heading, justify="right")
    for k, level in enumerate(LEVELS):
        gap = f"{model.duality_gap_[k]:.0e}"
        table.add_row(f"{level:.2f}", f"{loss[k]:.2f}", f"{constant[k]:.2f}", f"{below[k]:.1%}", gap)
    return table


def _describe_coverage(
    model: KernelQuantileRegressorCV, calibrated: ConformalQuantileRegressor, X: Array, y: Array
) -> str:
    def covered(interval: Array) -> str:
        return f"{coverage(y, *interval.T):.1%} of the held-out rows (mean width {np.mean(np.diff(interval)):.0f} kW)"

    # Two standard errors: calibration rows and test rows are both a random sample.
    margin = 2 * np.sqrt(INTERVAL * (1 - INTERVAL) * (1 / calibrated.n_calibration_ + 1 / len(y)))
    return (
        f"As fitted, the {INTERVAL:.0%} interval covers {covered(model.predict_interval(X, INTERVAL))}. "
        f"Calibrated, it covers {covered(calibrated.predict_interval(X))}: at least {INTERVAL:.0%} on average are now "
        f"guaranteed, however wrong the model; with this many rows, {margin:.1%} more or less are within chance.\n"
        f"Before sorting, quantile levels crossed in {model.crossing_rate_:.1%} of the rows."
    )


def _save_plots(model: KernelQuantileRegressorCV, speed: Array, power: Array, out: Path) -> None:
    from quernel.plots import PathDisplay, fan_chart, save_figure  # matplotlib is an extra

    # Only up to the 99.5th percentile: beyond it there are a handful of storms, too few to show a curve.
    grid = np.linspace(speed.min(), np.quantile(speed, 0.995), 400)
    axes = fan_chart(
        speed,
        power,
        grid,
        model.predict(grid[:, None]),
        LEVELS,
        x_label="Wind speed (m/s)",
        y_label="Power (kW)",
        title="Wind power given wind speed, La Haute Borne",
    )
    save_figure(cast("Figure", axes.figure), out / FAN_PLOT)
    save_figure(PathDisplay.from_estimator(model).figure_, out / SEARCH_PLOT)
