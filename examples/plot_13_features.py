"""
How many random features are enough?
====================================

The loss on new rows falls with the number of random features until it is that of the exact kernel; from there on, more
features cost time and bring nothing. The dotted line is the loss of the true quantiles.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import mean_pinball_loss

from quernel import KernelQuantileRegressor

rng = np.random.default_rng(0)
X = rng.random((6000, 2))
truth = np.sin(6 * X[:, 0]) * np.cos(6 * X[:, 1])
y = truth + 0.3 * rng.standard_normal(6000)
counts = [5, 10, 20, 50, 100, 200, 400]


def loss(n_components, seed):
    model = KernelQuantileRegressor(0.5, bandwidth=0.3, alpha=1e-4, n_components=n_components, random_state=seed)
    return mean_pinball_loss(y[1000:], model.fit(X[:1000], y[:1000]).predict(X[1000:]))


losses = np.array([[loss(count, seed) for seed in range(5)] for count in counts])
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
figure.suptitle("Loss on new rows against the number of random features")
ax.errorbar(counts, losses.mean(axis=1), losses.std(axis=1), fmt="o-", capsize=3, label="random features, five seeds")
ax.axhline(loss("exact", 0), color="#e6550d", label="exact kernel")
ax.axhline(mean_pinball_loss(y[1000:], truth[1000:]), color="k", ls=":", label="true median")
ax.set(xscale="log", xlabel="number of random features", ylabel="pinball loss at 0.5, new rows")
_ = ax.legend()
