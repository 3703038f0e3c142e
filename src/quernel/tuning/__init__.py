"""Hyperparameter selection: bandwidths, ridge weights and numbers of features.

- `data_summary`: the statistics of the data that all choices need, in memory or out of core;
- `defaults`: rules of thumb (median heuristic for bandwidths, alpha relative to the scale of y);
- `holdout`: deduplicated samples, folds and held-out losses of fits on them;
- `alpha`: alpha="auto" for small data, by cross-validation;
- `bandwidth` and `krr_pilot`: bandwidth="learned", by the leave-one-out error of kernel ridge regression;
- `n_components`: n_components="auto", by effective dimension and held-out loss;
- `grid_search`: the grid of `KernelQuantileRegressorCV`.

Choices are invariant under permuting rows, and a row of weight 2 is equivalent to two copies of it. Ridge weights scale
with y such that fit(a y) = a fit(y).
"""
