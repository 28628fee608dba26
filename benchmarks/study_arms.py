"""The study behind the defaults and `docs/results.md`, as data: which runs, tables and pictures it consists of.

An arm is one choice of settings on one task, over several seeds. The defaults were chosen on seeds 0 to 2; they are
reported on seeds 10 to 12, on which nothing had been run with them before. `benchmarks/study.py` runs the arms, keeps
their results, and makes the tables and pictures.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from kemeny.runs.presets import PAPER
from kemeny.runs.settings import DEFAULT_GAMMA, Settings, from_flat

OURS: dict[str, Any] = {"delta": 0.02, "gae_lambda": 0.8, "log_std": -1.0, "cut": 1_000, "reset_cost": None}
"""Where the defaults, at which the study arrived, depart from the paper's settings."""
CHEETAH, ANT, HUMANOID = "HalfCheetah-v3", "Ant-v3", "Humanoid-v3"
WORDS = {
    "delta": "δ = {:g}",
    "gae_lambda": "λ = {:g}",
    "cost_gae_lambda": "cost's λ = {:g}",
    "log_std": "log std {:g}",
    "cut": "cut at {:,}",
    "reset_cost": "reset cost {:g}",
    "rate_by": "ρ̂ by {}",
    "gauge": "{} gauge",
    "num_envs": "{} environments",
    "batch_size": "batches of {:,}",
    "cg_iterations": "{} CG iterations",
    "observation_clip": "clip ±{:g}",
    "critic_epochs": "{} critic epochs",
    "critic_minibatch": "minibatches of {}",
}
"""How a table names a setting."""
IN_THE_TITLE = {"algorithm", "gamma", "cost", "limit", "episodic"}
"""Settings that a title names in another way."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One choice of settings on one task: one run per seed, kept as NAME-SEED."""

    name: str
    env: str
    steps: int
    seeds: tuple[int, ...]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that differ from those of `base`, by their flat names."""
    base: Literal["ours", "paper"] = "ours"

    def settings(self, seed: int) -> Settings:
        """Every setting of one run; those in `OURS` are fixed here, whatever the defaults become."""
        base = {**PAPER, **(OURS if self.base == "ours" else {})}
        return from_flat({**base, **self.changes, "steps": self.steps, "seed": seed})

    def command(self, seed: int) -> list[str]:
        """The arguments of `kemeny` for one run, except for its evaluations and its directory."""
        words = ["train", self.env, *(["--preset", "paper"] if self.base == "paper" else [])]
        for name, value in {**self.changes, "steps": self.steps, "seed": seed}.items():
            flag = f"--{name.replace('_', '-')}"
            for one in value if isinstance(value, tuple) else (value,):
                words += [flag] if one is True else [flag, str(one)]
        return words

    @property
    def title(self) -> str:
        """Its name in a table: the algorithm, whose settings, what is changed."""
        algorithm = self.changes.get("algorithm", "atrpo")
        words = [algorithm.upper()]
        if algorithm in ("trpo", "cpo"):
            words.append(f"γ = {self.changes.get('gamma', DEFAULT_GAMMA):g}")
        costs, limits = self.changes.get("cost", ()), self.changes.get("limit", ())
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(costs, limits, strict=True)]
        words += ["episodic"] if self.changes.get("episodic") else []
        words += ["paper"] if self.base == "paper" else []
        words += [WORDS[name].format(value) for name, value in self.changes.items() if name not in IN_THE_TITLE]
        return ", ".join(words).replace("-", "−")


def _discounted(gamma: float, **changes: Any) -> dict[str, Any]:
    return {"algorithm": "trpo", "gamma": gamma, **changes}


def _limited(limit: float, **changes: Any) -> dict[str, Any]:
    return {"algorithm": "acpo", "cost": ("speed",), "limit": (limit,), **changes}


ONE_AT_A_TIME: dict[str, dict[str, Any]] = {
    "default": {},
    "d01": {"delta": 0.01},
    "d04": {"delta": 0.04},
    "l95": {"gae_lambda": 0.95},
    "l90": {"gae_lambda": 0.9},
    "l70": {"gae_lambda": 0.7},
    "std05": {"log_std": -0.5},
    "cut5000": {"cut": 5_000},
    "td": {"rate_by": "td"},
    "free": {"gauge": "free"},
    "envs10": {"num_envs": 10},
    "envs50": {"num_envs": 50},
    "clip5": {"observation_clip": 5.0},
    "epochs5": {"critic_epochs": 5},
    "minibatch64": {"critic_minibatch": 64},
}
"""Each choice that the paper leaves open, or where the defaults differ from the paper, varied alone."""

TABLES: dict[str, tuple[Arm, ...]] = {
    "results": (
        Arm("cheetah-1M", CHEETAH, 1_000_000, (10, 11, 12)),
        Arm("cheetah-3M", CHEETAH, 3_000_000, (10, 11, 12)),
        Arm("ant-3M", ANT, 3_000_000, (10, 11, 12)),
        Arm("humanoid-3M", HUMANOID, 3_000_000, (11, 12)),
        Arm("humanoid-10M", HUMANOID, 10_000_000, (10,)),
        Arm("cheetah-paper-3M", CHEETAH, 3_000_000, (10, 11, 12), base="paper"),
    ),
    "discounts": (
        Arm("cheetah-trpo95", CHEETAH, 1_000_000, (10,), _discounted(0.95)),
        Arm("cheetah-trpo99", CHEETAH, 1_000_000, (10,), _discounted(0.99)),
        Arm("cheetah-trpo999", CHEETAH, 1_000_000, (10,), _discounted(0.999)),
        Arm("cheetah-trpo99-episodic", CHEETAH, 1_000_000, (10,), _discounted(0.99, episodic=True)),
        Arm("ant-trpo95", ANT, 1_000_000, (10,), _discounted(0.95)),
        Arm("ant-trpo99", ANT, 1_000_000, (10,), _discounted(0.99)),
        Arm("ant-trpo999", ANT, 1_000_000, (10,), _discounted(0.999)),
        Arm("ant-trpo99-episodic", ANT, 1_000_000, (10,), _discounted(0.99, episodic=True)),
        Arm("humanoid-trpo95-3M", HUMANOID, 3_000_000, (10,), _discounted(0.95)),
        Arm("humanoid-trpo99-3M", HUMANOID, 3_000_000, (10, 11), _discounted(0.99)),
        Arm("humanoid-trpo999-3M", HUMANOID, 3_000_000, (10,), _discounted(0.999)),
        Arm("humanoid-trpo99-episodic-3M", HUMANOID, 3_000_000, (10,), _discounted(0.99, episodic=True)),
        Arm("cheetah-paper-trpo99", CHEETAH, 1_000_000, (0,), _discounted(0.99), "paper"),
        Arm("ant-paper-trpo99", ANT, 1_000_000, (0,), _discounted(0.99), "paper"),
        Arm("ant-paper-trpo99-episodic-500k", ANT, 500_000, (0,), _discounted(0.99, episodic=True, cut=1_000), "paper"),
        Arm("humanoid-paper-trpo95-3M", HUMANOID, 3_000_000, (0,), _discounted(0.95), "paper"),
    ),
    "one-at-a-time": tuple(
        Arm(f"cheetah-{name}-500k", CHEETAH, 500_000, (0,), changes) for name, changes in ONE_AT_A_TIME.items()
    ),
    "choices": (
        Arm("cheetah-default", CHEETAH, 1_000_000, (0, 1, 2)),
        Arm("cheetah-cut5000", CHEETAH, 1_000_000, (0, 2), {"cut": 5_000}),
        Arm("cheetah-paper", CHEETAH, 1_000_000, (0, 1, 2), base="paper"),
        Arm("cheetah-paper-d02", CHEETAH, 1_000_000, (0,), {"delta": 0.02}, "paper"),
        Arm("cheetah-paper-d04", CHEETAH, 1_000_000, (0,), {"delta": 0.04}, "paper"),
        Arm("cheetah-paper-d02-l80", CHEETAH, 1_000_000, (0,), {"delta": 0.02, "gae_lambda": 0.8}, "paper"),
        Arm("cheetah-paper-std1", CHEETAH, 1_000_000, (0,), {"log_std": -1.0}, "paper"),
        Arm("cheetah-paper-std1-l90", CHEETAH, 1_000_000, (0, 1, 2), {"gae_lambda": 0.9, "log_std": -1.0}, "paper"),
        Arm("cheetah-paper-free", CHEETAH, 1_000_000, (0, 1), {"gauge": "free"}, "paper"),
        Arm("cheetah-paper-b2500", CHEETAH, 1_000_000, (0,), {"batch_size": 2_500}, "paper"),
        Arm("cheetah-paper-d02-cg3", CHEETAH, 1_000_000, (0,), {"delta": 0.02, "cg_iterations": 3}, "paper"),
        Arm("ant-default-500k", ANT, 500_000, (0,)),
        Arm("ant-v4-500k", "Ant-v4", 500_000, (0,)),
        Arm("ant-v5-500k", "Ant-v5", 500_000, (0,)),
        Arm("ant-cost10-500k", ANT, 500_000, (0,), {"reset_cost": 10.0}),
        Arm("ant-d01-500k", ANT, 500_000, (0,), {"delta": 0.01}),
        Arm("ant-d04-500k", ANT, 500_000, (0,), {"delta": 0.04}),
        Arm("ant-b2500-d01-500k", ANT, 500_000, (0,), {"delta": 0.01, "batch_size": 2_500}),
        Arm("ant-d01-l90-500k", ANT, 500_000, (0,), {"delta": 0.01, "gae_lambda": 0.9}),
        Arm("ant-d01-l95-500k", ANT, 500_000, (0,), {"delta": 0.01, "gae_lambda": 0.95}),
        Arm("ant-d01-l95-cost10-500k", ANT, 500_000, (0,), {"delta": 0.01, "gae_lambda": 0.95, "reset_cost": 10.0}),
        Arm("ant-d01", ANT, 1_000_000, (1, 10, 11, 12), {"delta": 0.01}),
        Arm("ant-paper", ANT, 1_000_000, (0,), base="paper"),
        Arm(
            "ant-paper-cut1000-critic", ANT, 1_000_000, (0,),
            {"cut": 1_000, "observation_clip": 5.0, "critic_epochs": 5, "critic_minibatch": 64}, "paper",
        ),
        Arm("humanoid-default-1M", HUMANOID, 1_000_000, (0,)),
        Arm("humanoid-paper-d02-l80", HUMANOID, 1_000_000, (0,), {"delta": 0.02, "gae_lambda": 0.8}, "paper"),
        Arm("humanoid-paper-d02", HUMANOID, 1_000_000, (0,), {"delta": 0.02}, "paper"),
        Arm("humanoid-paper-b2500", HUMANOID, 1_000_000, (0,), {"batch_size": 2_500}, "paper"),
        Arm("humanoid-paper-3M", HUMANOID, 3_000_000, (0,), base="paper"),
        Arm("humanoid-paper-std1-3M", HUMANOID, 3_000_000, (10,), {"log_std": -1.0}, "paper"),
    ),
    "limits": (
        Arm("cheetah-acpo", CHEETAH, 1_000_000, (0, 1), _limited(2.0)),
        Arm("cheetah-acpo-margin", CHEETAH, 1_000_000, (0, 1), _limited(1.75)),
        Arm("cheetah-acpo-l95", CHEETAH, 1_000_000, (0,), _limited(2.0, cost_gae_lambda=0.95)),
        Arm("cheetah-cpo", CHEETAH, 1_000_000, (0, 1), _limited(200.0, algorithm="cpo", gamma=0.99)),
        Arm("ant-acpo", ANT, 1_000_000, (0, 1), _limited(2.0)),
        Arm("humanoid-acpo", HUMANOID, 3_000_000, (0, 1), _limited(2.0)),
        Arm("cheetah-acpo-paper", CHEETAH, 1_000_000, (0, 1), _limited(2.0), "paper"),
        Arm("cheetah-acpo-paper-margin", CHEETAH, 1_000_000, (0, 1), _limited(1.85), "paper"),
        Arm(
            "ant-acpo-paper", ANT, 1_000_000, (0, 1),
            _limited(2.0, gae_lambda=0.8, cost_gae_lambda=0.95, cut=1_000), "paper",
        ),
        Arm("humanoid-acpo-paper", HUMANOID, 3_000_000, (0, 1), _limited(2.0), "paper"),
    ),
}  # fmt: skip
"""The arms of each table of docs/results.md."""

PICTURES: dict[str, tuple[str, ...]] = {
    "results": (
        "ant-3M", "ant-trpo95", "ant-trpo99", "ant-trpo99-episodic", "ant-trpo999",
        "cheetah-1M", "cheetah-trpo95", "cheetah-trpo99", "cheetah-trpo99-episodic", "cheetah-trpo999",
        "humanoid-3M", "humanoid-10M", "humanoid-trpo95-3M", "humanoid-trpo99-3M", "humanoid-trpo99-episodic-3M",
        "humanoid-trpo999-3M",
    ),
    "acpo": ("ant-acpo", "cheetah-acpo", "humanoid-acpo"),
}  # fmt: skip
"""The names of the arms in each picture of docs/pictures, in the order of its legend."""
