"""
What do I get from a frame with text, dates and missing values?
===============================================================

`TabularQuantileRegressor` takes the frame as it is. Here prices of houses with a text column, a date and missing
sizes; the picture shows new houses in the order of their predicted median, with their 90 % intervals.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from quernel import TabularQuantileRegressor

rng = np.random.default_rng(0)
n = 500
size = rng.gamma(6, 20, n)
place = rng.choice(["north", "south", "east"], n)
sold = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D")
price = size * np.where(place == "north", 3.0, 2.0) * np.exp(0.15 * rng.standard_normal(n))
houses = pd.DataFrame({"size": np.where(rng.random(n) < 0.1, np.nan, size), "place": place, "sold": sold})

train, new = houses[:400], houses[400:]
model = TabularQuantileRegressor(random_state=0).fit(train, price[:400])
low, middle, high = model.predict(new, quantiles=[0.05, 0.5, 0.95]).T

order = np.argsort(middle)
inside = (low <= price[400:]) & (price[400:] <= high)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
figure.suptitle("Prices of new houses and their 90 % intervals")
ax.vlines(np.arange(100), low[order], high[order], color="#9ecae1", lw=3, label="90 % interval")
ax.plot(np.arange(100), price[400:][order], "k.", ms=4, label=f"price ({inside.mean():.0%} inside)")
ax.set(xlabel="new houses, by predicted median", ylabel="price (1,000)")
_ = ax.legend(loc="upper left")
