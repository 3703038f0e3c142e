"""
What if the series drifts?
==========================

The noise triples half-way. Fixed 90 % intervals miss from then on; `AdaptiveCalibrator` widens after misses and
narrows after hits.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel.forecasting import AdaptiveCalibrator

rng = np.random.default_rng(0)
y = rng.normal(0, np.where(np.arange(4000) < 2000, 1.0, 3.0))
low, high = np.full(4000, -1.64), np.full(4000, 1.64)

calibrator = AdaptiveCalibrator(coverage=0.9).fit(low[:500], high[:500], y[:500])
adapted = []
for day in np.split(np.arange(500, 4000), 175):
    adapted.append(calibrator.adjust(low[day], high[day]))
    calibrator.update(low[day], high[day], y[day])
below, above = np.concatenate(adapted).T

time, window = np.arange(500, 4000), np.ones(300) / 300
figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
figure.suptitle("Coverage of 90 % intervals before and after the noise triples")
for name, a, b in (("fixed", low[500:], high[500:]), ("adaptive", below, above)):
    ax.plot(time[299:], np.convolve((a <= y[500:]) & (y[500:] <= b), window, "valid"), label=name)
ax.axhline(0.9, color="k", lw=1)
ax.axvline(2000, color="0.6", ls=":")
ax.set(xlabel="time", ylabel="coverage, last 300 rows")
_ = ax.legend()
