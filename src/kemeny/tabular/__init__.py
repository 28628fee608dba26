"""The theory, computed exactly: finite Markov chains and Markov decision processes. NumPy and SciPy, without JAX."""

from kemeny.tabular import bounds, solve, zoo
from kemeny.tabular.chain import Chain
from kemeny.tabular.mdp import MDP

__all__ = ["MDP", "Chain", "bounds", "solve", "zoo"]
