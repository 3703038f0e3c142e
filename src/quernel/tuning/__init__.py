"""Hyperparameter selection: bandwidths, ridge weights and numbers of features.

- `data_summary`: the statistics of the data that all choices need, in memory or out of core;
- `alpha`: alpha="auto", a constant relative to the scale of y and, for small data, cross-validation near it; folds and
  held-out losses of fits on samples, and of the grid of `KernelQuantileRegressorCV`;
- `bandwidth`: the median heuristic, and bandwidth="learned" by the leave-one-out error of kernel ridge regression;
- `n_components`: n_components="auto", by effective dimension and held-out loss;
- `cost`: memory and time of a fit before it starts.

Choices are invariant under permuting rows, and a row of weight 2 is equivalent to two copies of it. Ridge weights scale
with y such that fit(a y) = a fit(y).
"""
