"""Numbers printed in the paper's tables: mean and standard deviation of the PQE over 50 repetitions.

PQE, the paper's predicted quantile error, is the mean pinball loss on test rows.
"""

from __future__ import annotations

# A cell of a table, (method, quantile level, N), and the (mean, sd) printed in it.
Cell = tuple[str, float, int]
Cells = dict[Cell, tuple[float, float]]

REPETITIONS = 50
# Numbers are printed with three decimals: the largest rounding error, and its standard deviation (uniform law).
HALF_UNIT = 0.0005
ROUNDING_SD = 0.001 / 12**0.5
SIZES = (500, 1000, 2000, 5000, 10_000)
RF, EXACT = "KQR-RF", "KQR"
# By simulation, method and level, in the order of SIZES: tables `tab.2` and `tab.3`.
_TABLES = {
    "homoscedastic": """
        0.1  | 0.193 0.014  0.185 0.010  0.178 0.007  0.176 0.005  0.174 0.003
             | 0.184 0.005  0.175 0.004  0.168 0.001  0.164 0.001  0.162 0.001
        0.25 | 0.332 0.007  0.325 0.005  0.321 0.002  0.319 0.002  0.317 0.002
             | 0.323 0.002  0.315 0.002  0.312 0.001  0.308 0.001  0.306 0.001
        0.5  | 0.419 0.008  0.407 0.006  0.402 0.002  0.400 0.002  0.398 0.001
             | 0.405 0.002  0.395 0.002  0.391 0.002  0.388 0.001  0.386 0.001
        0.75 | 0.338 0.010  0.327 0.008  0.322 0.004  0.319 0.002  0.316 0.002
             | 0.321 0.003  0.313 0.003  0.306 0.002  0.304 0.001  0.302 0.001
        0.9  | 0.191 0.016  0.183 0.011  0.177 0.005  0.175 0.004  0.174 0.003
             | 0.183 0.005  0.173 0.004  0.168 0.001  0.166 0.001  0.165 0.001""",
    "heteroscedastic": """
        0.1  | 0.284 0.009  0.275 0.008  0.268 0.005  0.266 0.004  0.264 0.003
             | 0.271 0.005  0.266 0.004  0.261 0.001  0.259 0.001  0.256 0.001
        0.25 | 0.502 0.007  0.495 0.006  0.487 0.003  0.483 0.002  0.479 0.002
             | 0.492 0.002  0.484 0.002  0.479 0.001  0.472 0.001  0.470 0.001
        0.5  | 0.621 0.009  0.614 0.006  0.605 0.003  0.601 0.002  0.598 0.001
             | 0.609 0.002  0.601 0.002  0.597 0.002  0.594 0.001  0.591 0.001
        0.75 | 0.501 0.009  0.495 0.008  0.482 0.004  0.479 0.002  0.476 0.002
             | 0.493 0.003  0.483 0.003  0.474 0.002  0.467 0.001  0.463 0.001
        0.9  | 0.295 0.013  0.283 0.011  0.270 0.006  0.266 0.004  0.264 0.003
             | 0.284 0.005  0.275 0.004  0.261 0.001  0.256 0.001  0.254 0.001""",
}
# `tab.4`, quantile level 0.5.
USED_CARS = {"exact": (0.094, 0.000), "uniform": (0.105, 0.004), "leverage": (0.098, 0.003)}


def sample_size(simulation: str, method: str, level: float, n: int) -> tuple[float, float]:
    """(mean, sd) printed in `tab.2` or `tab.3` for a simulation, method, quantile level and N."""
    return _SAMPLE_SIZE[simulation, method, level][SIZES.index(n)]


def sample_size_cells(simulation: str) -> Cells:
    """All entries of `tab.2` or `tab.3`: (method, level, N) to (mean, sd)."""
    return {
        (method, level, n): sample_size(simulation, method, level, n)
        for name, method, level in _SAMPLE_SIZE
        for n in SIZES
        if name == simulation
    }


def _parse_tables() -> dict[tuple[str, str, float], list[tuple[float, float]]]:
    """Parse `_TABLES`: each level has one line per method, with a mean and an sd for each N."""
    entries = {}
    for simulation, text in _TABLES.items():
        lines = [line.split("|") for line in text.strip().splitlines()]
        for k, (head, numbers) in enumerate(lines):
            if head.strip():
                level = float(head)
            values = [float(number) for number in numbers.split()]
            method = (RF, EXACT)[k % 2]
            entries[simulation, method, level] = list(zip(values[::2], values[1::2], strict=True))
    return entries


_SAMPLE_SIZE = _parse_tables()
