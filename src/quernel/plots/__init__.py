"""Pictures of quantiles, in one house style. Needs matplotlib: ``pip install 'quernel[plots]'``."""

from quernel.plots.fan import fan_chart
from quernel.plots.plan import exponent_grid, feature_map
from quernel.plots.style import house_style, save_figure
from quernel.plots.tuning import ImportanceDisplay, PathDisplay

__all__ = [
    "ImportanceDisplay",
    "PathDisplay",
    "exponent_grid",
    "fan_chart",
    "feature_map",
    "house_style",
    "save_figure",
]
