"""Tuning: ridge weight and bandwidth chosen on held-out rows."""

from quernel.selection.quantile import KernelQuantileRegressorCV
from quernel.selection.search import Search, search
from quernel.selection.splits import Split, read_splits

__all__ = ["KernelQuantileRegressorCV", "Search", "Split", "read_splits", "search"]
