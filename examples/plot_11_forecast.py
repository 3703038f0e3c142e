"""
What comes in the next two days?
================================

An hourly series with a daily pattern and quieter weekends, and the fan of the next 48 hours beside what came.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from quernel import KernelQuantileRegressor, QuantileForecaster

rng = np.random.default_rng(0)
hours = pd.date_range("2026-03-02", periods=24 * 58, freq="h")
load = 50 + 10 * np.sin(2 * np.pi * hours.hour / 24) - 5 * (hours.day_of_week >= 5) + rng.normal(0, 1.5, len(hours))
series = pd.DataFrame({"time": hours, "load": load})
known, later = series[:-48], series[-48:]

model = KernelQuantileRegressor(bandwidth="auto", n_components=300, alpha=1e-4, random_state=0)
forecaster = QuantileForecaster("48h", target="load", quantiles=[0.05, 0.25, 0.5, 0.75, 0.95], estimator=model)
fan = forecaster.fit(known).predict()

figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
figure.suptitle("Forecast of the next 48 hours, and what came")
ax.plot(known["time"][-96:], known["load"][-96:], color="0.4")
ax.fill_between(fan["time"], fan["q0.05"], fan["q0.95"], color="#c6dbef", label="90 %")
ax.fill_between(fan["time"], fan["q0.25"], fan["q0.75"], color="#6baed6", label="50 %")
ax.plot(fan["time"], fan["q0.5"], color="#08519c", label="median")
ax.plot(later["time"], later["load"], "k.", ms=4, label="what came")
ax.set_ylabel("load")
ax.legend(ncols=4, loc="upper left", bbox_to_anchor=(0, 1.14), frameon=False)
figure.autofmt_xdate()
