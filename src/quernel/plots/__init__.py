"""Pictures of quantiles, in one house style. Needs matplotlib: ``pip install 'quernel[plots]'``."""

from quernel.plots.fan import fan_chart
from quernel.plots.style import house_style, save_figure

__all__ = ["fan_chart", "house_style", "save_figure"]
