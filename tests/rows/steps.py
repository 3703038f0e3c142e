"""Steps that the tests send to workers: a worker must be able to import them."""

import os
import time

import numpy as np

lifted = 0  # rows lifted in this process


class Counting:
    """A feature map that counts its work, in the process where it works."""

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
    """Of the mean absolute deviation; remembers the residuals."""
    memory["residual"] = block.targets - block.features @ coef
    side = np.sign(memory["residual"]) * block.share[:, None]
    return block.share @ np.abs(memory["residual"]), block.features.T @ side, len(block.target)


def slow_value_and_gradient(block, memory, coef):
    time.sleep(0.5)
    return value_and_gradient(block, memory, coef)


def deadly(block, memory, message):
    os._exit(1)


def move(block, memory, step):
    """Writes into what is remembered."""
    assert len(block.features) == 0  # a visit looks at no features
    memory["residual"] -= step
    memory["moves"] = memory.get("moves", np.zeros_like(memory["residual"])) + 1
    return block.share @ np.abs(memory["residual"]), block.share @ memory["moves"]


def recall(block, memory, message):
    """What is remembered, by the numbers of the rows."""
    return [(block.start, memory["residual"].copy())]


def chain(answers):
    return [one for answer in answers for one in answer]


def weighted(block, memory, message, own):
    return (block.share.sum() * own, own)


def halves(block, memory, message):
    """A sum, and the rows themselves."""
    return block.share.sum(), block.raw[memory["residual"][:, 0] > message]


def join_halves(answers):
    small, large = zip(*answers, strict=True)
    return sum(small), np.concatenate(large)


def describe(rows):
    """Of a table that stays: the same in order, and its shape."""
    return rows[np.lexsort(rows.T)], rows.shape


def content(rows):
    """Of a sample: its features, targets and shares."""
    return None, (np.array(rows.as_array("A sample")), rows.target, rows.share, rows.shuffled)
