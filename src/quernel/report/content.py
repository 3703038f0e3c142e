"""The values shown in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots import CalibrationDisplay, PermutationImportanceDisplay, ResidualQuantileDisplay
from quernel.plots.calibration import binomial_band, find_ties
from quernel.plots.fans import pair_levels
from quernel.report.columns import ColumnSummary
from quernel.report.evaluation import Evaluation
from quernel.report.fans import ColumnFan
from quernel.report.model_choices import Choice
from quernel.tables import TableModel

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Page:
    """Everything that the report shows.

    `rows` (n,) are the 1-based numbers of the evaluation rows in the file and `entries` their Arrow table. Of `n_rows`
    rows, `dropped` have no target. `drawn` is the size of the random sample described, None for all rows.
    """

    data: str
    model_file: str
    model: TableModel
    evaluation: Evaluation
    n_rows: int
    dropped: int
    drawn: int | None
    columns: Sequence[ColumnSummary]
    y: Array
    choices: Sequence[Choice]
    calibration: CalibrationDisplay
    residuals: ResidualQuantileDisplay
    importance: PermutationImportanceDisplay
    fans: Sequence[ColumnFan]
    rows: NDArray[np.intp]
    entries: Any


@dataclass(frozen=True)
class Interval:
    """Coverage of a central interval: nominal, observed, and mean width.

    [`low`, `high`] contains the observed coverage with 95 % probability if the nominal one is exact. `inner` is the
    coverage without rows on the bounds, which is smaller where many rows have the same y.
    """

    nominal: float
    observed: float
    inner: float
    low: float
    high: float
    width: float
    calibrated: bool = False

    @property
    def holds(self) -> bool:
        """Whether coverage is nominal within chance; a calibrated interval may also cover more."""
        return self.low <= self.observed and (self.calibrated or self.inner <= self.high)


def intervals(evaluation: Evaluation) -> list[Interval]:
    """Return the calibrated interval, if any, then those between pairs of levels, the widest first."""
    found = _calibrated_interval(evaluation)
    for a, b in pair_levels(evaluation.levels).bands:
        # Not 0.8999999999999999, for 0.95 - 0.05.
        nominal = round(float(evaluation.levels[b] - evaluation.levels[a]), 12)
        ends = evaluation.curves[:, a], evaluation.curves[:, b]
        found.append(_interval(nominal, evaluation.y, *ends, binomial_band(nominal, len(evaluation.y))))
    return found


def _interval(nominal: float, y: Any, low: Any, high: Any, band: Any, *, calibrated: bool = False) -> Interval:
    inside = (low <= y) & (y <= high)
    on = find_ties(y, np.column_stack([low, high])).any(axis=1)
    covered, inner = np.mean(inside), np.mean(inside & ~on)
    width = float(np.mean(high - low))
    return Interval(nominal, float(covered), float(inner), float(band[0]), float(band[1]), width, calibrated)


def _calibrated_interval(evaluation: Evaluation) -> list[Interval]:
    if evaluation.model.interval is None or evaluation.ends is None:
        return []
    nominal = evaluation.model.interval.coverage_
    # Calibration rows are a random sample, too, as evaluation rows are: their variances add.
    calibrating = evaluation.model.interval.n_calibration_
    band = binomial_band(nominal, int(1 / (1 / len(evaluation.y) + 1 / calibrating)))
    return [_interval(nominal, evaluation.y, *evaluation.ends.T, band, calibrated=True)]
