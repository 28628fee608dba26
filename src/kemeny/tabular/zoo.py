"""Models with known solutions, each with its source.

Chains are returned as `Chain`, decision problems as `MDP`. `MODELS` lists the decision problems by name, for
`kemeny exact --zoo`. The networks of queues, which are large, are made in `queues.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import binom

from kemeny.errors import UserError
from kemeny.tabular.chain import Chain
from kemeny.tabular.mdp import MDP
from kemeny.tabular.queues import criss_cross, n_model

# Chains


def two_state(a: float = 0.3, b: float = 0.1) -> Chain:
    """0 → 1 with probability a, 1 → 0 with probability b. d = (b, a)/(a+b), λ = 1−a−b, κ = 1 + 1/(a+b)."""
    return Chain([[1 - a, a], [b, 1 - b]])


def cycle(n: int = 5) -> Chain:
    """A deterministic cycle: period n, d uniform, M(s, t) = number of steps from s to t, κ = (n+1)/2."""
    return Chain(np.roll(np.eye(n), 1, axis=1))


def birth_death(n: int = 20, up: float = 0.3, down: float = 0.4) -> Chain:
    """The uniformised M/M/1/K queue, K = n−1. d(s) ∝ (up/down)ˢ (Kleinrock 1975, §3.6).

    Its eigenvalues are 1 and 1 − up − down + 2√(up·down)·cos(πj/n) for j = 1 … n−1, so κ is a finite sum.
    """
    return Chain(sp.csr_array(_birth_death_matrix(n, np.full(n, up), np.full(n, down))))


def nearly_decomposable(link: float = 1e-10) -> Chain:
    """Courtois's 8-state matrix: three blocks with small probabilities between them (Courtois 1977).

    The published probabilities between blocks, of size 1e-4 to 1e-3, are multiplied by `link`.
    """
    P = np.array(
        [
            [0.85, 0.0, 0.149, 9e-4, 0.0, 5e-5, 0.0, 5e-5],
            [0.1, 0.65, 0.249, 0.0, 9e-4, 5e-5, 0.0, 5e-5],
            [0.1, 0.8, 0.0996, 3e-4, 0.0, 0.0, 1e-4, 0.0],
            [0.0, 4e-4, 0.0, 0.7, 0.2995, 0.0, 1e-4, 0.0],
            [5e-4, 0.0, 4e-4, 0.399, 0.6, 1e-4, 0.0, 0.0],
            [0.0, 5e-5, 0.0, 0.0, 5e-5, 0.6, 0.2499, 0.15],
            [3e-5, 0.0, 3e-5, 4e-5, 0.0, 0.1, 0.8, 0.0999],
            [0.0, 5e-5, 0.0, 0.0, 5e-5, 0.1999, 0.25, 0.55],
        ]
    )
    block = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    P = np.where(block[:, None] == block[None, :], P, link * P)
    np.fill_diagonal(P, 0.0)
    np.fill_diagonal(P, 1 - P.sum(axis=1))
    return Chain(P)


# Decision problems


def two_state_mdp(slow: float = 0.1, fast: float = 0.6) -> MDP:
    """A poor state (0) and a rich state (1), each with an idle action (0) and a busy action (1).

    State 1 pays 1 per step. The busy action costs 0.2; it moves from 0 to 1 with probability `fast` instead of `slow`,
    and from 1 to 0 with probability 0.1 instead of 0.3. Always busy: ρ = fast/(fast + 0.1) − 0.2; always idle:
    ρ = slow/(slow + 0.3).
    """
    P = [[[1 - slow, slow], [1 - fast, fast]], [[0.3, 0.7], [0.1, 0.9]]]
    r = [[0.0, -0.2], [1.0, 0.8]]
    return MDP(P, r, name="two_state")


def riverswim(n: int = 6) -> MDP:
    """RiverSwim: right often fails and pays 1 in the last state; left always succeeds and pays 0.005 in the first.

    From Strehl & Littman (2008), with the probabilities of Osband et al. (2013): right moves right with 0.35, stays
    with 0.6 and moves left with 0.05. The best policy always swims right; its chain is a birth–death chain, so its gain
    has a closed form.
    """
    P, r = np.zeros((n, 2, n)), np.zeros((n, 2))
    for s in range(n):
        P[s, 0, max(s - 1, 0)] = 1.0
        P[s, 1] = 0.05 * np.eye(n)[max(s - 1, 0)] + 0.6 * np.eye(n)[s] + 0.35 * np.eye(n)[min(s + 1, n - 1)]
    P[0, 1] = 0.4 * np.eye(n)[0] + 0.6 * np.eye(n)[1]
    P[n - 1, 1] = 0.4 * np.eye(n)[n - 2] + 0.6 * np.eye(n)[n - 1]
    r[0, 0], r[n - 1, 1] = 0.005, 1.0
    return MDP(P, r, name="riverswim")


def access_control(servers: int = 10, free: float = 0.06, payments: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> MDP:
    """The access-control queue of Sutton & Barto (2nd edition, Example 10.2).

    State: number of free servers × priority of the customer at the head of the queue. Action 1 accepts the customer,
    who pays according to priority (`payments`) and takes a server; action 0 rejects. Without a free server both reject.
    Each busy server, including the one just taken, becomes free with probability `free` before the next customer
    arrives. All priorities are equally likely.
    """
    kinds = len(payments)
    P = np.zeros((servers + 1, kinds, 2, servers + 1, kinds))
    r = np.zeros((servers + 1, kinds, 2))
    for idle in range(servers + 1):
        for action in (0, 1):
            taken = action if idle > 0 else 0
            busy = servers - idle + taken
            released = np.arange(busy + 1)
            P[idle, :, action, idle - taken + released, :] = (binom.pmf(released, busy, free) / kinds)[:, None, None]
            r[idle, :, action] = taken * np.asarray(payments)
    states = (servers + 1) * kinds
    return MDP(normalised(P.reshape(states, 2, states)), r.reshape(states, 2), name="access_control")


def inventory(capacity: int = 3) -> MDP:
    """The stochastic inventory problem of Puterman (1994, §3.2.2): order a units, demand is 0, 1 or 2.

    An order of a > 0 units costs 4 + 2a, holding u units costs u per period, each unit sold pays 8, and the
    probabilities of the demands are ¼, ½, ¼. An order that exceeds the free capacity is reduced to it.
    """
    demand = np.array([0.25, 0.5, 0.25])
    n = capacity + 1
    P, r = np.zeros((n, n, n)), np.zeros((n, n))
    for s in range(n):
        for a in range(n):
            order = min(a, capacity - s)
            stock = s + order
            for d, probability in enumerate(demand):
                P[s, a, max(stock - d, 0)] += probability
                r[s, a] += probability * 8 * min(d, stock)
            r[s, a] -= (4 + 2 * order if order else 0) + stock
    return MDP(P, r, name="inventory")


def machine_replacement(n: int = 8, wear: float = 0.4, price: float = 5.0) -> MDP:
    """Keep a machine that wears out or replace it: the best policy is a control limit (Derman 1963; Puterman §4.7.5).

    A machine in state s earns n − 1 − s. Action 0 keeps it: it wears to state s + 1 with probability `wear`, and stays
    in the last state. Action 1 replaces it: this costs `price`, and a new machine earns n − 1 and may wear at once.
    """
    P, r = np.zeros((n, 2, n)), np.zeros((n, 2))
    for s in range(n):
        P[s, 0, s] += 1 - wear
        P[s, 0, min(s + 1, n - 1)] += wear
        P[s, 1, 0], P[s, 1, 1] = 1 - wear, wear
        r[s] = n - 1 - s, n - 1 - price
    return MDP(P, r, name="machine_replacement")


def queue_admission(
    capacity: int = 10, arrival: float = 0.5, service: float = 0.4, fee: float = 5.0, waiting: float = 1.0
) -> MDP:
    """Admit customers or reject them (Naor 1969, in discrete time): admission pays a reward, waiting is a *cost*.

    State: number of customers in the queue × whether another one asks to enter. Action 1 admits, action 0 rejects.
    The reward is `fee` per admission. The cost, a separate signal, is `waiting` per step and customer in the queue
    after admission: with the default, 1, the average cost is the mean length of the queue. A full queue maximises the
    fees, so a limit on the average cost binds. At the end of a step one customer leaves with probability `service`, and
    with probability `arrival` another one asks to enter.
    """
    n = capacity + 1
    P = np.zeros((n, 2, 2, n, 2))
    r, c = np.zeros((n, 2, 2)), np.zeros((n, 2, 2))
    for present in range(n):
        for asking in (0, 1):
            for action in (0, 1):
                admitted = int(action and asking and present < capacity)
                length = present + admitted
                r[present, asking, action] = fee * admitted
                c[present, asking, action] = waiting * length
                served = service if length > 0 else 0.0
                P[present, asking, action, length] += (1 - served) * np.array([1 - arrival, arrival])
                P[present, asking, action, max(length - 1, 0)] += served * np.array([1 - arrival, arrival])
    states = 2 * n
    return MDP(
        P.reshape(states, 2, states), r.reshape(states, 2), costs=c.reshape(states, 2), name="queue_admission",
        start=np.eye(states)[0],
    )  # fmt: skip


def periodic(n: int = 4) -> MDP:
    """A cycle of period n; state 0 pays 1 for action 0 and 2 for action 1, nothing else pays: the best gain is 2/n."""
    P = np.repeat(np.roll(np.eye(n), 1, axis=1)[:, None, :], 2, axis=1)
    r = np.zeros((n, 2))
    r[0] = 1.0, 2.0
    return MDP(P, r, name="periodic")


def transient(leave: float = 0.25) -> MDP:
    """A unichain model: states 0 and 1 are transient, 2 and 3 recurrent; the best gain is 3/4 · 1 + 1/4 · 2 = 1.25.

    Every action leaves {0, 1} with probability `leave` per step. In states 2 and 3, action 0 leads to state 3 with
    probability ¼ and action 1 with ½, otherwise to state 2. Action 0 pays 1 in state 2 and 2 in state 3; action 1 pays
    nothing there.
    """
    P = np.zeros((4, 2, 4))
    P[0, :, 1], P[0, :, 2] = 1 - leave, leave
    P[1, :, 0], P[1, :, 3] = 1 - leave, leave
    P[2, 0], P[2, 1] = [0, 0, 0.75, 0.25], [0, 0, 0.5, 0.5]
    P[3, 0], P[3, 1] = [0, 0, 0.75, 0.25], [0, 0, 0.5, 0.5]
    return MDP(P, [[5.0, 0.0], [0.0, -1.0], [1.0, 0.0], [2.0, 0.0]], name="transient")


def multichain() -> MDP:
    """Two closed classes and a state that chooses between them: the best gains are (2, 2, 1), as one can see.

    State 1 pays 2 for ever and state 2 pays 1 for ever. In state 0, action 0 waits (pays 1), action 1 goes to state 1
    (pays −10) and action 2 goes to state 2 (pays 9). The largest immediate reward is that of the wrong choice.
    """
    P = np.zeros((3, 3, 3))
    P[0, 0, 0] = P[0, 1, 1] = P[0, 2, 2] = 1.0
    P[1, :, 1] = P[2, :, 2] = 1.0
    return MDP(P, [[1.0, -10.0, 9.0], [2.0] * 3, [1.0] * 3], name="multichain")


def garnet(
    states: int = 10, actions: int = 3, branches: int = 4, seed: int = 0, noise: float = 0.05, sparse: bool = False
) -> MDP:
    """A random model with `branches` next states per state and action (Archibald, McKinnon & Thomas 1995).

    The probabilities are the gaps between sorted uniform numbers, and the rewards are standard normal. To make every
    policy ergodic, a dense model jumps to a uniformly random state with probability `noise`; in a sparse model the
    states form a ring, one branch goes to the next state of the ring and one stays.
    """
    if branches > states:
        raise UserError(f"A Garnet model of {states} states cannot have {branches} branches per state.")
    rng = np.random.default_rng(seed)
    rewards = rng.standard_normal((states, actions))
    cuts = np.sort(rng.random((actions, states, branches - 1)), axis=2)
    weights = np.diff(cuts, axis=2, prepend=0.0, append=1.0)
    if sparse:
        successors = rng.integers(states, size=(actions, states, branches))
        successors[..., 0] = (np.arange(states) + 1) % states
        successors[..., min(1, branches - 1)] = np.arange(states)
        pointers = np.arange(states + 1) * branches
        P = [
            sp.csr_array((weights[a].ravel(), successors[a].ravel(), pointers), shape=(states, states))
            for a in range(actions)
        ]
        return MDP(P, rewards, name="garnet")
    successors = np.argsort(rng.random((actions, states, states)), axis=2)[..., :branches]
    P = np.zeros((actions, states, states))
    np.put_along_axis(P, successors, weights, axis=2)
    P = (1 - noise) * P + noise / states
    return MDP(normalised(P.transpose(1, 0, 2)), rewards, name="garnet")


def _birth_death_matrix(n: int, up: np.ndarray, down: np.ndarray) -> sp.csr_array:
    """The chain that moves up or down by one and otherwise stays; at both ends it stays instead of moving out."""
    up, down = up.copy(), down.copy()
    up[-1], down[0] = 0.0, 0.0
    stay = 1 - up - down
    offsets: Any = [-1, 0, 1]
    return sp.csr_array(sp.diags_array([down[1:], stay, up[:-1]], offsets=offsets))


def normalised(P: np.ndarray) -> np.ndarray:
    """Rows divided by their sums, which removes the rounding errors of sums of many products."""
    return P / P.sum(axis=-1, keepdims=True)


MODELS: dict[str, Callable[[], MDP]] = {
    "two_state": two_state_mdp,
    "riverswim": riverswim,
    "access_control": access_control,
    "inventory": inventory,
    "machine_replacement": machine_replacement,
    "queue_admission": queue_admission,
    "periodic": periodic,
    "transient": transient,
    "multichain": multichain,
    "garnet": garnet,
    "criss_cross": criss_cross,
    "n_model": n_model,
}

LARGE = ("criss_cross", "n_model")
"""The models of tens of thousands of states: sparse, and too large for dense matrices."""


def model(name: str) -> MDP:
    """The model of the zoo with this name."""
    if name not in MODELS:
        raise UserError(f"The zoo has no model {name!r}; its models are {', '.join(MODELS)}.")
    return MODELS[name]()
