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
def _find_cut(codes, sign, rows, products, weights, cells, state, local, mass, sums):  # type: ignore[no-untyped-def]
    """Best cut of one column at a node: (gain, cut); gain -1 if there is none. The last three are work space.

    With a sign of 1 (or -1) the mean on the left must not be above (below) that on the right.

    Values are summed in cells of 2^shift codes, a histogram, and cuts are tried between cells: O(rows + cells) without
    sorting. The offset of the cells is random, so that all codes are cuts in some tree.
    """
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
        right, right_mass = total - left, total_mass - left_mass
        gain = left**2 / left_mass + right**2 / right_mass
        if gain > best and sign * (right / right_mass - left / left_mass) >= 0:
            best, cut = gain, base + ((c + 1) << shift)
    return best, cut


@compiled()
def _partition(values, goes_left, scratch):  # type: ignore[no-untyped-def]
    """Values that go left, then the others, both in the order they had, in place.

    So the rows of every node are one interval of the tree's order, and a node is two numbers.
    """
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
def grow_tree(codes, target, weight, order, signs, cell, tries, min_split, cells, seed):  # type: ignore[no-untyped-def]
    """Grow one tree on the rows in `order`, which is sorted by leaf; return column, cut, right, middle of inner nodes.

    Depth first, left before right, so that an inner left child comes right after its parent. Nodes of at least `cell`
    rows are split by columns of sign 0 if they can be, all others by columns with a sign, and in its direction.

    `column` is -1 - j where the left child is a leaf, and j where it is an inner node, which is then the next one.
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
    node, last = -1, 1 + np.any(signs != 0)  # node: the last one
    while len(stack) > 0:
        a, b, parent, is_right = stack.pop()
        if b - a < min_split:
            continue
        best, best_column, best_cut, found = -1.0, -1, np.int64(0), 0
        rows = order[a:b]
        for with_sign in range(b - a < cell, last):
            for j in range(d):  # draw columns without replacement until enough of them can be split
                other = j + _next_random(state) % (d - j)
                columns[j], columns[other] = columns[other], columns[j]
                sign = signs[columns[j]]
                if (sign != 0) != with_sign:
                    continue
                gain, here = _find_cut(
                    codes[columns[j]], sign, rows, products[a:b], weights[a:b], cells, state, local, mass, sums
                )
                if gain < 0:
                    continue
                found += 1
                if gain > best:
                    best, best_column, best_cut = gain, columns[j], here
                if found >= tries[with_sign]:
                    break
            if found > 0:
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
def cut_tree(column, cut, right, middle, rows, min_leaf, per_leaf, node_offset, member_offset):  # type: ignore[no-untyped-def]
    """Root, nodes (k, 3) and members of a tree in which rows descend while the next node has `min_leaf` rows.

    They are as in `QuantileForest`, for members that are row numbers; places are counted from the offsets. Of a leaf
    with many rows every so many are members, at most `per_leaf`.
    """
    nodes = np.empty((len(column), 3), dtype=np.int32)
    members = np.empty(2 * len(rows) + per_leaf, dtype=np.int32)
    kept, size = 0, 0
    # Node (-1 for a leaf), its rows, and where its place is to be written.
    stack = [(np.int64(0 if len(column) > 0 else -1), np.int64(0), np.int64(len(rows)), np.int64(-1), np.int64(0))]
    root = np.int32(0)
    while len(stack) > 0:
        node, a, b, parent, side = stack.pop()
        if node >= 0 and max(middle[node] - a, b - middle[node]) >= min_leaf:
            place = np.int32(node_offset + kept)
            j, m = np.int64(column[node]), np.int64(middle[node])
            nodes[kept, 0] = ((j if j >= 0 else -1 - j) << 16) | np.int64(cut[node])
            # Rows do not enter a child that is too small: they stay with all rows of this node.
            if b - m >= min_leaf:
                stack.append((np.int64(right[node]), m, b, np.int64(kept), np.int64(2)))
            else:
                stack.append((np.int64(-1), a, b, np.int64(kept), np.int64(2)))
            if m - a >= min_leaf:
                stack.append((node + 1 if j >= 0 else np.int64(-1), a, m, np.int64(kept), np.int64(1)))
            else:
                stack.append((np.int64(-1), a, b, np.int64(kept), np.int64(1)))
            kept += 1
        else:
            place, step = np.int32(-1 - (member_offset + size)), (b - a + per_leaf - 1) // per_leaf
            if size + per_leaf > len(members):
                members = np.append(members, np.empty_like(members))
            for p in range(a, b, step):
                members[size] = rows[p]
                size += 1
            members[size - 1] = -1 - members[size - 1]
        if parent < 0:
            root = place
        else:
            nodes[parent, side] = place
    return root, nodes[:kept].copy(), members[:size].copy()


@compiled()
def _summarise(ranks, weights, out):  # type: ignore[no-untyped-def]
    """Write the weighted quantiles of these ranks at the levels (i + 1/2) / k into `out` (k,).

    Leaves of equally many members can be compared and clipped member by member, as stochastic order asks.
    """
    order = np.argsort(ranks)
    total, below, p = weights.sum(), weights[order[0]], 0
    for i in range(len(out)):
        while p + 1 < len(ranks) and below * len(out) < (i + 0.5) * total:
            p += 1
            below += weights[order[p]]
        out[i] = ranks[order[p]]


@compiled()
def cut_ordered_tree(column, cut, right, middle, known, signs, min_leaf, k, node_offset, member_offset):  # type: ignore[no-untyped-def]
    """As `cut_tree`, for members that are ranks, k of every leaf, which are ordered along columns with a sign.

    `known` are the ranks and the weights of the rows.

    The members of a leaf are quantiles of the `ranks` of its rows. Where a node is split by a column with a sign, all
    those on the one side are clipped to be at most, on the other side at least the mean of both sides.
    """
    ranks, weights = known
    nodes = np.empty((len(column), 3), dtype=np.int32)
    members = np.empty((2 * len(column) + 1) * k, dtype=np.int32)
    bounds = np.empty((2 * len(column) + 2, 2, k), dtype=np.int32)  # of the entries of the stack
    bounds[0, 0], bounds[0, 1] = -1, 2**31 - 1
    low, high = np.empty(k, dtype=np.int32), np.empty(k, dtype=np.int32)
    own, other = np.empty(k, dtype=np.int32), np.empty(k, dtype=np.int32)
    kept, size = 0, 0
    stack = [(np.int64(0 if len(column) > 0 else -1), np.int64(0), np.int64(len(ranks)), np.int64(-1), np.int64(0))]
    root = np.int32(0)
    while len(stack) > 0:
        node, a, b, parent, side = stack.pop()
        low[:], high[:] = bounds[len(stack), 0], bounds[len(stack), 1]
        if node >= 0 and max(middle[node] - a, b - middle[node]) >= min_leaf:
            place = np.int32(node_offset + kept)
            j, m = np.int64(column[node]), np.int64(middle[node])
            inner_left, j = j >= 0, (j if j >= 0 else -1 - j)
            nodes[kept, 0] = (j << 16) | np.int64(cut[node])
            first = len(stack)
            bounds[first : first + 2, 0], bounds[first : first + 2, 1] = low, high
            right_start, left_end = (m if b - m >= min_leaf else a), (m if m - a >= min_leaf else b)
            right_child = np.int64(right[node]) if right_start == m else np.int64(-1)
            left_child = node + 1 if inner_left and left_end == m else np.int64(-1)
            stack.append((right_child, right_start, b, np.int64(kept), np.int64(2)))
            stack.append((left_child, a, left_end, np.int64(kept), np.int64(1)))
            if signs[j] != 0:
                _summarise(ranks[a:left_end], weights[a:left_end], own)
                _summarise(ranks[right_start:b], weights[right_start:b], other)
                for i in range(k):
                    between = min(max((own[i] + other[i]) // 2, low[i]), high[i])
                    # The right entry is the first; with a sign of 1 what is right is above.
                    bounds[first + (signs[j] < 0), 0, i] = between
                    bounds[first + (signs[j] > 0), 1, i] = between
            kept += 1
        else:
            place = np.int32(-1 - (member_offset + size))
            _summarise(ranks[a:b], weights[a:b], own)
            for i in range(k):
                members[size + i] = min(max(own[i], low[i]), high[i])
            size += k
            members[size - 1] = -1 - members[size - 1]
        if parent < 0:
            root = place
        else:
            nodes[parent, side] = place
    return root, nodes[:kept].copy(), members[:size].copy()


@compiled()
def _find_leaves(codes, root, nodes, leaves):  # type: ignore[no-untyped-def]
    """Write the first member of the leaf in which each row ends in each tree into `leaves` (n, T).

    A place is an inner node if it is not negative, and otherwise -1 minus that of a member.
    """
    n = len(codes)
    place, below = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int64)
    # All rows take one step before the next: steps of different rows do not wait for one another.
    for t in range(len(root)):
        place[:] = root[t]
        size = n if root[t] >= 0 else 0
        for i in range(n):
            below[i] = i
        while size > 0:
            kept = 0
            for k in range(size):
                i = below[k]
                split = nodes[place[i], 0]
                place[i] = nodes[place[i], 1 + (codes[i, split >> 16] >= (split & 0xFFFF))]
                below[kept] = i
                kept += place[i] >= 0
            size = kept
        for i in range(n):
            leaves[i, t] = -1 - place[i]


@compiled()
def fill_quantiles(codes, root, nodes, members, mass, per_leaf, skip, value, levels, out):  # type: ignore[no-untyped-def]
    """Write the quantiles of each row into `out` (n, q); see `QuantileForest.quantiles`.

    Members end with a negative one in each leaf. Every tree has the mass 1, whatever the size of the leaf: these are
    the weights of Meinshausen (2006).
    """
    n, n_trees = len(codes), len(root)
    most = n_trees * per_leaf
    leaves = np.empty((n, n_trees), dtype=np.int32)
    _find_leaves(codes, root, nodes, leaves)
    keys, masses, work = np.empty(most, dtype=np.int64), np.empty(most), np.empty((3, most), dtype=np.int64)
    before = np.empty(most)
    for i in range(n):
        size, trees = 0, 0
        for t in range(n_trees):
            if len(skip) > 0 and skip[i, t]:
                continue
            trees += 1
            first, last = size, np.int64(leaves[i, t])
            while True:
                member = np.int64(members[last])
                keys[size] = ((member if member >= 0 else -1 - member) << 24) | size
                if len(mass) > 0:
                    masses[size] = mass[last]
                size += 1
                last += 1
                if member < 0:
                    break
            if len(mass) == 0:
                masses[first:size] = 1.0 / (size - first)
        if trees == 0:
            out[i] = np.nan
        else:
            _read_quantiles(keys[:size], masses[:size], trees, value, levels, before, work, out[i])


@compiled()
def _read_quantiles(keys, masses, total, value, levels, before, work, out):  # type: ignore[no-untyped-def]
    """Quantiles of the values of keys 2^24 rank + p of masses[p]: linear between the middles of the masses.

    Keys are put into as many buckets as there are entries, over the range of the ranks, and only the buckets in which a
    level lies, with their neighbours, are sorted. `before` (n,) and `work` (3, n) are work space.
    """
    size = len(keys)
    low, high = keys[0], keys[0]
    for p in range(size):
        low, high = min(low, keys[p]), max(high, keys[p])
    shift = 24
    while ((high - low) >> shift) >= size:
        shift += 1
    n_buckets = ((high - low) >> shift) + 1
    counts, starts, ordered = work[0], work[1], work[2]
    # 1. Number of entries and mass of each bucket.
    counts[:n_buckets], starts[:n_buckets], before[:n_buckets] = 0, -1, 0.0
    for p in range(size):
        c = (keys[p] - low) >> shift
        counts[c] += 1
        before[c] += masses[p]
    # 2. Mass before each bucket, and where the entries of those that are needed begin in `ordered`.
    k, below, last, end, crowded, is_next = 0, 0.0, -1, 0, False, False
    for c in range(n_buckets):
        if counts[c] == 0:
            continue
        below, before[c] = below + before[c], below
        has_level = False
        while k < len(levels) and levels[k] * total <= below:
            has_level = True
            k += 1
        if has_level and last >= 0 and starts[last] < 0:
            starts[last] = end
            end += counts[last]
            crowded |= counts[last] > 16
        if has_level or is_next:
            starts[c] = end
            end += counts[c]
            crowded |= counts[c] > 16
        if k == len(levels) and not has_level:
            break
        last, is_next = c, has_level
    if k < len(levels) and starts[last] < 0:  # a level that rounding error puts beyond all masses
        starts[last] = end
        end += counts[last]
    # 3. These entries, ascending.
    for p in range(size):
        c = (keys[p] - low) >> shift
        if starts[c] >= 0:
            ordered[starts[c]] = keys[p]
            starts[c] += 1
    if crowded:
        ordered[:end].sort()
    else:
        for p in range(1, end):
            key, q = ordered[p], p
            while q > 0 and ordered[q - 1] > key:
                ordered[q] = ordered[q - 1]
                q -= 1
            ordered[q] = key
    # 4. Levels between the middles of neighbouring masses.
    k, bucket, below, last_middle, last_value = 0, -1, 0.0, 0.0, 0.0
    for p in range(end):
        c = (ordered[p] - low) >> shift
        if c != bucket:
            bucket, below = c, before[c]
        this, mass = value[ordered[p] >> 24], masses[ordered[p] & 0xFFFFFF]
        middle = (below + mass / 2) / total
        while k < len(levels) and levels[k] <= middle:
            part = 1.0 if p == 0 else (levels[k] - last_middle) / (middle - last_middle)
            # Monotone in both values, rounding included.
            out[k] = this if p == 0 else min(max((1 - part) * last_value + part * this, last_value), this)
            k += 1
        below += mass
        last_middle, last_value = middle, this
    while k < len(levels):
        out[k] = last_value
        k += 1
