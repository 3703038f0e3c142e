"""
How likely is a value above a limit?
====================================

`predict_cdf` gives the probability that the target is at most a given limit; 1 minus it is the probability of exceeding
it: here more than 500 kW given wind speed, beside the observed share of new rows, with twice its standard error. Where
it rises fastest, at 6.9 m/s, the prediction is too low: 0.74, observed 0.83. It is read from the fitted levels, and so
0 or 1 beyond the outermost of them.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind

wind = load_wind()
speed, above = wind.X[:, :1], wind.y > 500
train, new = slice(0, None, 10), slice(1, None, 5)
levels = np.r_[0.01, np.linspace(0.05, 0.95, 19), 0.99]
model = KernelQuantileRegressor(levels, bandwidth="auto", n_components=200, random_state=0)
model.fit(speed[train], wind.y[train])

grid, edges = np.linspace(5, 9, 200), np.arange(5, 9.1, 0.25)
groups = [above[new][(low <= speed[new][:, 0]) & (speed[new][:, 0] < low + 0.25)] for low in edges[:-1]]
share = np.array([group.mean() for group in groups])
error = [2 * np.sqrt(p * (1 - p) / len(group)) for p, group in zip(share, groups, strict=True)]
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
figure.suptitle("Probability of more than 500 kW given wind speed")
ax.plot(grid, 1 - model.predict_cdf(grid[:, None], 500.0), label="predicted")
ax.errorbar(edges[:-1] + 0.125, share, error, fmt="ko", label="observed")
ax.set(xlabel="wind speed (m/s)", ylabel="P(power > 500 kW)")
_ = ax.legend()
