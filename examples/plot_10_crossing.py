"""
What becomes of quantiles that cross?
=====================================

Curves that are fitted one by one may cross where rows are few. By default predictions are sorted;
``noncrossing="joint"`` fits curves that do not cross in the first place.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor

rng = np.random.default_rng(4)
X = np.sort(rng.random((60, 1)), axis=0)
y = np.sin(5 * X[:, 0]) + 0.5 * rng.standard_normal(60)
grid = np.linspace(0, 1, 300)[:, None]

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
for ax, how in zip(axes, (None, "rearrange", "joint"), strict=True):
    model = KernelQuantileRegressor(
        [0.3, 0.4, 0.5, 0.6, 0.7],
        bandwidth=0.12,
        alpha=1e-4,
        n_components=100,
        noncrossing=how,
        recalibrate=False,
        random_state=0,
    ).fit(X, y)
    ax.plot(X, y, ".", color="0.6", ms=4)
    ax.plot(grid, model.predict(grid), lw=1.2)
    ax.set_title(f"noncrossing={how!r}")
    ax.set_xlabel("x")
