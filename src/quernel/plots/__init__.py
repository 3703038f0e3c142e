"""Pictures of quantiles, in one house style. Needs matplotlib: ``pip install 'quernel[plots]'``.

A display holds the numbers of a picture. `from_estimator` and `from_predictions` compute and draw it, `of` computes it
only, and `plot` draws it (again): the axes are then in `ax_` and the figure in `figure_`.
"""

from quernel.plots.calibration import CalibrationDisplay
from quernel.plots.fan import fan_chart
from quernel.plots.fan_display import QuantileFanDisplay
from quernel.plots.importance import PermutationImportanceDisplay
from quernel.plots.interval_width_display import IntervalWidthDisplay
from quernel.plots.n_components_display import FeatureCountDisplay
from quernel.plots.plan import exponent_grid, feature_map
from quernel.plots.residuals import ResidualQuantileDisplay
from quernel.plots.style import house_style, save_figure
from quernel.plots.tuning import ImportanceDisplay, PathDisplay

__all__ = [
    "CalibrationDisplay",
    "FeatureCountDisplay",
    "ImportanceDisplay",
    "IntervalWidthDisplay",
    "PathDisplay",
    "PermutationImportanceDisplay",
    "QuantileFanDisplay",
    "ResidualQuantileDisplay",
    "exponent_grid",
    "fan_chart",
    "feature_map",
    "house_style",
    "save_figure",
]
