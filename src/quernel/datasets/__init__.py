"""Data to learn on: the paper's simulations, with their true quantiles, a real wind farm, and the paper's used cars."""

from quernel.datasets.simulations import Simulation, make_heteroscedastic, make_homoscedastic, make_spline
from quernel.datasets.used_cars import UsedCars, load_used_cars
from quernel.datasets.wind import Wind, load_wind

__all__ = [
    "Simulation",
    "UsedCars",
    "Wind",
    "load_used_cars",
    "load_wind",
    "make_heteroscedastic",
    "make_homoscedastic",
    "make_spline",
]
