"""Whether the vector environment of a process does what the model of the process says, by counting."""

import numpy as np
from scipy.stats import chi2

from kemeny.tasks import Process, ProcessVectorEnv

LEAST_EXPECTED = 5
"""Next states that are expected less often are counted together: else counts are not nearly normal."""
RARE = 1e-4
"""The smallest probability, under the model, of a deviation that is accepted."""


def assert_agrees(process: Process, pairs: int = 30, copies: int = 3000, seed: int = 0) -> None:
    """Take random pairs of a state and an action, let all copies take them, and compare what follows with the model."""
    rng = np.random.default_rng(seed)
    model = process.model()
    env = ProcessVectorEnv(process, copies)
    env.reset(seed=seed)
    statistic = freedom = 0.0
    for _ in range(pairs):
        number = int(rng.integers(model.n_states))
        allowed = np.arange(model.n_actions) if model.allowed is None else np.flatnonzero(model.allowed[number])
        action = int(rng.choice(allowed))
        env.states = np.tile(np.array(np.unravel_index(number, model.grid)) + process.lowest, (copies, 1))
        chosen = np.unravel_index(action, process.choices)
        observations, rewards, _, _, info = env.step(np.tile(chosen, (copies, 1)))
        after = np.ravel_multi_index((observations.astype(int) - process.lowest).T, model.grid)
        likely = model.by_action[action][[number]].toarray().ravel()
        counts = np.bincount(after, minlength=model.n_states)
        assert counts[likely == 0].sum() == 0, "a next state that is impossible in the model"
        one, free = compare_counts(counts, likely * copies)
        statistic, freedom = statistic + one, freedom + free
        assert_mean(rewards, model.rewards[number, action])
        if model.costs is not None:
            assert_mean(info[process.cost_names[0]], model.costs[number, action])
    assert freedom > pairs / 2, "too little happened for a comparison"
    assert chi2.sf(statistic, freedom) > RARE


def compare_counts(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The χ² statistic and its degrees of freedom."""
    often = expected >= LEAST_EXPECTED
    counts = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(((counts - expected) ** 2 / expected).sum()), len(expected) - 1


def assert_mean(drawn: np.ndarray, mean: float) -> None:
    """Within five standard errors."""
    assert abs(drawn.mean() - mean) <= 5 * drawn.std() / np.sqrt(len(drawn)) + 1e-9
