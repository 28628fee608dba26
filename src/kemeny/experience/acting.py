"""The policy in plain NumPy: fast to sample with, and all that deployment needs."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kemeny.errors import Damaged, UserError
from kemeny.experience.settings import Deploy
from kemeny.spaces import (
    FORBIDDEN,
    ArraySpec,
    BadMask,
    Box,
    Discrete,
    Misfit,
    Space,
    Spaces,
    first_of_each,
    read_mask,
    read_rows,
)
from kemeny.spec import Continuous, Spec, Unit, check_arrays, check_finite

F32 = np.float32
PERCEPTRON: Mapping[str, str] = {"kind": "perceptron", "activation": "tanh"}
"""The network of checkpoints that say nothing about it."""
MOST_SHOWN = 10
"""Choices whose options a message counts."""


class Actor(Protocol):
    """A kind of network in NumPy."""

    outputs: int
    sizes: tuple[int, ...]
    """Of its layers, from the inputs to the outputs."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply to normalised rows."""
        ...


class Perceptron:
    """Hidden layers and a linear head: `learning.networks.Perceptron` in NumPy."""

    def __init__(self, arrays: Mapping[str, np.ndarray], description: Mapping[str, str]) -> None:
        layers = range(self._layers(arrays))
        self._weights = [np.ascontiguousarray(arrays[f"policy/network/weights/{i}"], F32) for i in layers]
        self._biases = [np.asarray(arrays[f"policy/network/biases/{i}"], F32) for i in layers]
        self._activate = ACTIVATIONS[description["activation"]]
        self.outputs = self._biases[-1].size
        self.sizes = (len(self._weights[0]), *(bias.size for bias in self._biases))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply to normalised rows."""
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            x = x @ weight
            x += bias
            self._activate(x)
        return x @ self._weights[-1] + self._biases[-1]

    @classmethod
    def expected(cls, arrays: Mapping[str, np.ndarray], description: Mapping[str, str], inputs: int) -> dict:
        """The arrays that it must have so that its layers fit each other."""
        if description.get("activation") not in ACTIVATIONS:
            raise UserError(f"The policy has units of an unknown kind: {description.get('activation')!r}.")
        expected = {}
        for i in range(max(1, cls._layers(arrays))):
            bias = arrays.get(f"policy/network/biases/{i}")
            outputs = 0 if bias is None else bias.size
            expected |= {
                f"policy/network/weights/{i}": ArraySpec((inputs, outputs), np.dtype(F32)),
                f"policy/network/biases/{i}": ArraySpec((outputs,), np.dtype(F32)),
            }
            inputs = outputs
        return expected

    @staticmethod
    def _layers(arrays: Mapping[str, np.ndarray]) -> int:
        return sum(name.startswith("policy/network/weights/") for name in arrays)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


def _relu(x: np.ndarray) -> None:
    np.maximum(x, 0, out=x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], None]] = {"tanh": _tanh, "relu": _relu}
"""In place; functions with names, for policies are sent to other processes."""
NETWORKS = {"perceptron": Perceptron}
"""By the kind that a checkpoint records."""


class Normal(NamedTuple):
    """Actions that are drawn around a mean, in the environment's units; then they are clipped to the bounds."""

    mean: np.ndarray
    std: np.ndarray
    """The same in every state."""


class Chosen(NamedTuple):
    """Actions that are chosen."""

    probabilities: np.ndarray | list[np.ndarray]
    """Of each option; for several choices, those of each of them."""


class Policy:
    """A trained policy. `policy(s)` is the mean (or likeliest) action, `policy.sample(s, rng)` explores.

    Both take one observation or a batch of them, as the environment gives them (the normaliser is inside), and return
    one action or a batch of them, as the environment takes them. A batch of dictionaries or tuples is one of batches.
    A policy that was trained with masks takes `mask=`: for each option whether it is allowed.

    `head`, `explore` and `mode` are for pools, which convert observations and actions themselves.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        network: Mapping[str, str] = PERCEPTRON,
        spaces: Spaces | None = None,
        deploy: Deploy = "mean",
    ) -> None:
        """`arrays` are named as in a checkpoint, and `network` describes their network as a checkpoint's facts do.

        `spaces` are those of the environment. If they are None, as for checkpoints that do not have them, observations
        are vectors (a single whole number is that of a state), and discrete actions begin at 0. `deploy` is how it acts
        where nothing else is said.
        """
        self.deploy: Deploy = deploy
        self._network: Actor = NETWORKS[network["kind"]](arrays, network)
        self._shift = np.asarray(arrays["normalizer/mean"], F32)
        self._scale = np.asarray(arrays["normalizer/scale"], F32)
        self._clip = np.asarray(arrays["normalizer/clip"], F32)
        self.continuous = "policy/log_std" in arrays
        self._std = np.exp(np.asarray(arrays["policy/log_std"], F32)) if self.continuous else None
        self._low, self._high = arrays.get("action/low"), arrays.get("action/high")
        self.unit = Unit(arrays["action/shift"], arrays["action/scale"]) if "action/scale" in arrays else None
        """What the environment calls the policy's 0 and 1; None if both call them the same."""
        self.spaces = spaces
        """What it is given and what it gives, as the environment has it; None if its checkpoint does not say."""
        self.choices = self._choices()
        """From how many options each choice of an action is made; empty if actions are not chosen."""
        self._several = None if spaces is None or isinstance(spaces.action, Box | Discrete) else _Several(self.choices)
        self._rng = np.random.default_rng()

    @property
    def observation_size(self) -> int:
        """Length of the observation it was trained on, with its mask if it has one."""
        return len(self._shift)

    @property
    def mask_size(self) -> int:
        """Length of the mask that comes with each observation; 0 if it was trained without masks."""
        return self.action_size if self.spaces is not None and self.spaces.mask else 0

    @property
    def action_size(self) -> int:
        """Number of components of an action, or of options to choose from."""
        return self._network.outputs

    @property
    def bounded(self) -> bool:
        """Whether it knows the bounds of its actions, as all that were trained do."""
        return self._low is not None

    def __repr__(self) -> str:
        layers = "–".join(map(str, self._network.sizes))
        masked = self.mask_size > 0
        trained = _sizes(self.observation_size - self.mask_size, self.action_size, self.choices, masked)
        return f"<Policy: {trained}; layers {layers}>"

    def explores(self, explore: bool | None) -> bool:
        """Whether it draws its actions, if asked to (True), not to (False), or to act as it is deployed (None)."""
        return self.deploy == "explore" if explore is None else explore

    def __call__(self, observation: Any, mask: ArrayLike | None = None, explore: bool | None = None) -> np.ndarray:
        """The action as deployed: the mean, within the bounds, or the likeliest; or one drawn, if it is to explore.

        What is drawn comes from a generator of the policy's own: for one that is given, there is `sample`.
        """
        if self.explores(explore):
            return self.sample(observation, self._rng, mask)
        head, single = self._user_head(observation, mask)
        action = self._for_environment(self.mode(head))
        return action[0] if single else action

    def sample(self, observation: Any, rng: np.random.Generator, mask: ArrayLike | None = None) -> np.ndarray:
        """An action drawn from the policy, within the bounds."""
        head, single = self._user_head(observation, mask)
        action = self._for_environment(self.explore(head, self.noise(rng, len(head))))
        return action[0] if single else action

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        action_masks: ArrayLike | None = None,
    ) -> tuple[np.ndarray, None]:
        """An action and None, as Stable-Baselines3 has it; the policy has no memory, so `state` is always None.

        If it is not `deterministic`, the action is drawn by a generator of the policy's own; None: as deployed.
        """
        if state is not None:
            raise UserError("The policy has no memory: leave out state, or pass None.")
        del episode_start
        return self(observation, action_masks, None if deterministic is None else not deterministic), None

    def probabilities(self, observation: Any, mask: ArrayLike | None = None) -> np.ndarray | list[np.ndarray]:
        """The probability of each option, counted from 0; for several choices a list with those of each."""
        if self.continuous:
            raise UserError("The policy draws actions from normal distributions: use policy.distribution(…) instead.")
        head, single = self._user_head(observation, mask)
        parts = []
        for logits in np.split(head.astype(np.float64), first_of_each(self.choices)[1:], 1):
            odds = np.exp(logits - logits.max(1, keepdims=True))
            share = odds / odds.sum(1, keepdims=True)
            parts.append(share[0] if single else share)
        return parts[0] if self._several is None else parts

    def distribution(self, observation: Any, mask: ArrayLike | None = None) -> Normal | Chosen:
        """What actions are drawn from: a mean and a deviation (in the environment's units), or probabilities."""
        if self._std is None:
            return Chosen(self.probabilities(observation, mask))
        mean, single = self._user_head(observation, mask)
        std = np.broadcast_to(self._std, mean.shape)
        if self.unit is not None:
            mean, std = self.unit.shift + self.unit.scale * mean, self.unit.scale * std
        shape = self.spaces.action.shape if self.spaces is not None else mean.shape[1:]
        mean, std = (part.reshape(len(part), *shape) for part in (mean, np.array(std)))
        return Normal(mean[0], std[0]) if single else Normal(mean, std)

    def head(self, observation: np.ndarray) -> np.ndarray:
        """Means or logits, one row per observation (float32 rows); `FORBIDDEN` for what the mask forbids."""
        x = (observation - self._shift) * self._scale
        np.minimum(x, self._clip, out=x)  # a third of np.clip's time on so few rows
        np.maximum(x, -self._clip, out=x)
        if not self.mask_size:
            return self._network(x)
        logits = self._network(np.ascontiguousarray(x[:, : -self.mask_size]))
        np.copyto(logits, FORBIDDEN, where=~(observation[:, -self.mask_size :] > 0))  # faster than an index of booleans
        return logits

    def noise(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Standard noise that `explore` turns into actions: normal, or Gumbel for actions that are chosen."""
        shape = (*shape, self._network.outputs)
        return rng.standard_normal(shape, F32) if self.continuous else rng.gumbel(size=shape).astype(F32)

    def explore(self, head: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions as drawn, in the policy's unit: mean + std·noise, or the largest of logits + Gumbel noise."""
        if self._std is not None:
            return head + self._std * noise
        return self.mode(head + noise)

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The mean, in the policy's unit, or the likeliest action."""
        if self.continuous:
            return head
        return head.argmax(-1) if self._several is None else self._several.largest(head)

    def _choices(self) -> tuple[int, ...]:
        if self.continuous:
            return ()
        if self.spaces is None or isinstance(self.spaces.action, Box):
            return (self._network.outputs,)
        return self.spaces.action.choices

    def _for_environment(self, action: np.ndarray) -> np.ndarray:
        """Actions of the policy as the environment takes them: what `envs.spaces.Actions` does for a pool."""
        space = None if self.spaces is None else self.spaces.action
        if not self.continuous:
            return action if space is None or isinstance(space, Box) else space.actions(action)
        if self.unit is not None:
            action = self.unit.shift + self.unit.scale * action
        if self._low is not None:
            action = np.clip(action, self._low, self._high)
        return action if space is None else action.reshape(len(action), *space.shape)

    def _user_head(self, observation: Any, mask: ArrayLike | None) -> tuple[np.ndarray, bool]:
        """Means or logits for a batch, or for a single observation."""
        try:
            rows, single = read_rows(self._observation_space(observation), observation)
        except Misfit as misfit:
            where = f"As the part {misfit.part} of an observation the" if misfit.part else "The"
            raise UserError(f"{where} policy was trained on {misfit.wanted}, not on {misfit.plural}.") from misfit
        except ValueError as error:
            raise UserError(f"An observation must be an array of numbers: {error}.") from error
        if not np.isfinite(rows).all():
            raise UserError("The observation has an entry that is not a finite number, for which there is no action.")
        allowed = self._user_mask(mask, len(rows), single)
        return self.head(rows if allowed is None else np.concatenate([rows, allowed], 1, dtype=F32)), single

    def _user_mask(self, mask: ArrayLike | None, count: int, single: bool) -> np.ndarray | None:
        """A row of the mask per observation; None for a policy that was trained without masks."""
        if not self.mask_size:
            if mask is not None:
                raise UserError("The policy was trained without action masks: leave out the mask.")
            return None
        if mask is None:
            raise UserError("The policy was trained with action masks: give it one, as in policy(observation, mask=…).")
        assert self.spaces is not None
        assert not isinstance(self.spaces.action, Box)
        try:
            allowed = read_mask(mask, self.spaces.action)
            if allowed.shape != ((self.mask_size,) if single else (count, self.mask_size)):
                raise BadMask(f"has shape {allowed.shape}, but there must be one row per observation")
        except BadMask as bad:
            raise UserError(f"The mask {bad}.") from bad
        except ValueError as error:
            raise UserError(f"A mask must be an array of zeros and ones: {error}.") from error
        return allowed[None] if single else allowed

    def _observation_space(self, given: Any) -> Space:
        if self.spaces is not None:
            return self.spaces.observation
        array = np.asarray(given)
        a_state = np.issubdtype(array.dtype, np.integer) and array.ndim == 0 and self.observation_size > 1
        return Discrete(self.observation_size) if a_state else Box((self.observation_size,))


class _Several:
    """Several choices, whose scores follow each other in a row."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        option = np.arange(max(choices))
        exists = option < np.array(choices)[:, None]
        self._place = np.where(exists, first_of_each(choices)[:, None] + option, 0)
        self._absent = np.where(exists, 0, -np.inf).astype(F32)

    def largest(self, scores: np.ndarray) -> np.ndarray:
        """Of each choice the option with the largest score."""
        return (scores[..., self._place] + self._absent).argmax(-1)


def check_fits(policy: Policy, spec: Spec, env: str) -> None:
    """Refuse an environment with other observations or actions than those that the policy was trained on."""
    masked = policy.mask_size > 0
    its = _sizes(policy.observation_size - policy.mask_size, policy.action_size, policy.choices, masked)
    choices = () if isinstance(spec.action, Continuous) else spec.action.choices
    other = _sizes(spec.features, spec.action.outputs, choices, spec.mask > 0)
    if its != other:
        raise UserError(f"The policy was trained with {its}, but {env} has {other}: it needs a policy of its own.")
    unit = spec.action.unit if isinstance(spec.action, Continuous) else None
    if policy.bounded and not _same(policy.unit, unit):
        raise UserError(
            f"The policy was trained with actions between other bounds than those of {env}, or by an older Kemeny that "
            "did not map actions to such bounds: it needs a policy of its own."
        )


def check_policy(
    arrays: Mapping[str, np.ndarray], network: Mapping[str, str], spaces: Spaces | None, where: object
) -> None:
    """Refuse arrays that are not those of a policy: layers that do not fit each other, numbers that are none."""
    kind = network.get("kind")
    if kind not in NETWORKS:
        raise UserError(
            f"{where} holds a network of a kind that this Kemeny does not know ({kind!r}): upgrade to use it."
        )
    inputs = math.prod(arrays["normalizer/mean"].shape) if "normalizer/mean" in arrays else 0
    expected = {name: ArraySpec((inputs,), np.dtype(F32)) for name in ("normalizer/mean", "normalizer/scale")}
    expected["normalizer/clip"] = ArraySpec((), np.dtype(F32))
    mask = spaces.action.outputs if spaces is not None and spaces.mask else 0
    expected |= NETWORKS[kind].expected(arrays, network, max(0, inputs - mask))
    outputs = list(expected.values())[-1].size
    for together in (("policy/log_std",), ("action/low", "action/high"), ("action/shift", "action/scale")):
        if any(name in arrays for name in together):
            expected |= {name: ArraySpec((outputs,), np.dtype(F32)) for name in together}
    check_arrays(arrays, expected, where)
    check_finite(arrays, expected, where)
    if spaces is not None:
        normal = "policy/log_std" in arrays
        found = _sizes(inputs - mask, outputs, () if normal else (outputs,))
        said = spaces.action.outputs  # not its choices, of which a hostile file may describe 2³⁰
        described = _sizes(spaces.observation.size, said, () if isinstance(spaces.action, Box) else (said,))
        if found != described:
            raise Damaged(f"{where} holds a policy with {found}, but says that it has {described}.")


def _sizes(observation: int, outputs: int, choices: tuple[int, ...], masked: bool = False) -> str:
    """In words, how long observations are and which actions there are; `choices` is empty if they are not chosen."""
    if not choices:
        actions = f"actions of length {outputs}"
    elif len(choices) == 1:
        actions = f"{outputs} actions to choose from"
    else:
        shown = ", ".join(map(str, choices[:MOST_SHOWN])) + (", …" if len(choices) > MOST_SHOWN else "")
        actions = f"actions of {len(choices)} choices ({shown} options)"
    return f"observations of length {observation} and {actions}{', with masks' if masked else ''}"


def _same(one: Unit | None, other: Unit | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
