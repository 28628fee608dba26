"""ATRPO in one file: reinforcement learning for tasks that never end, with nothing hidden.

    python examples/atrpo_in_one_file.py --env HalfCheetah-v5 --steps 300000

This is the algorithm of Zhang & Ross, "On-Policy Deep Reinforcement Learning for the Average-Reward Criterion" (ICML
2021). It needs only jax, numpy and gymnasium, and works for environments with Box observations and Box actions. It
maximises

    ρ(π) = lim 1/N · E[r₁ + … + r_N],    the reward per step in the long run (§2)

and has no discount. Where TRPO learns a discounted value, ATRPO learns the bias

    v̄(s) = E[Σₜ (rₜ − ρ) | s₀ = s],    the total reward above ρ per step that follows after s (§2)

which obeys v̄ = r − ρ + P v̄ (Appendix A). Start with `main` (the loop), `collect` (what "never ends" means when a robot
falls over) and `update` (one batch → a better policy). Comments give shapes: a batch has T time steps of B
environments, so n = T·B samples; an observation has D numbers, an action has A; the policy has p parameters.
`tests/test_example.py` checks that this file and the library compute the same numbers.
"""

import argparse
import dataclasses
import time
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of Appendix H, and common practice where the paper says nothing. Every number is also a flag.

    The library's defaults differ in four settings (docs/algorithms.md says why).
    """

    env: str = "HalfCheetah-v5"
    steps: int = 300_000
    seed: int = 0
    num_envs: int = 20  # B
    batch_size: int = 5_000  # n = T·B
    cut: int = 5_000  # steps after which a trajectory is cut and the environment restarts (Algorithm 2's N)
    reset_cost: float = 100.0  # what a fall costs (§6.2)
    lam: float = 0.95  # λ of the advantage estimator
    delta: float = 0.01  # δ, the largest KL divergence of a policy step
    damping: float = 0.01  # added to the diagonal of the Fisher matrix
    cg_iterations: int = 10
    backtrack: float = 0.8
    backtrack_tries: int = 10
    critic_step_size: float = 3e-4  # of Adam, annealed to 0
    critic_l2: float = 3e-3
    critic_epochs: int = 10
    critic_minibatch: int = 100
    log_std: float = -0.5  # log standard deviation of the first policy
    hidden: tuple[int, ...] = (64, 64)
    clip: float = 10.0  # normalised observations are clipped to ± this

    @property
    def iterations(self) -> int:
        """Number of batches in the run."""
        return -(-self.steps // self.batch_size)


# ---- networks --------------------------------------------------------------------------------------------------------

Network = list[tuple[jax.Array, jax.Array]]  # (weights (in, out), biases (out,)) of each layer
Policy = dict[str, Any]  # "mean": Network, "log_std": (A,); the deviation does not depend on the state


def make_network(key: jax.Array, sizes: tuple[int, ...], head_gain: float) -> Network:
    """Orthogonal weights times √2 (times `head_gain` in the last layer), zero biases."""
    gains = [2**0.5] * (len(sizes) - 2) + [head_gain]
    layers = []
    for k, gain, rows, columns in zip(jax.random.split(key, len(gains)), gains, sizes[:-1], sizes[1:], strict=True):
        q, r = jnp.linalg.qr(jax.random.normal(k, (max(rows, columns), min(rows, columns))))
        q = q * jnp.sign(jnp.diag(r))  # makes the draw uniform over orthogonal matrices
        layers.append((gain * (q if rows >= columns else q.T), jnp.zeros(columns)))
    return layers


def forward(network: Network, x: jax.Array) -> jax.Array:
    """(…, in) → (…, out), tanh between layers."""
    for weight, bias in network[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = network[-1]
    return x @ weight + bias


def log_prob(policy: Policy, x: jax.Array, action: jax.Array) -> jax.Array:
    """log π(a|s) of a Gaussian with diagonal covariance: (n, D), (n, A) → (n,)."""
    z = (action - forward(policy["mean"], x)) / jnp.exp(policy["log_std"])
    return jnp.sum(-0.5 * z**2 - policy["log_std"] - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def mean_kl(new: Policy, old: Policy, x: jax.Array) -> jax.Array:
    """E_s[KL(new ‖ old)], computed exactly: the trust region uses it to measure how far a policy moved."""
    log_ratio = old["log_std"] - new["log_std"]  # (A,)
    shift = (forward(new["mean"], x) - forward(old["mean"], x)) / jnp.exp(old["log_std"])  # (n, A)
    return jnp.mean(jnp.sum(log_ratio + 0.5 * (jnp.exp(-2 * log_ratio) + shift**2 - 1), axis=-1))


value = jax.jit(lambda critic, x: forward(critic, x)[..., 0])  # v̄(s): (…, D) → (…)


# ---- state -----------------------------------------------------------------------------------------------------------


class Adam(NamedTuple):
    """Averages of the gradient and of its square, and the number of steps taken."""

    mean: Network
    square: Network
    steps: jax.Array  # a float, because 0.9**steps needs one


class Normalizer(NamedTuple):
    """Running statistics of the observations: networks see (s − mean)/std (Appendix H)."""

    mean: np.ndarray  # (D,)
    squares: np.ndarray  # (D,) Σ (s − mean)²
    seen: int


class State(NamedTuple):
    """Everything that changes from batch to batch."""

    policy: Policy
    critic: Network
    adam: Adam
    normalizer: Normalizer
    key: jax.Array
    iteration: int


def make_state(config: Config, observation_size: int, action_size: int) -> State:
    """The state before the first batch. The policy's last layer is small, so it acts almost alike in every state."""
    policy_key, critic_key, key = jax.random.split(jax.random.key(config.seed), 3)
    inside = (observation_size, *config.hidden)
    mean = make_network(policy_key, (*inside, action_size), 0.01)
    critic = make_network(critic_key, (*inside, 1), 1.0)
    zeros = jax.tree.map(jnp.zeros_like, critic)
    return State(
        policy={"mean": mean, "log_std": jnp.full(action_size, config.log_std, jnp.float32)},
        critic=critic,
        adam=Adam(zeros, zeros, jnp.zeros(())),
        normalizer=Normalizer(np.zeros(observation_size), np.zeros(observation_size), 0),
        key=key,
        iteration=0,
    )


def normalize(config: Config, normalizer: Normalizer, observation: np.ndarray) -> np.ndarray:
    """The input of the networks. As long as there are no statistics, it is the observation itself (clipped)."""
    variance = normalizer.squares / normalizer.seen if normalizer.seen else np.ones_like(normalizer.mean)
    std = np.sqrt(np.maximum(variance, 1e-4))  # if a number hardly varies, its noise must not be scaled up
    return np.clip((observation - normalizer.mean) / std, -config.clip, config.clip).astype(np.float32)


def update_normalizer(normalizer: Normalizer, batch: np.ndarray) -> Normalizer:
    """The statistics of all observations so far and of (n, D) new ones together."""
    batch = batch.astype(np.float64)
    count = normalizer.seen + len(batch)
    shift = batch.mean(0) - normalizer.mean
    squares = ((batch - batch.mean(0)) ** 2).sum(0) + shift**2 * normalizer.seen * len(batch) / count
    return Normalizer(normalizer.mean + shift * len(batch) / count, normalizer.squares + squares, count)


# ---- one update: Algorithm 2, lines 4 to 10 --------------------------------------------------------------------------


class Rollout(NamedTuple):
    """A batch: T steps of B environments under one policy."""

    observation: np.ndarray  # (T, B, D)
    action: np.ndarray  # (T, B, A): as drawn, before clipping to the bounds
    reward: np.ndarray  # (T, B): minus the reset cost where the agent fell
    next_observation: np.ndarray  # (T, B, D): the new start state after a fall, the state that was cut off after a cut
    cut: np.ndarray  # (T, B): the trajectory was cut after this step


def estimate(config: Config, critic: Network, rollout: Rollout, x: np.ndarray, next_x: np.ndarray):
    """ρ̂, the advantage of every action, and the targets of the critic: float, (T, B), (T, B).

    Appendix G:  δₜ = rₜ − ρ̂ + v̄(sₜ₊₁) − v̄(sₜ),   Aₜ = δₜ + λ·Aₜ₊₁,   target = Aₜ + v̄(sₜ)

    With λ = 0 these are lines 6 and 7 of Algorithm 2. A fall needs no special treatment, because it is an ordinary
    transition. After a cut the next row belongs to another trajectory, so the sum stops there. v̄(sₜ₊₁) already stands
    for the rest.
    """
    v, v_next = np.asarray(value(critic, x)), np.asarray(value(critic, next_x))  # (T, B)
    rho = rollout.reward.mean()  # line 4
    td_error = rollout.reward - rho + v_next - v
    advantage = np.zeros_like(td_error)
    future = np.zeros_like(td_error[0])  # (B,)
    for t in reversed(range(len(td_error))):
        future = td_error[t] + config.lam * np.where(rollout.cut[t], 0, future)
        advantage[t] = future
    target = advantage + v
    # v̄ is unique only up to a constant (the equation holds for v̄ + c too), and bootstrapping would let that constant
    # drift without end. So fix the gauge: give the targets mean 0.
    return rho, advantage, target - target.mean()


@jax.jit
def policy_gradient(policy: Policy, x: jax.Array, action: jax.Array, advantage: jax.Array) -> jax.Array:
    """g = E[∇ log π(a|s) · A(s, a)] as a flat vector, (p,) (Appendix E)."""
    return ravel_pytree(jax.grad(lambda q: jnp.mean(log_prob(q, x, action) * advantage))(policy))[0]


@jax.jit
def fisher_product(policy: Policy, x: jax.Array, vector: jax.Array, damping: float) -> jax.Array:
    """(H + damping·I)·vector, where H is the Hessian of the mean KL at the policy. The (p, p) matrix is never stored.

    H·u is the derivative of the gradient of the KL in direction u (forward-mode over reverse-mode differentiation).
    """
    theta, unravel = ravel_pytree(policy)
    gradient = jax.grad(lambda point: mean_kl(unravel(point), policy, x))
    return jax.jvp(gradient, (theta,), (vector,))[1] + damping * vector


@jax.jit
def judge(new: Policy, old: Policy, x: jax.Array, action: jax.Array, advantage: jax.Array):
    """The surrogate gain E[π'(a|s)/π(a|s) · A] and the mean KL of a candidate."""
    ratio = jnp.exp(log_prob(new, x, action) - log_prob(old, x, action))  # (n,)
    return jnp.mean(ratio * advantage), mean_kl(new, old, x)


def improve(config: Config, policy: Policy, x: np.ndarray, action: np.ndarray, advantage: np.ndarray):
    """The trust-region step θ + √(2δ / gᵀH⁻¹g) · H⁻¹g, shortened until it passes (Appendix E, eq. atrpo_update).

    Returns the new policy (or the old one if no step length passes), the gain, the KL and the number of tries.
    """
    advantage = ((advantage - advantage.mean()) / advantage.std()).astype(np.float32)
    theta, unravel = ravel_pytree(policy)
    g = policy_gradient(policy, x, action, advantage)

    # Conjugate gradient for H⁻¹g: after i iterations it has the best answer in the span of g, Hg, …, Hⁱ⁻¹g.
    natural, residual, p = jnp.zeros_like(g), g, g
    for _ in range(config.cg_iterations):
        hp = fisher_product(policy, x, p, config.damping)
        before = residual @ residual
        alpha = before / (p @ hp)
        natural, residual = natural + alpha * p, residual - alpha * hp
        p = residual + (residual @ residual) / before * p

    step = jnp.sqrt(2 * config.delta / (g @ natural)) * natural
    for tries in range(config.backtrack_tries):
        candidate = unravel(theta + config.backtrack**tries * step)
        gain, kl = judge(candidate, policy, x, action, advantage)
        if gain > 0 and kl <= config.delta:  # never true for NaN, so a broken step is not taken
            return candidate, float(gain), float(kl), tries + 1
    return policy, 0.0, 0.0, config.backtrack_tries


@jax.jit
def adam_step(critic: Network, adam: Adam, x: jax.Array, target: jax.Array, rate: float, l2: float):
    """One minibatch of regression: squared error + l2·Σw² (weights, not biases)."""

    def loss(critic):
        return jnp.mean((value(critic, x) - target) ** 2) + l2 * sum(jnp.sum(weight**2) for weight, _ in critic)

    gradient = jax.grad(loss)(critic)
    steps = adam.steps + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mean, gradient)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, adam.square, gradient)
    unbias_mean, unbias_square = 1 / (1 - 0.9**steps), 1 / (1 - 0.999**steps)
    critic = jax.tree.map(
        lambda w, m, v: w - rate * (m * unbias_mean) / (jnp.sqrt(v * unbias_square) + 1e-8), critic, mean, square
    )
    return critic, Adam(mean, square, steps)


def refit(config: Config, state: State, x: np.ndarray, target: np.ndarray, shuffle: jax.Array) -> tuple[Network, Adam]:
    """Fit the critic to its targets (line 9), by some epochs of Adam over shuffled minibatches."""
    critic, adam = state.critic, state.adam
    rate = config.critic_step_size * (1 - state.iteration / config.iterations)
    for key in jax.random.split(shuffle, config.critic_epochs):
        order = np.asarray(jax.random.permutation(key, len(x)))
        for i in range(len(x) // config.critic_minibatch):
            batch = order[i * config.critic_minibatch :][: config.critic_minibatch]
            critic, adam = adam_step(critic, adam, x[batch], target[batch], rate, config.critic_l2)
    return critic, adam


def update(config: Config, state: State, rollout: Rollout) -> tuple[State, dict[str, Any]]:
    """One batch → the next state. After the first batch, the statistics of a batch count from the next one on."""
    seen = update_normalizer(state.normalizer, rollout.observation.reshape(-1, rollout.observation.shape[-1]))
    normalizer = state.normalizer if state.normalizer.seen else seen
    x = normalize(config, normalizer, rollout.observation)  # (T, B, D)
    next_x = normalize(config, normalizer, rollout.next_observation)
    rho, advantage, target = estimate(config, state.critic, rollout, x, next_x)

    flat_x, flat_action = x.reshape(-1, x.shape[-1]), rollout.action.reshape(-1, rollout.action.shape[-1])  # (n, …)
    policy, gain, kl, tries = improve(config, state.policy, flat_x, flat_action, advantage.reshape(-1))
    key, shuffle = jax.random.split(state.key)
    critic, adam = refit(config, state, flat_x, target.reshape(-1).astype(np.float32), shuffle)

    new = State(policy, critic, adam, seen, key, state.iteration + 1)
    return new, {"rho": rho, "advantage": advantage, "target": target, "gain": gain, "kl": kl, "tries": tries}


# ---- the task that never ends ----------------------------------------------------------------------------------------

mean_action = jax.jit(lambda policy, x: forward(policy["mean"], x))


class Actors:
    """B copies of the environment, and the current state of each."""

    def __init__(self, config: Config) -> None:
        # The environment's own time limit would be an arbitrary cut, so −1 removes it.
        self.envs = [gymnasium.make(config.env, max_episode_steps=-1) for _ in range(config.num_envs)]
        self.observation = np.stack([env.reset(seed=1000 * config.seed + j)[0] for j, env in enumerate(self.envs)])
        # Environment j begins at phase j·T of its trajectory. Then every batch holds each phase of a trajectory of
        # `cut` steps once. Otherwise a batch would hold the first T steps of all trajectories, the next batch the next
        # T steps of all, and so on.
        horizon = config.batch_size // config.num_envs
        self.clock = np.arange(config.num_envs) * horizon % config.cut
        self.rng = np.random.default_rng(config.seed)
        self.falls = 0


def collect(config: Config, state: State, actors: Actors) -> Rollout:
    """T steps of every environment. Nothing waits for the end of an episode, because there is none (§6.2).

    A fall costs `reset_cost` and leads to a start state. This is an ordinary transition of the continuing task. After
    `cut` steps a trajectory is cut, and the environment restarts. A cut is not an event of the task, so the value of
    the state that was cut off counts in full.
    """
    bounds = actors.envs[0].action_space
    assert isinstance(bounds, gymnasium.spaces.Box)
    std = np.exp(np.asarray(state.policy["log_std"]))
    rows = []
    for _ in range(config.batch_size // config.num_envs):
        observation = actors.observation  # (B, D)
        mean = np.asarray(mean_action(state.policy, normalize(config, state.normalizer, observation)))  # (B, A)
        action = (mean + std * actors.rng.standard_normal(mean.shape)).astype(np.float32)
        reward, cut = np.zeros(len(actors.envs)), np.zeros(len(actors.envs), bool)
        after, current = np.empty_like(observation), np.empty_like(observation)
        for j, env in enumerate(actors.envs):
            after[j], reward[j], fell, truncated, _ = env.step(np.clip(action[j], bounds.low, bounds.high))
            actors.clock[j] += 1
            if fell:
                reward[j] -= config.reset_cost
                after[j] = env.reset()[0]
                actors.falls += 1
            current[j] = after[j]
            cut[j] = truncated or actors.clock[j] >= config.cut
            if cut[j]:
                actors.clock[j] = 0
                current[j] = after[j] if fell else env.reset()[0]
        rows.append((observation, action, reward, after, cut))
        actors.observation = current
    observation, action, reward, after, cut = (np.stack(column) for column in zip(*rows, strict=True))
    return Rollout(observation, action, reward, after, cut)


def evaluate(config: Config, state: State, trajectories: int = 10, max_steps: int = 1_000) -> np.ndarray:
    """Undiscounted returns of the mean action until a fall or `max_steps`; no reset cost, other seeds (§6.1)."""
    env = gymnasium.make(config.env, max_episode_steps=-1)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    returns = np.zeros(trajectories)
    for i in range(trajectories):
        observation, _ = env.reset(seed=1_000_000 + i)
        for _ in range(max_steps):
            x = normalize(config, state.normalizer, np.asarray(observation))
            action = np.clip(mean_action(state.policy, x), env.action_space.low, env.action_space.high)
            observation, reward, fell, truncated, _ = env.step(action)
            returns[i] += float(reward)
            if fell or truncated:
                break
    return returns


def main(config: Config) -> State:
    """Collect, learn and print, again and again; evaluate at the end."""
    assert config.batch_size % config.num_envs == 0, "the environments must share a batch evenly"
    actors = Actors(config)
    observation_space, action_space = actors.envs[0].observation_space, actors.envs[0].action_space
    assert isinstance(observation_space, gymnasium.spaces.Box), "this file needs Box observations"
    assert isinstance(action_space, gymnasium.spaces.Box), "this file needs Box actions"
    state = make_state(config, observation_space.shape[0], action_space.shape[0])
    for _ in range(config.iterations):
        began, falls = time.monotonic(), actors.falls
        rollout = collect(config, state, actors)
        collected = time.monotonic()
        state, info = update(config, state, rollout)
        print(
            f"steps {state.iteration * config.batch_size:>9,}  ρ̂ {info['rho']:8.3f}  falls {actors.falls - falls:4d}  "
            f"kl {info['kl']:.4f}  tries {info['tries']:2d}  std {np.exp(state.policy['log_std']).mean():.3f}  "
            f"collect {collected - began:.1f} s  update {time.monotonic() - collected:.1f} s",
            flush=True,
        )
    returns = evaluate(config, state)
    print(f"return of the mean action, at most 1,000 steps: {returns.mean():.1f} ± {returns.std():.1f}")
    return state


def parse() -> Config:
    """One flag per field."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for field in dataclasses.fields(Config):
        if field.name != "hidden":
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(flag, type=type(field.default), default=field.default, help=f"[{field.default}]")
    return Config(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse())
