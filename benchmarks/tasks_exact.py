"""Stocks, solved exactly: the best average cost with its certain bounds, the best rules, and what was published.

    python benchmarks/tasks_exact.py [--only lost_sales-2-4 dual_sourcing-2-105 …]

Each instance is solved twice, the second time with wider bounds on its states (the column "wider"), which shows that
the bounds do not matter. Without --only all instances are solved, and benchmarks/results/tasks_exact.md is written.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kemeny import tasks
from kemeny.tabular import solve
from kemeny.tabular.mdp import MDP
from kemeny.tasks.demand import uniform_demand
from kemeny.tasks.inventory import DualSourcing, LostSales
from kemeny.tasks.process import Process
from kemeny.tasks.stock_rules import Best, best_base_stock, best_capped_base_stock, best_dual_index

LOST_SALES = {(2, 4): 4.395, (2, 9): 6.094, (3, 4): 4.599, (3, 9): 6.531, (4, 4): 4.729, (4, 9): 6.836}
"""Lead time and penalty → published optimal cost."""
DUAL_SOURCING = {
    (2, 105): 216.75, (2, 110): 219.71, (3, 105): 216.85, (3, 110): 220.32, (4, 105): 216.87, (4, 110): 220.58,
}  # fmt: skip
"""Lead time and express cost → published optimal cost."""

PRECISION = 1e-9
OUTPUT = Path(__file__).parent / "results" / "tasks_exact.md"


class Instance(NamedTuple):
    """A process, the same with wider bounds, and what to compare it with."""

    name: str
    process: Process
    wider: Process
    published: float | None
    rules: tuple[Callable[[MDP], Best], ...]


def instances() -> Iterator[Instance]:
    for (lead_time, penalty), published in LOST_SALES.items():
        stock = tasks.lost_sales(lead_time, penalty)
        wider = tasks.lost_sales(lead_time, penalty, capacity=stock.capacity + 5)
        yield Instance(f"lost_sales-{lead_time}-{penalty}", stock, wider, published, rules_of(stock))
    for (lead_time, express), published in DUAL_SOURCING.items():
        stock = tasks.dual_sourcing(lead_time, express)
        wider = DualSourcing(lead_time, (100.0, express), (5.0, 495.0), uniform_demand(4), 10, (-8, 16))
        yield Instance(f"dual_sourcing-{lead_time}-{express}", stock, wider, published, rules_of(stock))
    yield Instance("perishable", tasks.perishable(), tasks.perishable(largest_order=12), None, ())


def rules_of(stock: LostSales | DualSourcing) -> tuple[Callable[[MDP], Best], ...]:
    """The plain family and the capped one."""
    if isinstance(stock, LostSales):
        return lambda model: best_base_stock(stock, model), lambda model: best_capped_base_stock(stock, model)
    return lambda model: best_dual_index(stock, model), lambda model: best_dual_index(stock, model, capped=True)


def row(instance: Instance) -> str:
    model = instance.process.model()
    exact = solve.solve(model, precision=PRECISION)
    rules = [find(model) for find in instance.rules]
    del model
    wider = solve.solve(instance.wider.model(), precision=PRECISION)
    cells = [
        instance.name,
        f"{len(exact.policy):,}",
        f"{-exact.gain:.6f}",
        f"[{-exact.gain_bounds[1]:.8f}, {-exact.gain_bounds[0]:.8f}]",
        f"{-wider.gain:.6f} ({len(wider.policy):,} states)",
        *(show(rule, -exact.gain) for rule in rules),
        *["—"] * (2 - len(rules)),
        "—" if instance.published is None else f"{instance.published:g}",
    ]
    return f"| {' | '.join(cells)} |"


def show(best: Best, exact: float) -> str:
    levels = ", ".join(f"{name} {value}" for name, value in vars(best.rule).items() if name != "largest_order")
    return f"{best.cost:.4f} (+{100 * (best.cost / exact - 1):.2f} %; {levels})"


HEAD = """| instance | states | best cost | certain bounds | wider | base-stock or dual-index | with a cap | published |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], choices=[one.name for one in instances()])
    only = parser.parse_args().only
    rows, began = [], time.monotonic()
    print(HEAD, end="")
    for instance in instances():
        if not only or instance.name in only:
            rows.append(row(instance))
            print(rows[-1], flush=True)
    if not only:
        OUTPUT.write_text(
            "# Stocks, solved exactly\n\n"
            f"`python benchmarks/tasks_exact.py`, {time.monotonic() - began:.0f} s on {platform.machine()}, "
            f"{os.cpu_count()} cores, shared with other work.\n\n" + NOTES + HEAD + "\n".join(rows) + "\n"
        )
        print(f"Wrote {OUTPUT.name}.")


NOTES = """Costs are averages per period. "wider" is the best cost with wider bounds on the states: a capacity larger
by 5 (lost sales), orders up to 10 and a net stock from −8 to 16 (dual sourcing), orders up to 12 (perishable). Costs of
rules are exact, from the stationary distributions of their chains; in brackets, what they lose, and their parameters.
lost_sales-ℓ-p has the lead time ℓ and the penalty p, dual_sourcing-ℓ-e the regular lead time ℓ and the express cost e.

The published costs of lost sales are reproduced to all digits. Those of dual sourcing are below the certain bounds of
the model as it is described, by 0.009 to 0.015 %; wider bounds do not change that. They come from a secondary source,
and only this order of events was tried.

Of rules with a cap, the best level for each cap (or for each distance of two levels) is found by a walk that ends where
the cost rises; that no better one lies beyond is checked by brute force on small instances, not proved.

"""

if __name__ == "__main__":
    main()
