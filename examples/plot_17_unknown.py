"""
Where does the model know nothing?
==================================

Outside of the training rows the curves of a kernel model are arbitrary. `is_extrapolation` says where, and predictions
far outside warn.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from quernel import ExtrapolationWarning, KernelQuantileRegressor

rng = np.random.default_rng(0)
X = rng.uniform(0, 4, (400, 1))
y = 2 * X[:, 0] + (0.3 + 0.3 * X[:, 0]) * rng.standard_normal(400)
model = KernelQuantileRegressor([0.05, 0.5, 0.95], bandwidth="auto", n_components=200, random_state=0).fit(X, y)

grid = np.linspace(-2, 7, 300)[:, None]
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExtrapolationWarning)
    curves = model.predict(grid)
outside = model.is_extrapolation(grid)

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
figure.suptitle("Outside of the training rows the curves are arbitrary")
ax.plot(X, y, ".", color="0.5", ms=4, label="training rows")
for curve, color, level in zip(curves.T, ["#6baed6", "#08306b", "#2171b5"], model.quantiles_, strict=True):
    ax.plot(grid, curve, color=color, label=f"level {level:g}")
ax.fill_between(
    grid[:, 0], 0, 1, where=outside, color="0.9", zorder=0, transform=ax.get_xaxis_transform(), label="unknown"
)
ax.set(xlabel="x", ylabel="y", xlim=(-2, 7))
_ = ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize="small", frameon=False)
