"""Networks of queues with published optima, truncated and uniformised: models that mix slowly and may be very large.

A state is the number of jobs in each queue, and every queue holds 0 … `truncation` jobs. States are numbered as
`numpy.ravel_multi_index` numbers the points of a grid: the last queue changes fastest. The model carries the shape of
this grid as `MDP.grid`, and as `MDP.edge` the states in which some queue is full. It starts empty, in state 0.

All service is exponential and preemptive. The chain is uniformised: a step of the model lasts, on average, one unit of
time divided by the sum of all rates. The reward is minus the cost per unit of *time*, so the gain is minus the mean
cost.

Jobs that find their queue full: an arrival is lost, and a job that ends service at one station but finds the next queue
full stays where it is and is served once more. The mean cost tends to that of the unlimited queues from below.

A function of the truncation, such as `functools.partial(criss_cross, "BH")` or `lambda n: n_model(truncation=n)`, is a
family of models for those who raise the truncation until the answer stands still.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular.mdp import MDP

ROUNDING = 1e-12
"""A share of the clock's rate below which the rate of staying is taken for a rounding error of a sum that is 0."""

CRISS_CROSS = {
    "IL": (0.3, 1.5),
    "BL": (0.3, 1.0),
    "IM": (0.6, 1.5),
    "BM": (0.6, 1.0),
    "IH": (0.9, 1.5),
    "BH": (0.9, 1.0),
}
"""The arrival rate and the rate of station 2 in each regime: imbalanced or balanced, of light, medium or heavy load."""


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """Something that happens at a constant rate, in the states where it can happen."""

    change: tuple[int, ...]
    """What is added to the length of each queue."""

    rate: float
    where: np.ndarray
    """Whether it can happen, one boolean per state."""


def criss_cross(
    regime: str = "IH",
    truncation: int = 40,
    *,
    arrival: float | None = None,
    mu2: float | None = None,
    work_conserving: bool = False,
) -> MDP:
    """The criss-cross network (Harrison & Wein 1989) in a regime of Martins, Shreve & Soner (1996).

    Station 1 serves class 1 at rate 2, whose jobs go on to class 2, and class 3 at rate 2, whose jobs leave. Station 2
    serves class 2 at rate μ₂, and they leave. Jobs arrive in classes 1 and 3 at rate λ each. The cost is the number of
    jobs. Action 0 serves class 1 at station 1, action 1 class 3. `regime` is IL, BL, IM, BM, IH or BH: μ₂ = 1.5
    (imbalanced) or 1 (balanced), λ = 0.3, 0.6 or 0.9 (light, medium, heavy). `arrival` and `mu2` replace λ and μ₂.

    An action that chooses an empty class idles; with `work_conserving` it serves the other class. Without a truncation
    idling does not pay. In a truncated network it does, near the edge: a full queue loses arrivals, which is cheap. So
    the two models have the same limit, and the work-conserving one is nearer to it (BH at 60 per queue: 15.004 and
    15.042 jobs; the limit is 15.095).
    """
    if regime not in CRISS_CROSS:
        raise UserError(f"The criss-cross network has no regime {regime!r}; its regimes are {', '.join(CRISS_CROSS)}.")
    arrival = CRISS_CROSS[regime][0] if arrival is None else arrival
    mu2 = CRISS_CROSS[regime][1] if mu2 is None else mu2
    check_rates(arrival=arrival, mu2=mu2)
    grid = make_grid(truncation, queues=3)
    first, second, third = lengths(grid)
    always = [
        Move((1, 0, 0), arrival, first < truncation),
        Move((0, 0, 1), arrival, third < truncation),
        Move((0, -1, 0), mu2, second > 0),
    ]
    serves_first = [first > 0, np.zeros(len(first), dtype=bool)]
    serves_third = [np.zeros(len(third), dtype=bool), third > 0]
    if work_conserving:
        serves_first[1] = (first > 0) & (third == 0)
        serves_third[0] = (third > 0) & (first == 0)
    actions = [
        [*always, Move((-1, 1, 0), 2.0, serves & (second < truncation)), Move((0, 0, -1), 2.0, third_served)]
        for serves, third_served in zip(serves_first, serves_third, strict=True)
    ]
    cost = (first + second + third).astype(float)
    return uniformised("criss_cross", grid, actions, clock=2 * arrival + 2.0 + mu2, cost=cost)


def n_model(truncation: int = 100, load: float = 0.95) -> MDP:
    """The N-model (Harrison 1998; rates of Dai & Gluzman 2022): a second server may help the first.

    Jobs of class 1 arrive at rate 1.3·load and jobs of class 2 at rate 0.4·load. Server 1 serves class 1 at rate 1.
    Server 2 serves class 2 at rate 1 (action 0) or class 1 at rate ½ (action 1), the latter only if there are at least
    two jobs of class 1; if it cannot do what the action says, it does the other. The cost is 3·x₁ + x₂.
    """
    check_rates(load=load)
    grid = make_grid(truncation, queues=2)
    first, second = lengths(grid)
    always = [
        Move((1, 0), 1.3 * load, first < truncation),
        Move((0, 1), 0.4 * load, second < truncation),
    ]
    actions = []
    for helps in ((first >= 2) & (second == 0), first >= 2):
        alone = Move((-1, 0), 1.0, (first > 0) & ~helps)
        together = Move((-1, 0), 1.5, helps)
        other = Move((0, -1), 1.0, ~helps & (second > 0))
        actions.append([*always, alone, together, other])
    cost = 3.0 * first + second
    return uniformised("n_model", grid, actions, clock=1.7 * load + 2.0, cost=cost)


# The grid of the states


def make_grid(truncation: int, queues: int) -> tuple[int, ...]:
    """The number of lengths of each queue: 0 … truncation."""
    if truncation < 2:
        raise UserError(f"The truncation is the largest length of a queue and must be at least 2, not {truncation}.")
    return (truncation + 1,) * queues


def lengths(grid: tuple[int, ...]) -> np.ndarray:
    """The length of each queue in every state: queues × states."""
    return np.indices(grid, dtype=np.int16 if max(grid) < 2**15 else np.int32).reshape(len(grid), -1)


def edge_of(grid: tuple[int, ...]) -> np.ndarray:
    """Whether some queue is full, one boolean per state."""
    inside = np.zeros(grid, dtype=bool)
    inside[tuple(slice(side - 1) for side in grid)] = True
    return ~inside.ravel()


# The model


def uniformised(
    name: str, grid: tuple[int, ...], actions: Sequence[Sequence[Move]], clock: float, cost: np.ndarray
) -> MDP:
    """The model whose moves of each action happen at their rates; `clock` is at least the sum of the rates."""
    blocks = [transitions(grid, moves, clock) for moves in actions]
    empty = np.zeros(len(cost))
    empty[0] = 1.0
    return MDP(blocks, -cost, start=empty, name=name, grid=grid, edge=edge_of(grid))


def transitions(grid: tuple[int, ...], moves: Sequence[Move], clock: float) -> sp.csr_array:
    """I + Q/clock, with the columns of each row in order: no entry is written twice and none is sorted."""
    n = int(np.prod(grid))
    strides = np.cumprod((1, *grid[:0:-1]))[::-1]
    stay = np.full(n, clock)
    for move in moves:
        stay -= move.rate * move.where
    stay /= clock
    stays = stay > ROUNDING
    parts = [(int(np.dot(move.change, strides)), move.rate / clock, move.where) for move in moves] + [(0, stay, stays)]
    parts.sort(key=lambda part: part[0])

    pointers = np.zeros(n + 1, dtype=np.int64)
    for _, _, where in parts:
        pointers[1:] += where
    np.cumsum(pointers, out=pointers)
    index = np.int32 if pointers[-1] < 2**31 else np.int64
    free = pointers[:-1].astype(index)  # the next free place in each row
    data, columns = np.empty(pointers[-1]), np.empty(pointers[-1], dtype=index)
    for offset, probability, where in parts:
        states = np.flatnonzero(where)
        place = free[states]
        data[place] = probability[states] if isinstance(probability, np.ndarray) else probability
        columns[place] = states + offset
        free[states] += 1
    matrix = sp.csr_array((data, columns, pointers.astype(index)), shape=(n, n))
    matrix.has_canonical_format = True
    return matrix


def check_rates(**rates: float) -> None:
    """Raise an error unless every rate is a positive number."""
    for name, rate in rates.items():
        if not 0 < rate < np.inf:
            raise UserError(f"{name} must be a positive number, not {rate:g}.")
