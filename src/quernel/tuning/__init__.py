"""Automatic choices: bandwidths, ridge weights, numbers of features, by held-out loss."""
