"""
Is the predicted distribution too narrow?
=========================================

The probability integral transform of new targets is uniform if the distribution is right. Here the paper's estimator,
without recalibration, on few rows and with too small a ridge weight: too many targets fall outside of its curves,
which the histogram shows at both ends.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import make_heteroscedastic
from quernel.plots import PITDisplay

X, y, _ = make_heteroscedastic(1200, random_state=0)
levels = np.linspace(0.1, 0.9, 9)
model = KernelQuantileRegressor(
    levels, bandwidth="auto", n_components=200, alpha=1e-6, recalibrate=False, random_state=0
)
model.fit(X[:200], y[:200])

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
figure.suptitle("Too many new targets fall outside of the curves, on both sides")
_ = PITDisplay.from_estimator(model, X[200:], y[200:], ax=axes)
