"""Self-contained HTML report on a fitted model: its data, its hyperparameters, and its evaluation on held-out rows."""

from quernel.report.evaluation import Evaluation, evaluate_by_refitting, evaluate_on, evaluate_streamed, held_out_rows
from quernel.report.sections import report_page

__all__ = ["Evaluation", "evaluate_by_refitting", "evaluate_on", "evaluate_streamed", "held_out_rows", "report_page"]
