"""A first guess for models on a grid, from coarser and coarser grids.

One sweep tells a state only about its neighbours. So the policy after a few sweeps is wrong far from the places where
the rewards differ, and may even be unstable there: a bad beginning for policy iteration. In a merged model, whose
states are boxes of two points per side, distances are half as long. It drifts like the model itself, so its policy is
nearly right where the model is far from balance, and in three dimensions it has an eighth of the states. It is solved
roughly, beginning with a guess from a model that is coarser still, and its values are interpolated (nested iteration:
Hackbusch 1985, §5; Akian & Détournay 2012 on policy iteration).
"""

import numpy as np
import scipy.sparse as sp

from kemeny.tabular.mdp import MDP
from kemeny.tabular.multigrid import Parts, boxes, count_boxes, merge
from kemeny.tabular.rows import Rows
from kemeny.tabular.transitions import Stacked


def merged(mdp: MDP) -> MDP:
    """The model whose states are boxes of the grid; what a box does is the mean over its states.

    A box allows an action if one of its states does, and the mean is then over those that do.
    """
    assert mdp.grid is not None
    label, grid = boxes(mdp.grid)
    parts = Parts.of(label)
    size = np.diff(parts.starts)[:, None]
    rewards = np.add.reduceat(mdp.rewards[parts.order], parts.starts[:-1]) / size
    matrices = [merge(Rows.of(P), parts).matrix() for P in mdp.by_action]
    allowed = None
    if mdp.allowed is not None:
        share = np.add.reduceat(mdp.allowed[parts.order].astype(float), parts.starts[:-1]) / size
        allowed = share > 0
        share[~allowed] = 1.0
        rewards /= share
        for a, P in enumerate(matrices):
            P.data /= np.repeat(share[:, a], np.diff(P.indptr))
    stacked = Stacked(sp.vstack(matrices, format="csr"))
    return MDP(stacked, rewards, name=f"{mdp.name}, merged", allowed=allowed, grid=grid)


def interpolate(values: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """Values at the points of a grid from those of its boxes at their centres: linear, also beyond the last centres."""
    result = values.reshape([count_boxes(side) for side in grid])
    for axis, side in enumerate(grid):
        count = count_boxes(side)
        if count == 1:
            result = np.repeat(result, side, axis=axis)
            continue
        place = (np.arange(side) - 0.5) / 2  # in units of boxes, from the first centre
        left = np.clip(np.floor(place).astype(int), 0, count - 2)
        share = (place - left).reshape([-1 if k == axis else 1 for k in range(len(grid))])
        result = (1 - share) * result.take(left, axis) + share * result.take(left + 1, axis)
    return result.ravel()
