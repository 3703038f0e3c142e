"""One page about a model: what it was fitted to, what was chosen, how well it does. Self-contained HTML, no network."""

from quernel.report.build import report_page
from quernel.report.evaluation import Evaluation, held_out_rows, judge_by_refitting, judge_on, judge_streamed

__all__ = ["Evaluation", "held_out_rows", "judge_by_refitting", "judge_on", "judge_streamed", "report_page"]
