"""
Do the levels hold on new rows?
===============================

A level of 0.9 should have 90 % of new targets below it. The band is what chance allows for so many rows. Squares mark
levels outside it: two of nine here, where chance alone puts one in twenty. The levels share the same rows, so they
tend to deviate together.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import make_heteroscedastic
from quernel.plots import CalibrationDisplay

X, y, _ = make_heteroscedastic(1600, random_state=0)
levels = np.linspace(0.1, 0.9, 9)
model = KernelQuantileRegressor(levels, bandwidth="auto", n_components=200, random_state=0).fit(X[:800], y[:800])

figure, ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
figure.suptitle("Share of new targets below each level")
_ = CalibrationDisplay.from_estimator(model, X[800:], y[800:], ax=ax)
