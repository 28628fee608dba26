"""Environments behind one small vector interface: EnvPool, and any Gymnasium environment."""

from kemeny.envs.costs import Cost
from kemeny.envs.pool import Pool, Step, inspect, make_pool
from kemeny.spec import Continuous, Discrete, Spec

__all__ = ["Continuous", "Cost", "Discrete", "Pool", "Spec", "Step", "inspect", "make_pool"]
