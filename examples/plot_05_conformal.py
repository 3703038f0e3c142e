"""
How do I get 90 % intervals that hold, whatever the model?
==========================================================

A model that follows its training rows too closely has intervals that are too narrow. `ConformalQuantileRegressor`
holds out some rows and widens the intervals by what these show. Twenty samples, and the mean over them (upright bar):
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.metrics import coverage

base = KernelQuantileRegressor(
    [0.05, 0.95], bandwidth=0.1, n_components=300, alpha=1e-6, recalibrate=False, random_state=0
)
found = []
for seed in range(20):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (1800, 1))
    y = np.sin(2 * X[:, 0]) + (0.2 + 0.3 * np.abs(X[:, 0])) * rng.standard_normal(1800)
    raw = base.fit(X[:800], y[:800]).predict_interval(X[800:])
    calibrated = ConformalQuantileRegressor(base, coverage=0.9, random_state=0).fit(X[:800], y[:800])
    found.append([coverage(y[800:], *bounds.T) for bounds in (raw, calibrated.predict_interval(X[800:]))])

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
figure.suptitle("Coverage of 90 % intervals in twenty samples, as fitted and calibrated")
for k, (shares, color) in enumerate(zip(100 * np.transpose(found), ["#e6550d", "#3182bd"], strict=True)):
    ax.plot(shares, np.full(20, 1 - k) + np.linspace(-0.15, 0.15, 20), "o", color=color, alpha=0.5)
    ax.plot(shares.mean(), 1 - k, "|", color=color, ms=45, mew=3)
ax.axvline(90, color="k", lw=1, ls="--")
ax.text(90, 1.45, " 90 %, asked for", va="top")
_ = ax.set(yticks=[1, 0], yticklabels=["as fitted", "calibrated"], ylim=(-0.5, 1.5), xlabel="new rows inside (%)")
