"""
Does the coverage hold in each group?
=====================================

Calibrated on all rows together, intervals of one width cover about 91 % of all rows, but only about 69 % of those in
strong wind. With ``groups`` each group has its own correction.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import ConformalQuantileRegressor, KernelRegressor
from quernel.datasets import load_wind

wind = load_wind()
train, calibration, new = slice(0, None, 15), slice(1, None, 15), slice(2, None, 5)


class SameWidth:
    """A point prediction with an interval of 50 kW around it."""

    def fit(self, X, y):
        self.model_ = KernelRegressor("huber", bandwidth="auto", n_components=200, random_state=0).fit(X, y)
        return self

    def predict(self, X):
        return self.model_.predict(X)[:, None] + np.array([-50, 50])


def weather(X):
    return np.where(X[:, 0] < 5, "calm", np.where(X[:, 0] < 9, "breeze", "wind"))


model = SameWidth().fit(wind.X[train], wind.y[train])
names = np.array(["calm", "breeze", "wind"])
figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
figure.suptitle("Coverage of 90 % intervals by group, calibrated in two ways")
for groups, label, marker in ((None, "calibrated on all rows", "o"), (weather, "calibrated by group", "D")):
    conformal = ConformalQuantileRegressor(model, coverage=0.9, method="prefit")
    conformal.fit(wind.X[calibration], wind.y[calibration], groups=groups)
    low, high = conformal.predict_interval(wind.X[new]).T
    inside, kinds = (low <= wind.y[new]) & (wind.y[new] <= high), weather(wind.X[new])
    ax.plot([100 * inside[kinds == name].mean() for name in names], marker, ms=9, label=label)
ax.axhline(90, color="k", lw=1, ls="--", label="90 %, asked for")
ax.set(xticks=range(3), xlim=(-0.5, 2.5), ylim=(60, 102), ylabel="new rows inside (%)")
ax.set_xticklabels(["calm\nbelow 5 m/s", "breeze\n5 to 9 m/s", "wind\n9 m/s and more"])
_ = ax.legend(loc="lower left", frameon=False)
