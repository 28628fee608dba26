"""The loops over millions of states, compiled by Numba.

Every function works on the states `begin` … `end` − 1 only and lets other threads run meanwhile (`blocks` calls it for
one block after another). Numba compiles a function when it is first called, which takes a second or less, and keeps the
result on disk for the next process.

A chain is given by the arrays of a sparse matrix (`pointers`, `columns`, `weights`) and `rows`: the row of each state.
So the chain of a policy is the model's own matrix with some of its rows, and nothing is copied. Indices are unsigned
where they can be (`unsigned`): then Numba need not ask of each whether it is negative, which takes a third of the time.
"""

import numba
import numpy as np

compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"nsz", "contract"})
without_nan = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"nsz", "contract", "nnan"})
"""For loops in which nothing can be undefined: their minimum and maximum take one instruction."""


def unsigned(indices: np.ndarray) -> np.ndarray:
    """Indices of 32 bits as unsigned ones, without a copy; others as they are."""
    return indices.view(np.uint32) if indices.dtype == np.int32 else indices


def signed(indices: np.ndarray) -> np.ndarray:
    """The opposite of `unsigned`, for SciPy."""
    return indices.view(np.int32) if indices.dtype == np.uint32 else indices


# Sweeps over all actions. Row a·n + s of the matrix belongs to action a in state s; an empty row is a forbidden pair.


@without_nan
def backup(pointers, columns, weights, rewards, h, begin, end, best):
    """max_a [r + P·h] into `best`; returns the smallest and the largest entry of best − h, and the sum."""
    n, low, high, total = len(h), np.inf, -np.inf, 0.0
    for s in range(begin, end):
        top = -np.inf
        for a in range(rewards.shape[1]):
            first, last = pointers[a * n + s], pointers[a * n + s + 1]
            if first == last:
                continue
            value = rewards[s, a]
            for k in range(first, last):
                value += weights[k] * h[columns[k]]
            top = max(top, value)
        best[s] = top
        rise = top - h[s]
        low, high, total = min(low, rise), max(high, rise), total + rise
    return low, high, total


@without_nan
def improve(pointers, columns, weights, rewards, h, begin, end, best, policy, margin):
    """As `backup`, and the best actions into `policy`; what it holds stays unless another is better by `margin`.

    A negative entry of `policy` is no action yet.
    """
    n, low, high, total = len(h), np.inf, -np.inf, 0.0
    for s in range(begin, end):
        top, kept, chosen, present = -np.inf, -np.inf, 0, policy[s]
        for a in range(rewards.shape[1]):
            first, last = pointers[a * n + s], pointers[a * n + s + 1]
            if first == last:
                continue
            value = rewards[s, a]
            for k in range(first, last):
                value += weights[k] * h[columns[k]]
            if value > top:
                top, chosen = value, a
            if a == present:
                kept = value
        if present < 0 or top > kept + margin:
            policy[s] = chosen
        best[s] = top
        rise = top - h[s]
        low, high, total = min(low, rise), max(high, rise), total + rise
    return low, high, total


@without_nan
def chain_step(pointers, columns, weights, rows, reward, h, step, begin, end, out):
    """h + step·(r + P·h − h) into `out`; returns the smallest and the largest entry of r + P·h − h."""
    low, high = np.inf, -np.inf
    for s in range(begin, end):
        rise = reward[s] - h[s]
        for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
            rise += weights[k] * h[columns[k]]
        out[s] = h[s] + step * rise
        low, high = min(low, rise), max(high, rise)
    return low, high


# Coarser chains. The states that are merged into state c are order[starts[c]] … order[starts[c + 1] − 1].


@compiled
def restrict(pointers, columns, weights, rows, right, x, order, starts, is_mean, begin, end, below):
    """What x leaves of the right-hand side, right − (I − P)·x, as sums or means over the merged states."""
    for c in range(begin, end):
        total = 0.0
        for i in range(starts[c], starts[c + 1]):
            s = order[i]
            rest = right[s] - x[s]
            for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
                rest += weights[k] * x[columns[k]]
            total += rest
        below[c] = total / (starts[c + 1] - starts[c]) if is_mean else total


@compiled
def residual(pointers, columns, weights, rows, right, x, begin, end, out):
    """right − (I − P)·x into `out`."""
    for s in range(begin, end):
        rest = right[s] - x[s]
        for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
            rest += weights[k] * x[columns[k]]
        out[s] = rest


@compiled
def lift(coarse, label, starts, is_mean, begin, end, x):
    """Add the values of the merged states to x, or to each state its share of them."""
    for s in range(begin, end):
        c = label[s]
        x[s] += coarse[c] if is_mean else coarse[c] / (starts[c + 1] - starts[c])


@compiled
def smooth(pointers, columns, weights, rows, right, x, from_zero, forward, begin, end, out):
    """One Gauss–Seidel step within the block, from x into `out`: each state sees the new values of those before it.

    The values of other blocks are those of x, so that the result does not depend on which block is first. If
    `from_zero`, x is taken to be 0, whatever it holds.
    """
    for s in range(begin, end):
        out[s] = 0.0 if from_zero else x[s]
    for i in range(end - begin):
        s = begin + i if forward else end - 1 - i
        value, leaves = right[s], 1.0
        for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
            j = columns[k]
            if j == s:
                leaves -= weights[k]
            elif begin <= j < end:
                value += weights[k] * out[j]
            elif not from_zero:
                value += weights[k] * x[j]
        out[s] = value / leaves if leaves > 0 else value


@compiled
def merged_lengths(pointers, columns, rows, label, order, starts, begin, end, lengths):
    """The number of merged states to which each merged state leads, into `lengths`."""
    seen = np.full(len(starts) - 1, -1, dtype=np.int32)
    for c in range(begin, end):
        count = 0
        for i in range(starts[c], starts[c + 1]):
            row = rows[order[i]]
            for k in range(pointers[row], pointers[row + 1]):
                target = label[columns[k]]
                if seen[target] != c:
                    seen[target] = c
                    count += 1
        lengths[c] = count


@compiled
def merged_rows(
    pointers, columns, weights, rows, label, order, starts, begin, end, new_pointers, new_columns, new_weights
):
    """The rows of the merged chain: the means of those of its states."""
    place = np.full(len(starts) - 1, -1, dtype=np.int64)
    for c in range(begin, end):
        first = free = new_pointers[c]
        share = 1.0 / (starts[c + 1] - starts[c])
        for i in range(starts[c], starts[c + 1]):
            row = rows[order[i]]
            for k in range(pointers[row], pointers[row + 1]):
                target = label[columns[k]]
                if place[target] < first:
                    place[target] = free
                    new_columns[free] = target
                    new_weights[free] = 0.0
                    free += 1
                new_weights[place[target]] += share * weights[k]


# BiCGSTAB, with the names of `bicgstab`.


@compiled
def begin_solve(pointers, columns, weights, rows, right, x, mean, begin, end, r):
    """r = right − (x − P·x + mean); returns its smallest and largest entry and its square."""
    low, high, square = np.inf, -np.inf, 0.0
    for s in range(begin, end):
        rest = right[s] - x[s] - mean
        for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
            rest += weights[k] * x[columns[k]]
        r[s] = rest
        square += rest * rest
        if rest < low:
            low = rest
        if rest > high:
            high = rest
    return low, high, square


@compiled
def turn(p, v, r, beta, omega, begin, end):
    """p = r + beta·(p − omega·v)."""
    for s in range(begin, end):
        p[s] = r[s] + beta * (p[s] - omega * v[s])


@compiled
def image(pointers, columns, weights, rows, x, mean, other, begin, end, out):
    """x − P·x + mean into `out`; returns its product with `other`, and its square."""
    cross, square = 0.0, 0.0
    for s in range(begin, end):
        value = x[s] + mean
        for k in range(pointers[rows[s]], pointers[rows[s] + 1]):
            value -= weights[k] * x[columns[k]]
        out[s] = value
        cross += other[s] * value
        square += value * value
    return cross, square


@compiled
def advance(x, r, along, v, shadow, alpha, begin, end):
    """x += alpha·along, r −= alpha·v; returns shadow·r, r·r, and the smallest and largest entry of r."""
    low, high, cross, square = np.inf, -np.inf, 0.0, 0.0
    for s in range(begin, end):
        x[s] += alpha * along[s]
        rest = r[s] - alpha * v[s]
        r[s] = rest
        if rest < low:
            low = rest
        if rest > high:
            high = rest
        cross += shadow[s] * rest
        square += rest * rest
    return cross, square, low, high
