"""
How do the quantiles change along a column?
===========================================

Power of a wind turbine given wind speed: the median, and central 50 % and 90 % intervals. Half of the new rows should
lie in the inner band, and 90 % in the outer one. The curves end where rows become few.
"""

import matplotlib.pyplot as plt

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind
from quernel.plots import QuantileFanDisplay

wind = load_wind()
train, new = slice(0, None, 3), slice(1, None, 3)
model = KernelQuantileRegressor([0.05, 0.25, 0.5, 0.75, 0.95], bandwidth="auto", n_components=200, random_state=0)
model.fit(wind.X[train], wind.y[train])

figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
figure.suptitle("Power given wind speed: the median, and central 50 % and 90 % intervals")
QuantileFanDisplay.from_estimator(model, wind.X[new], wind.y[new], 0, y_label="power (kW)", ax=ax)
_ = ax.set_xlabel("wind speed (m/s)")
