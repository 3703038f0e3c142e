"""
What becomes of quantiles that cross?
=====================================

Curves that are fitted one by one may cross where rows are few (marked in orange). By default predictions are sorted;
``noncrossing="joint"`` fits curves that do not cross in the first place.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor

rng = np.random.default_rng(8)
X = np.sort(rng.random((40, 1)), axis=0)
y = np.sin(5 * X[:, 0]) + 0.5 * rng.standard_normal(40)
grid = np.linspace(X.min(), X.max(), 300)[:, None]

figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), sharey=True, layout="constrained")
figure.suptitle("Quantile curves as fitted, sorted, and fitted jointly")
for ax, how in zip(axes, (None, "rearrange", "joint"), strict=True):
    model = KernelQuantileRegressor(
        [0.25, 0.5, 0.75],
        bandwidth=0.12,
        alpha=1e-4,
        n_components=100,
        noncrossing=how,
        recalibrate=False,
        random_state=0,
    ).fit(X, y)
    curves = model.predict(grid)
    crossed = np.any(np.diff(curves, axis=1) < 0, axis=1)
    ax.fill_between(grid[:, 0], 0, 1, where=crossed, color="#fdae6b", lw=0, transform=ax.get_xaxis_transform())
    ax.plot(X, y, ".", color="0.6", ms=4)
    for curve, color, level in zip(curves.T, ["#6baed6", "#08306b", "#2171b5"], model.quantiles_, strict=True):
        ax.plot(grid, curve, color=color, lw=1.5, label=f"level {level:g}")
    ax.set(title=f"noncrossing={how!r}", xlabel="x")
axes[0].set_ylabel("y")
_ = axes[2].legend(loc="lower left", fontsize="small", frameon=False)
