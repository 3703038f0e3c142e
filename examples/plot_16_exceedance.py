"""
How likely is a value above a limit?
====================================

`predict_cdf` gives the probability of a target below a limit, here of more than 500 kW given wind speed, beside the
observed share of new rows in bins.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind

wind = load_wind()
train, new = slice(0, None, 10), slice(1, None, 5)
levels = np.r_[0.01, np.linspace(0.05, 0.95, 19), 0.99]
model = KernelQuantileRegressor(levels, bandwidth="auto", n_components=200, random_state=0)
model.fit(wind.X[train], wind.y[train])
above = 1 - model.predict_cdf(wind.X[new], 500.0)

speed, bins = wind.X[new][:, 0], np.arange(5, 11, 0.5)
which = np.digitize(speed, bins)
middles = bins[:-1] + 0.25
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.plot(middles, [above[which == k + 1].mean() for k in range(len(middles))], label="predicted")
ax.plot(middles, [np.mean(wind.y[new][which == k + 1] > 500) for k in range(len(middles))], "ko", label="observed")
ax.set(xlabel="wind speed (m/s)", ylabel="P(power > 500 kW)")
_ = ax.legend()
