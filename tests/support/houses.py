"""A made table of house prices: text, dates, gaps, an identifier, and a long right tail."""

import numpy as np
import pandas as pd

STREETS = [f"{name} {kind}" for name in ("Oak", "Elm", "Mill", "Lake", "Church", "High", "Park") for kind in
           ("Street", "Road", "Lane", "Way", "Close", "Drive")]  # fmt: skip


def houses(n=400, seed=0):
    """Frame of n houses, sorted by price, and the prices."""
    rng = np.random.default_rng(seed)
    size = np.round(rng.gamma(4, 30, n) + 25, 1)
    street = rng.choice(STREETS, n)
    worth = np.random.default_rng(99).normal(size=len(STREETS))[[STREETS.index(one) for one in street]]
    place = rng.choice(["north", "south", "east"], n, p=[0.5, 0.3, 0.2])
    garden = rng.random(n) < 0.4
    sold = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1200, n), "D")
    years = np.asarray((sold - sold.min()).days) / 365
    noise = 0.15 * rng.standard_normal(n)
    price = np.exp(11 + 0.7 * np.log(size / 100) + 0.25 * worth + 0.3 * (place == "north") + 0.1 * garden
                   + 0.05 * years + noise)  # fmt: skip
    frame = pd.DataFrame({
        "size": np.where(rng.random(n) < 0.05, np.nan, size),
        "street": street,
        "place": np.where(rng.random(n) < 0.1, None, place),
        "garden": garden,
        "sold": sold,
        "built": rng.integers(1890, 2020, n).astype(str),
        "viewing": pd.to_timedelta(rng.integers(600, 7200, n), "s"),
        "country": "here",
    })  # fmt: skip
    order = np.argsort(price, kind="stable")
    frame = frame.iloc[order].reset_index(drop=True)
    frame.insert(0, "id", np.arange(1, n + 1))  # in a sorted table, the row number tells the price
    return frame, np.asarray(price)[order]
