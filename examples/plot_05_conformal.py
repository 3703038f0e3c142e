"""
How do I get 90 % intervals that hold, whatever the model?
==========================================================

A model that follows its training rows too closely has intervals that are too narrow. `ConformalQuantileRegressor`
holds out some rows and widens the intervals by what these show. Twenty repetitions of both:
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.metrics import coverage

base = KernelQuantileRegressor(
    [0.05, 0.95], bandwidth=0.3, n_components=100, alpha=1e-6, recalibrate=False, random_state=0
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
for k, color in enumerate(["#e6550d", "#3182bd"]):
    ax.plot(np.array(found)[:, k], np.full(20, 1 - k) + np.linspace(-0.1, 0.1, 20), "o", color=color, alpha=0.7)
ax.axvline(0.9, color="k", lw=1)
ax.set(yticks=[1, 0], yticklabels=["as fitted", "calibrated"], ylim=(-0.5, 1.5), xlabel="coverage of 1,000 new rows")
