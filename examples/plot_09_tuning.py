"""
How is the ridge weight chosen?
===============================

`KernelQuantileRegressorCV` compares ridge weights by held-out loss. To the right the curves are too stiff, to the
left they follow the noise.
"""

import matplotlib.pyplot as plt

from quernel import KernelQuantileRegressorCV
from quernel.datasets import make_heteroscedastic
from quernel.plots import PathDisplay

X, y, _ = make_heteroscedastic(500, random_state=0)
search = KernelQuantileRegressorCV([0.1, 0.5, 0.9], n_components=100, cv=3, random_state=0).fit(X, y)

figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
figure.suptitle("Held-out loss of every ridge weight")
_ = PathDisplay.from_estimator(search, ax=ax)
