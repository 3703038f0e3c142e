"""Self-contained HTML report on a fitted model: its data, its hyperparameters, and its evaluation on held-out rows."""

from quernel.report.build import report_page
from quernel.report.evaluation import Evaluation, held_out_rows, judge_by_refitting, judge_on, judge_streamed

__all__ = ["Evaluation", "held_out_rows", "judge_by_refitting", "judge_on", "judge_streamed", "report_page"]
