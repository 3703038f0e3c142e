"""Data sets: the simulations of the paper with their true quantiles, a wind farm, and the used cars of the paper."""

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
