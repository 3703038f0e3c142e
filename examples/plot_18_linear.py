"""
Do I need a kernel at all?
==========================

Loss on new rows of constant quantiles, linear quantile regression and a kernel, with twice the standard error. If the
linear model is as good, take it.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind

wind = load_wind()
train, new = slice(0, None, 10), slice(1, None, 5)
levels = np.array([0.1, 0.5, 0.9])


def losses(predicted):
    residual = wind.y[new][:, None] - predicted
    return np.maximum(levels * residual, (levels - 1) * residual).mean(axis=1)


settings = {"bandwidth": "auto", "n_components": 300, "random_state": 0}
linear = KernelQuantileRegressor(levels, kernel="linear").fit(wind.X[train], wind.y[train])
kernel = KernelQuantileRegressor(levels, **settings).fit(wind.X[train], wind.y[train])
rows = {
    "constant": losses(np.quantile(wind.y[train], levels)),
    "linear": losses(linear.predict(wind.X[new])),
    "kernel": losses(kernel.predict(wind.X[new])),
}

figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
figure.suptitle("Mean pinball loss of constant, linear and kernel quantiles")
means = [row.mean() for row in rows.values()]
errors = [2 * row.std() / np.sqrt(len(row)) for row in rows.values()]
ax.barh(list(rows), means, xerr=errors, color=["0.8", "#9ecae1", "#3182bd"])
ax.invert_yaxis()
_ = ax.set_xlabel("mean pinball loss (kW)")
