"""One page about a model: what it was fitted to, what was chosen, how well it does. Self-contained HTML, no network."""

from quernel.report.judging import Judged, held_out_rows, judge_by_refitting, judge_on, judge_streamed
from quernel.report.making import report_page

__all__ = ["Judged", "held_out_rows", "judge_by_refitting", "judge_on", "judge_streamed", "report_page"]
