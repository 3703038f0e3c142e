"""
What do outliers do to the median?
==================================

A tenth of the targets is wrong. The least-squares curve bends towards them, the median does not.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor, KernelRegressor

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 6, (300, 1)), axis=0)
truth = np.sin(X[:, 0])
y = truth + 0.2 * rng.standard_normal(300)
wrong = rng.random(300) < 0.1
y[wrong] += rng.uniform(2, 5, wrong.sum())

settings = {"bandwidth": "auto", "n_components": 100, "random_state": 0}
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
figure.suptitle("Least squares bends towards wrong targets, the median does not")
ax.plot(X[:, 0], y, ".", color="0.7")
ax.plot(X[:, 0], truth, "k:", label="truth")
ax.plot(X[:, 0], KernelRegressor("squared", **settings).fit(X, y).predict(X), label="least squares")
ax.plot(X[:, 0], KernelQuantileRegressor(0.5, **settings).fit(X, y).predict(X), label="median")
ax.set(xlabel="x", ylabel="y")
_ = ax.legend()
