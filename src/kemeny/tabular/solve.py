"""Optimal policies for the average reward, for models of two states and of millions.

`solve` chooses a method by what it measures in the first sweeps. The methods can be called by their names, too:
`policy_iteration`, `relative_value_iteration` and `modified_policy_iteration`; `multichain_policy_iteration` for models
with several recurrent classes; `linear_programme` with and without a limit on the cost; `certified_policy_iteration`,
which is Algorithm 1 of the paper; and `truncate` for models with infinitely many states.
`discounted_policy_iteration` answers another question: which policy is the best for a discount.

The solvers end with a vector h. For *any* h, the best gain from every start state lies between the smallest and the
largest entry of max_a [r + P·h] − h (Puterman 1994, Theorem 8.5.5). These two numbers are returned as `gain_bounds`,
and the solvers stop when they are close enough. Ctrl-C raises `Stopped`; its `solution` has the bounds known so far.
"""

from kemeny.tabular.certified import certified_policy_iteration
from kemeny.tabular.choice import solve
from kemeny.tabular.discounted import DiscountedSolution, discounted_policy_iteration
from kemeny.tabular.linear_programme import linear_programme
from kemeny.tabular.multichain import multichain_policy_iteration
from kemeny.tabular.policy_iteration import policy_iteration
from kemeny.tabular.solution import Known, Solution, Stopped
from kemeny.tabular.truncation import Truncation, truncate
from kemeny.tabular.value_iteration import modified_policy_iteration, relative_value_iteration

__all__ = [
    "DiscountedSolution",
    "Known",
    "Solution",
    "Stopped",
    "Truncation",
    "certified_policy_iteration",
    "discounted_policy_iteration",
    "linear_programme",
    "modified_policy_iteration",
    "multichain_policy_iteration",
    "policy_iteration",
    "relative_value_iteration",
    "solve",
    "truncate",
]
