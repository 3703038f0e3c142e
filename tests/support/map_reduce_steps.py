"""Steps of map-reduce for the tests, in a module that Dask workers can import."""

import os
import time

import numpy as np

transformed = 0  # rows transformed in this process


class Counting:
    """A feature map that counts the rows it transforms, in each process."""

    def __init__(self, feature_map):
        self.feature_map = feature_map
        self.n_components_ = feature_map.n_components_

    def transform(self, X):
        global transformed
        transformed += len(X)
        return self.feature_map.transform(X)


def count_transformed():
    return transformed


def reset_transformed():
    global transformed
    transformed = 0


def value_and_gradient(block, state, coef):
    """Value and gradient of the mean absolute deviation; stores the residuals as row state."""
    state["residual"] = block.targets - block.features @ coef
    side = np.sign(state["residual"]) * block.share[:, None]
    return block.share @ np.abs(state["residual"]), block.features.T @ side, len(block.target)


def slow_value_and_gradient(block, state, coef):
    time.sleep(0.5)
    return value_and_gradient(block, state, coef)


def deadly(block, state, args):
    os._exit(1)


def move(block, state, step):
    """Overwrites row state in place."""
    assert len(block.features) == 0  # map_rows passes no features
    state["residual"] -= step
    state["moves"] = state.get("moves", np.zeros_like(state["residual"])) + 1
    return block.share @ np.abs(state["residual"]), block.share @ state["moves"]


def recall(block, state, args):
    """The residuals stored as row state, with the index of the first row."""
    return [(block.start, state["residual"].copy())]


def chain(results):
    return [one for result in results for one in result]


def weighted(block, state, args, block_args):
    return (block.share.sum() * block_args, block_args)


def halves(block, state, threshold):
    """(small, large): a sum of shares, and the raw rows with residuals above a threshold."""
    return block.share.sum(), block.raw[state["residual"][:, 0] > threshold]


def join_halves(results):
    small, large = zip(*results, strict=True)
    return sum(small), np.concatenate(large)


def describe(rows):
    """(stays, returned) for an array on a worker: the array sorted, and its shape."""
    return rows[np.lexsort(rows.T)], rows.shape


def content(rows):
    """(stays, returned) for a sample: nothing; its features, targets, shares and whether it is shuffled."""
    return None, (np.array(rows.as_array("A sample")), rows.target, rows.share, rows.shuffled)
