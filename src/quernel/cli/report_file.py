"""Build, write and summarize the HTML report: shared by `quernel fit --report` and `quernel report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from quernel._files import check_writable, write_text_atomically
from quernel.cli.console import console, fitting, working
from quernel.data import memory_budget
from quernel.report import Evaluation, evaluate_by_refitting, evaluate_streamed, report_page
from quernel.report.formatting import format_number
from quernel.tables import StreamedTrainingData, TableModel, TrainingData
from quernel.tables.reservoir_sample import choose_sample_size
from quernel.tables.streaming_training import sample_rows


def check_report_path(out: Path, *, force: bool) -> None:
    """Raise, before any work, if the report cannot be written."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The report {out} must end in .html.")
    check_writable(out, overwrite=force, remedy="--force")


def report_by_refitting(
    model: TableModel,
    table: Any,
    training: TrainingData | StreamedTrainingData,
    *,
    seed: int,
    time_ordered: bool,
    **names: str,
) -> tuple[Evaluation, str]:
    """Evaluate a model by refitting it without held-out training rows; return the evaluation and the report.

    `table` is the training table where it is in memory, else None; `names` are those of the files.
    """
    if isinstance(training, TrainingData):
        with working("Evaluating the model on held-out rows"):
            evaluation = evaluate_by_refitting(model, training, seed=seed, time_ordered=time_ordered)
            return evaluation, report_page(model, table, evaluation, **names)
    with working("Sampling rows for the report"):
        most = choose_sample_size(len(model.encoder.names), memory_budget(model.model.max_memory))
        sample = sample_rows(training, most, seed)
    with fitting("Evaluating the model on held-out rows"):
        evaluation = evaluate_streamed(model, training, sample, seed=seed, time_ordered=time_ordered)
    return evaluation, report_page(model, sample.table, evaluation, **names, sample=sample)


def write_report(text: str, out: Path, *, force: bool) -> None:
    """Write the report atomically."""
    write_text_atomically(out, text, overwrite=force)


def summarize_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Return losses and coverage as shown in the report, for --json."""
    return {
        "rows_evaluated": len(evaluation.y),
        "sample_of": evaluation.out_of,
        "unseen": evaluation.unseen,
        "rows_outside": int(evaluation.outside.sum()),
        "quantiles": evaluation.levels.tolist(),
        "pinball_loss": evaluation.losses().tolist(),
        "baselines": {name: evaluation.losses(name).tolist() for name in evaluation.baselines},
        "intervals": [
            {"coverage": one.nominal, "observed": one.observed, "mean_width": one.width, "calibrated": one.calibrated}
            for one in evaluation.intervals()
        ],
    }


def print_evaluation(evaluation: Evaluation, out: Path) -> None:
    """Print the loss of the model and of the baselines, the coverage, and where the report is."""
    ours = format_number(evaluation.losses().mean())
    compared = ", ".join(f"{name} {format_number(evaluation.losses(name).mean())}" for name in evaluation.baselines)
    drawn = "" if evaluation.out_of is None else f", a random sample of {evaluation.out_of:,},"
    console.print(f"Pinball loss on {len(evaluation.y):,} rows{drawn} {ours} ({compared}).", highlight=False)
    for one in evaluation.intervals()[:1]:
        kind = "calibrated interval" if one.calibrated else "interval"
        console.print(f"The {one.nominal:.0%} {kind} covers {one.observed:.1%} of them.", highlight=False)
    console.print(f"Report: [bold]{escape(str(out))}[/]", highlight=False)
