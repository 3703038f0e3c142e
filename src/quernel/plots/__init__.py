"""Plots of quantile models in one style. Needs matplotlib: ``pip install matplotlib``.

Displays follow scikit-learn's: each holds the numbers of a plot. `from_estimator` and `from_predictions` compute and
draw it, `compute` computes it only, and `plot` draws it (again), on given axes or a new figure. The axes are then in
`ax_` and the figure in `figure_`.

=============================== =====================================================================================
`fan_chart`                     nested bands between quantile curves, over the data
`QuantileFanDisplay`            the same of a fitted model, along one column
`CalibrationDisplay`            observed against nominal quantile levels (reliability diagram)
`PITDisplay`                    PIT histogram and worm plot
`IntervalWidthDisplay`          width and coverage of prediction intervals by group
`PermutationImportanceDisplay`  rise of the pinball loss when a column is permuted
`ImportanceDisplay`             inverse learned bandwidths of the kernel, by column
`PathDisplay`                   held-out loss along the ridge weights of a search
`FeatureCountDisplay`           held-out loss against the number of random features
`feature_map`                   number of random features that the theory asks for
=============================== =====================================================================================
"""

from quernel.plots.calibration import CalibrationDisplay, IntervalWidthDisplay, PITDisplay
from quernel.plots.fans import QuantileFanDisplay, fan_chart
from quernel.plots.inspection import (
    FeatureCountDisplay,
    ImportanceDisplay,
    PathDisplay,
    PermutationImportanceDisplay,
    exponent_grid,
    feature_map,
)
from quernel.plots.style import house_style, save_figure

__all__ = [
    "CalibrationDisplay",
    "FeatureCountDisplay",
    "ImportanceDisplay",
    "IntervalWidthDisplay",
    "PITDisplay",
    "PathDisplay",
    "PermutationImportanceDisplay",
    "QuantileFanDisplay",
    "exponent_grid",
    "fan_chart",
    "feature_map",
    "house_style",
    "save_figure",
]
