"""Steps of map-reduce for the tests, in a module that Dask workers can import."""

import os
import time

import numpy as np

lifted = 0  # rows transformed in this process


class Counting:
    """A feature map that counts the rows it transforms, in each process."""

    def __init__(self, feature_map):
        self.feature_map = feature_map
        self.n_components_ = feature_map.n_components_

    def transform(self, X):
        global lifted
        lifted += len(X)
        return self.feature_map.transform(X)


def count_lifted():
    return lifted


def forget_lifted():
    global lifted
    lifted = 0


def value_and_gradient(block, memory, coef):
    """Value and gradient of the mean absolute deviation; stores the residuals as row state."""
    memory["residual"] = block.targets - block.features @ coef
    side = np.sign(memory["residual"]) * block.share[:, None]
    return block.share @ np.abs(memory["residual"]), block.features.T @ side, len(block.target)


def slow_value_and_gradient(block, memory, coef):
    time.sleep(0.5)
    return value_and_gradient(block, memory, coef)


def deadly(block, memory, args):
    os._exit(1)


def move(block, memory, step):
    """Overwrites row state in place."""
    assert len(block.features) == 0  # map_rows passes no features
    memory["residual"] -= step
    memory["moves"] = memory.get("moves", np.zeros_like(memory["residual"])) + 1
    return block.share @ np.abs(memory["residual"]), block.share @ memory["moves"]


def recall(block, memory, args):
    """The residuals stored as row state, with the index of the first row."""
    return [(block.start, memory["residual"].copy())]


def chain(results):
    return [one for result in results for one in result]


def weighted(block, memory, args, block_args):
    return (block.share.sum() * block_args, block_args)


def halves(block, memory, threshold):
    """(small, large): a sum of shares, and the raw rows with residuals above a threshold."""
    return block.share.sum(), block.raw[memory["residual"][:, 0] > threshold]


def join_halves(results):
    small, large = zip(*results, strict=True)
    return sum(small), np.concatenate(large)


def describe(rows):
    """(stays, returned) for an array on a worker: the array sorted, and its shape."""
    return rows[np.lexsort(rows.T)], rows.shape


def content(rows):
    """(stays, returned) for a sample: nothing; its features, targets, shares and whether it is shuffled."""
    return None, (np.array(rows.as_array("A sample")), rows.target, rows.share, rows.shuffled)
