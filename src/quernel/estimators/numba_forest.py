"""Compiled loops of the forests: growing and pruning a tree, and quantiles of the rows that share leaves with a row."""

from __future__ import annotations

import numpy as np

from quernel._compile import compiled


@compiled()
def _next_random(state):  # type: ignore[no-untyped-def]
    """One step of xorshift64*: a pseudo-random integer below 2^31, from `state` of shape (1,), which is updated."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.int64((x * np.uint64(2685821657736338717)) >> np.uint64(33))


@compiled()
def _find_cut(codes, rows, products, weights, cells, state, local, mass, sums):  # type: ignore[no-untyped-def]
    """Best cut of one column at a node: (gain, cut); gain -1 if there is none. The last three are work space."""
    n = len(rows)
    low, high = codes[rows[0]], codes[rows[0]]
    for p in range(n):
        code = codes[rows[p]]
        local[p] = code
        low, high = min(low, code), max(high, code)
    if low == high:
        return -1.0, np.int64(0)
    shift, span = 0, np.int64(high) - np.int64(low)
    while (span >> shift) >= min(cells, n) - 1:
        shift += 1
    offset = _next_random(state) & ((1 << shift) - 1)
    base, n_cells = np.int64(low) - offset, ((span + offset) >> shift) + 1
    mass[:n_cells], sums[:n_cells] = 0.0, 0.0
    for p in range(n):
        c = (np.int64(local[p]) - base) >> shift
        mass[c] += weights[p]
        sums[c] += products[p]
    total_mass, total = mass[:n_cells].sum(), sums[:n_cells].sum()
    # The gain of a cut is  S_left^2 / W_left + S_right^2 / W_right.
    best, cut, left_mass, left = -1.0, np.int64(0), 0.0, 0.0
    for c in range(n_cells - 1):
        if mass[c] == 0:
            continue
        left_mass += mass[c]
        left += sums[c]
        gain = left**2 / left_mass + (total - left) ** 2 / (total_mass - left_mass)
        if gain > best:
            best, cut = gain, base + ((c + 1) << shift)
    return best, cut


@compiled()
def _partition(values, goes_left, scratch):  # type: ignore[no-untyped-def]
    """Values that go left, then the others, both in the order they had, in place."""
    m, rest = 0, 0
    for p in range(len(values)):
        if goes_left[p]:
            values[m] = values[p]
            m += 1
        else:
            scratch[rest] = values[p]
            rest += 1
    for p in range(rest):
        values[m + p] = scratch[p]


@compiled()
def grow_tree(codes, target, weight, order, tries, min_split, cells, seed):  # type: ignore[no-untyped-def]
    """Grow one tree on the rows in `order`, which is sorted by leaf; return column, cut, right, middle of inner nodes.

    Depth first, left before right, so that an inner left child comes right after its parent.
    """
    n, d = len(order), len(codes)
    column, cut = np.zeros(n, dtype=np.int16), np.zeros(n, dtype=np.uint16)
    right, middle = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int32)
    mass, sums, local = np.zeros(2 * cells), np.zeros(2 * cells), np.empty(n, dtype=np.uint16)
    state, columns = np.array([seed], dtype=np.uint64), np.arange(d)
    # Weights and weighted targets follow the order, so that a node reads them one after the other.
    weights, goes_left = weight[order], np.empty(n, dtype=np.bool_)
    products, scratch = weights * target[order], np.empty(n)
    stack = [(0, n, -1, False)]
    node = -1  # the last one
    while len(stack) > 0:
        a, b, parent, is_right = stack.pop()
        if b - a < min_split:
            continue
        best, best_column, best_cut, found = -1.0, -1, np.int64(0), 0
        rows = order[a:b]
        for j in range(d):  # draw columns without replacement until enough of them can be split
            other = j + _next_random(state) % (d - j)
            columns[j], columns[other] = columns[other], columns[j]
            gain, here = _find_cut(
                codes[columns[j]], rows, products[a:b], weights[a:b], cells, state, local, mass, sums
            )
            if gain < 0:
                continue
            found += 1
            if gain > best:
                best, best_column, best_cut = gain, columns[j], here
            if found >= tries:
                break
        if best_column < 0:
            continue
        node += 1
        if parent >= 0 and is_right:
            right[parent] = node
        elif parent >= 0:
            column[parent] = -1 - column[parent]
        m = a
        for p in range(b - a):
            goes_left[p] = codes[best_column, rows[p]] < best_cut
            m += goes_left[p]
        _partition(products[a:b], goes_left, scratch)
        _partition(weights[a:b], goes_left, scratch)
        _partition(rows, goes_left, scratch.view(np.int32))
        column[node], cut[node], middle[node] = -1 - best_column, best_cut, m
        stack.append((m, b, node, True))
        stack.append((a, m, node, False))
    size = node + 1
    return column[:size].copy(), cut[:size].copy(), right[:size].copy(), middle[:size].copy()


@compiled()
def prune_tree(column, cut, right, middle, n_rows, min_leaf):  # type: ignore[no-untyped-def]
    """The arrays of a tree without inner nodes whose children both have fewer than `min_leaf` rows."""
    new_column, new_cut = np.zeros(len(column), dtype=np.int16), np.zeros(len(column), dtype=np.uint16)
    new_right, new_middle = np.full(len(column), -1, dtype=np.int32), np.zeros(len(column), dtype=np.int32)
    stack, kept = [(np.int64(0 if len(column) > 0 else -1), np.int64(0), np.int64(n_rows), np.int64(-1), False)], -1
    while len(stack) > 0:
        node, a, b, parent, is_right = stack.pop()
        if node < 0 or max(middle[node] - a, b - middle[node]) < min_leaf:
            continue
        kept += 1
        if parent >= 0 and is_right:
            new_right[parent] = kept
        elif parent >= 0:
            new_column[parent] = -1 - new_column[parent]
        j, m = np.int64(column[node]), np.int64(middle[node])
        new_column[kept], new_cut[kept], new_middle[kept] = -1 - (j if j >= 0 else -1 - j), cut[node], m
        if b - m >= min_leaf:
            stack.append((np.int64(right[node]), m, b, np.int64(kept), True))
        if m - a >= min_leaf:
            stack.append((node + 1 if j >= 0 else np.int64(-1), a, m, np.int64(kept), False))
    size = kept + 1
    return new_column[:size].copy(), new_cut[:size].copy(), new_right[:size].copy(), new_middle[:size].copy()


@compiled()
def fill_quantiles(  # type: ignore[no-untyped-def]
    codes, column, cut, right, middle, first_node, first_row, order, min_leaf, per_leaf, skip, rank, value, weight,
    levels, out,
):  # fmt: skip
    """Write the quantiles of each row into `out` (n, q); see `Forest.quantiles`."""
    n, n_trees = len(codes), len(first_node) - 1
    most = n_trees * per_leaf
    found, share = np.empty((n, most), dtype=np.int64), np.empty((n, most))
    sizes, keys, scratch = np.zeros(n, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    # All rows descend one tree before the next, so that it stays in cache.
    for t in range(n_trees):
        root, n_rows = first_node[t], first_row[t + 1] - first_row[t]
        for i in range(n):
            if len(skip) > 0 and skip[i, t]:
                continue
            # 1. Descend.
            a, b = 0, n_rows
            node = 0 if root < first_node[t + 1] else -1
            while node >= 0:
                j, m = column[root + node], middle[root + node]
                if codes[i, j if j >= 0 else -1 - j] < cut[root + node]:
                    if m - a < min_leaf:
                        break
                    b, node = m, node + 1 if j >= 0 else -1
                else:
                    if b - m < min_leaf:
                        break
                    a, node = m, right[root + node]
            if b <= a:
                continue
            # 2. Collect rows of the leaf, with weights that sum to 1; of many, every so many.
            step = (b - a + per_leaf - 1) // per_leaf
            first, total = sizes[i], 0.0
            last = first
            for p in range(a, b, step):
                row = order[first_row[t] + p]
                found[i, last], share[i, last] = rank[row], weight[row]
                total += weight[row]
                last += 1
            for p in range(first, last):
                share[i, p] *= 1.0 / total
            sizes[i] = last
    for i in range(n):
        if sizes[i] == 0:
            out[i] = np.nan
        else:
            _sort_keys(found[i, : sizes[i]], keys, scratch)
            _read_quantiles(keys[: sizes[i]], share[i, : sizes[i]], value, levels, out[i])


@compiled()
def _sort_keys(found, keys, scratch):  # type: ignore[no-untyped-def]
    """Write rank * 2^24 + position into `keys`, ascending: a bucket sort, several times as fast as others here.

    Buckets are as many as there are entries, over the range of the ranks; those of many entries are sorted by numpy.
    """
    size = len(found)
    low, high = found[0], found[0]
    for p in range(size):
        low, high = min(low, found[p]), max(high, found[p])
    shift = 0
    while ((high - low) >> shift) >= size:
        shift += 1
    n_buckets = ((high - low) >> shift) + 1
    ends = scratch[:n_buckets]
    ends[:] = 0
    for p in range(size):
        ends[(found[p] - low) >> shift] += 1
    for c in range(1, n_buckets):
        ends[c] += ends[c - 1]
    for p in range(size - 1, -1, -1):
        c = (found[p] - low) >> shift
        ends[c] -= 1
        keys[ends[c]] = (found[p] << 24) | p
    for c in range(n_buckets):
        a, b = ends[c], ends[c + 1] if c + 1 < n_buckets else size
        if b - a > 16:
            keys[a:b].sort()
        else:
            for p in range(a + 1, b):
                key, q = keys[p], p
                while q > a and keys[q - 1] > key:
                    keys[q] = keys[q - 1]
                    q -= 1
                keys[q] = key


@compiled()
def _read_quantiles(keys, share, value, levels, out):  # type: ignore[no-untyped-def]
    """Quantiles of the values of these ranks and weights: linear between the middles of their probability masses."""
    size, inverse = len(keys), 1.0 / share.sum()
    k, below, last_middle, last_value = 0, 0.0, 0.0, 0.0
    for p in range(size):
        this, mass = value[keys[p] >> 24], share[keys[p] & 0xFFFFFF] * inverse
        middle = below + mass / 2
        while k < len(levels) and levels[k] <= middle:
            part = 1.0 if p == 0 else (levels[k] - last_middle) / (middle - last_middle)
            out[k] = this if p == 0 or this == last_value else last_value + part * (this - last_value)
            k += 1
        if k == len(levels):
            return
        below += mass
        last_middle, last_value = middle, this
    while k < len(levels):
        out[k] = last_value
        k += 1
