"""
How do I get coverage around each x?
====================================

The model of this example has intervals of one width, and the noise has not. Split conformal calibration covers 90 %
on average: too much in the middle, too little at the ends. ``conditional="kernel"`` widens by a smooth function of x.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator

from quernel import ConformalQuantileRegressor


class SameWidth(BaseEstimator):
    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.sin(X) + np.array([-1, 1])


rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (2600, 1))
y = np.sin(X[:, 0]) + (0.2 + np.abs(X[:, 0])) * rng.standard_normal(2600)
order = np.argsort(X[600:, 0])

figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
figure.suptitle("90 % intervals of one width, and widened by a smooth function of x")
for ax, conditional in zip(axes, (None, "kernel"), strict=True):
    model = ConformalQuantileRegressor(SameWidth(), 0.9, method="prefit", conditional=conditional, random_state=0)
    low, high = model.fit(X[:600], y[:600]).predict_interval(X[600:]).T
    inside, ends = (low <= y[600:]) & (y[600:] <= high), np.abs(X[600:, 0]) > 1.5
    ax.plot(X[600:, 0], y[600:], ".", color="0.7", ms=2)
    ax.plot(X[600:, 0][order], np.column_stack([low, high])[order], color="#3182bd")
    ax.set_title(f"conditional={conditional!r}\n{inside[ends].mean():.0%} at the ends, {inside[~ends].mean():.0%} else")
    ax.set_xlabel("x")
