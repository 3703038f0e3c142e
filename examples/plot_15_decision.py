"""
Which level do I need for a decision?
=====================================

A shop orders bread before it knows the demand. A loaf too few costs 3, a loaf too many 1: the best order is the
quantile at 3 / (3 + 1) = 0.75, and not the mean.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor

rng = np.random.default_rng(0)
X = rng.uniform(0, 30, (3000, 1))  # temperature
y = 80 - X[:, 0] + (5 + X[:, 0]) * rng.gamma(1, 1, 3000)
levels = np.linspace(0.1, 0.95, 18)
model = KernelQuantileRegressor(levels, bandwidth="auto", n_components=100, random_state=0).fit(X[:1000], y[:1000])
orders = model.predict(X[1000:])

short = np.maximum(y[1000:, None] - orders, 0)
over = np.maximum(orders - y[1000:, None], 0)
cost = (3 * short + over).mean(axis=0)
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
figure.suptitle("Mean cost of an order is lowest near the level 0.75")
ax.plot(levels, cost, "o-")
ax.axvline(0.75, color="k", ls=":", label="3 / (3 + 1)")
ax.set(xlabel="level that is ordered", ylabel="mean cost per day, new rows")
_ = ax.legend()
