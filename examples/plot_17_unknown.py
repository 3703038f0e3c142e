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
ax.plot(X, y, ".", color="0.7")
ax.plot(grid, curves, color="#3182bd")
for side in (grid[outside & (grid[:, 0] < 2)], grid[outside & (grid[:, 0] > 2)]):
    ax.axvspan(side.min(), side.max(), color="0.9", zorder=0)
_ = ax.set(xlabel="x (grey: outside of the training rows)", ylabel="y", xlim=(-2, 7))
