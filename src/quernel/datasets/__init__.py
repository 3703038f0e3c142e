"""Data sets: the simulations of the paper with their true quantiles, a wind farm, and the used cars of the paper."""

from quernel.datasets.real import UsedCars, Wind, load_used_cars, load_wind
from quernel.datasets.simulations import Simulation, make_heteroscedastic, make_homoscedastic, make_spline

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
