"""Data to learn on: the paper's two simulations, with their true quantiles, and a real wind farm."""

from quernel.datasets.simulations import Simulation, make_heteroscedastic, make_homoscedastic
from quernel.datasets.wind import Wind, load_wind

__all__ = ["Simulation", "Wind", "load_wind", "make_heteroscedastic", "make_homoscedastic"]
