"""
Which columns matter?
=====================

The bars show by how much the pinball loss on new rows increases when a column is shuffled. Of the five columns, two
have an effect.
"""

import matplotlib.pyplot as plt
import numpy as np

from quernel import KernelQuantileRegressor
from quernel.plots import PermutationImportanceDisplay

rng = np.random.default_rng(0)
X = rng.standard_normal((900, 5)) * [1, 1, 10, 100, 1000]
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.2 + 0.1 * (X[:, 1] > 0)) * rng.standard_normal(900)
model = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=200, random_state=0).fit(X[:500], y[:500])

figure, ax = plt.subplots(figsize=(6.5, 3), layout="constrained")
figure.suptitle("Two of the five columns matter")
_ = PermutationImportanceDisplay.from_estimator(model, X[500:], y[500:], ax=ax)
