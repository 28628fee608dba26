"""The exact quantities of a finite model as tables, and the bounds as a picture: the content of `kemeny exact`."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import rich.console
import rich.table

from kemeny.errors import UserError
from kemeny.tabular import bounds, solve
from kemeny.tabular.chain import DENSE_LIMIT, Chain
from kemeny.tabular.mdp import MDP
from kemeny.tabular.worst_case import kappa_star

EFFECTIVE_HORIZONS = np.logspace(1, 6, 41)
"""1/(1−γ), the horizontal axis of the picture."""

MANY_PROBES = 30_000
"""Most states for which κ is estimated from 60 probes; each probe is a solve, so larger chains get 12."""

SEARCH_LIMIT = 100
"""Most states for which κ* is searched for: a second for 44 states, and more than ten minutes for 312."""


def report_model(
    mdp: MDP, output: pathlib.Path, limit: float | None = None, share: float = 0.01, precision: float = 1e-8
) -> None:
    """Print the exact quantities of a model and draw the bounds on a step from the uniform policy.

    The step goes the fraction `share` of the way to the best policy. With `limit`, the best policy whose average cost
    keeps the limit is reported too. The gain of a large model is found to within `precision`, relative to the gain.
    """
    if not 0 < share <= 1:
        raise UserError(f"The share must be above 0 and at most 1, not {share:g}.")
    if limit is not None:
        mdp.signal("cost")  # a model without costs is refused before anything is computed
    console = rich.console.Console()
    console.print(f"[bold]{mdp.name}[/bold]: {counted(mdp.n_states, 'state')}, {counted(mdp.n_actions, 'action')}")
    best = solve_unichain(mdp, precision, console)
    if best is None:
        report_multichain(mdp, console)
        if limit is not None:
            report_limit_of_multichain(mdp, limit, console)
        return
    report_best(mdp, best, console)
    report_policies(mdp, best.policy, console)
    if limit is not None:
        report_limit(mdp, limit, console)
    if mdp.n_states > DENSE_LIMIT:
        console.print(f"More than {DENSE_LIMIT:,} states: no bounds and no picture, which need dense matrices.")
        return
    old = mdp.uniform_policy
    new = (1 - share) * old + share * mdp.policy(best.policy)
    report_bounds(mdp, old, new, share, console)
    draw_bounds(mdp, old, new, output)
    console.print(f"Wrote {output}.")


def solve_unichain(mdp: MDP, precision: float, console: rich.console.Console) -> solve.Solution | None:
    """The best policy, or None if the gain may depend on the start state; shows what is known meanwhile."""
    if not mdp.chain(mdp.uniform_policy).is_unichain:
        return None
    with console.status("Solving the model") as status:

        def watch(known: solve.Known) -> None:
            width = f"{known.high - known.low:.2g}"
            status.update(f"{known.method}: the best gain is in [{known.low:.8g}, {known.high:.8g}], width {width}")

        try:
            return found_unichain(mdp, solve.solve(mdp, precision=precision, watch=watch))
        except UserError:
            # Policy iteration met a policy with several recurrent classes; the best policy may still have only one.
            return None


def found_unichain(mdp: MDP, best: solve.Solution) -> solve.Solution | None:
    """The solution, or None if its policy has several recurrent classes."""
    return best if mdp.chain(best.policy).is_unichain else None


def report_multichain(mdp: MDP, console: rich.console.Console) -> None:
    """For a gain that depends on the start state: the best gain and the action of each state."""
    found = solve.multichain_policy_iteration(mdp)
    console.print(f"The gain may depend on the start state. The best policy has {mdp.chain(found.policy).classes}.")
    table = rich.table.Table(title="The best policy", title_justify="left")
    for heading in ("start state", "best gain", "action"):
        table.add_column(heading, justify="right")
    for s in range(min(mdp.n_states, 60)):
        table.add_row(str(s), f"{found.gain[s]:.10g}", str(found.policy[s]))
    console.print(table)
    console.print("The paper's bounds need policies with one recurrent class, so no picture is drawn.")


def report_policies(mdp: MDP, best: np.ndarray, console: rich.console.Console) -> None:
    """A table of the uniform policy and the best policy."""
    table = rich.table.Table(title="Exact quantities", title_justify="left")
    table.add_column("")
    columns = {"uniform policy": mdp.uniform_policy, "best policy": best}
    for heading in columns:
        table.add_column(heading, justify="right")
    chains = [mdp.chain(policy) for policy in columns.values()]
    table.add_row("ρ, reward per step", *(number(mdp.evaluate(policy).rho) for policy in columns.values()))
    if mdp.costs is not None:
        table.add_row(
            "ρ_c, cost per step", *(number(mdp.evaluate(policy, signal="cost").rho) for policy in columns.values())
        )
    for name, quantity in QUANTITIES.items():
        with console.status(f"Computing: {name}"):
            table.add_row(name, *(attempt(quantity, chain) for chain in chains))
    console.print(table)
    if mdp.n_states > SEARCH_LIMIT:
        console.print(f"More than {SEARCH_LIMIT} states: κ*, the largest κ of all policies, is not searched for.")
    else:
        worst = kappa_star(mdp)
        relation = "=" if worst.exact else "≥"
        how = "all deterministic policies were tried" if worst.exact else "found by a search, so a lower bound"
        console.print(f"κ* {relation} {worst.value:.6g}, the largest κ of all policies ({how})")


QUANTITIES: dict[str, Callable[[Chain], Any]] = {
    "transient states": lambda chain: len(chain.classes.transient),
    "period": lambda chain: chain.periods[0],
    "κ = Tr(Z), Kemeny's constant": lambda chain: (
        chain.kemeny if chain.n <= DENSE_LIMIT else chain.kemeny_estimate(probes=60 if chain.n <= MANY_PROBES else 12)
    ),
    "1 + (n−1)/(1−SLEM), upper bound on κ": lambda chain: chain.kemeny_bound,
    "Tr(Z), including transient states": lambda chain: chain.trace,
    "ζ = ‖Z‖∞": lambda chain: chain.zeta,
    "SLEM": lambda chain: chain.slem,
    "mixing time (TV ≤ ¼)": lambda chain: chain.mixing_time(),
    "longest mean first passage": lambda chain: chain.first_passage.max(),
}


def attempt(quantity: Callable[[Chain], Any], chain: Chain) -> str:
    """The quantity as text, or a dash if the chain does not have it (a periodic chain never mixes)."""
    try:
        value = quantity(chain)
    except UserError:
        return "–"
    return number(value) if isinstance(value, float) else str(value)


def counted(count: int, noun: str) -> str:
    """1 state, 2 states."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """A number with ten digits."""
    return f"{value:.10g}"


def report_best(mdp: MDP, best: solve.Solution, console: rich.console.Console) -> None:
    """The best policy and its gain."""
    low, high = best.gain_bounds
    iterations = counted(best.iterations, "iteration")
    console.print(f"Best gain {best.gain:.12g}, by {best.method} in {iterations}.", soft_wrap=True)
    console.print(f"It is certainly between {low:.12g} and {high:.12g}: a width of {high - low:.2g}.", soft_wrap=True)
    console.print(f"Why this method: {best.reason}.", soft_wrap=True)
    if mdp.n_states <= 400:
        console.print("Best policy, the action in each state:", " ".join(map(str, best.policy)), soft_wrap=True)
    else:
        counts = np.bincount(best.policy, minlength=mdp.n_actions)
        console.print(
            "Best policy, number of states per action:", " ".join(f"{a}: {n:,}" for a, n in enumerate(counts))
        )


def report_limit(mdp: MDP, limit: float, console: rich.console.Console) -> None:
    """The best policy whose average cost keeps the limit."""
    found = solve.linear_programme(mdp, limit)
    mixed = np.flatnonzero((found.policy > 1e-9).sum(axis=1) > 1)
    where = ", ".join(f"state {s}: {np.round(found.policy[s], 6).tolist()}" for s in mixed) or "no state"
    console.print(
        f"With average cost ≤ {limit:g}: best gain {found.gain:.12g} at cost {found.cost:.12g}. The gain grows by "
        f"{found.price:.6g} per unit of the limit. The policy is random in {where}."
    )


def report_limit_of_multichain(mdp: MDP, limit: float, console: rich.console.Console) -> None:
    """The same, if the best policy under the limit does not depend on the start state; otherwise an error says why."""
    try:
        report_limit(mdp, limit, console)
    except UserError as problem:
        raise UserError(f"The limit {limit:g} was not applied to this model: {problem}") from problem


def report_bounds(mdp: MDP, old: np.ndarray, new: np.ndarray, share: float, console: rich.console.Console) -> None:
    """A table of the certificates of one step."""
    table = rich.table.Table(
        title=f"Bounds on ρ(π') − ρ(π) for a step of {share:g} from the uniform policy toward the best policy",
        title_justify="left",
    )
    for heading in ("statement", "lower", "exact", "upper", "constants"):
        table.add_column(heading, justify="left" if heading in ("statement", "constants") else "right")
    statements = (
        bounds.lemma_1,
        bounds.lemma_2,
        bounds.theorem_1,
        bounds.theorem_1_kl,
        bounds.theorem_1_tight,
        bounds.theorem_unichain,
    )
    found = [statement(mdp, old, new) for statement in statements]
    found += [bound(mdp, old, new, 0.999, scaled=True) for bound in (bounds.schulman, bounds.achiam)]
    for c in found:
        constants = ", ".join(f"{symbol} = {value:.4g}" for symbol, value in c.constants.items())
        table.add_row(c.statement, f"{c.lower:.6g}", f"{c.exact:.6g}", f"{c.upper:.6g}", constants)
    console.print(table)


def draw_bounds(mdp: MDP, old: np.ndarray, new: np.ndarray, output: pathlib.Path) -> None:
    """Draw lower bounds on one step against 1/(1−γ): the discounted bounds fall without limit, the average ones not."""
    from matplotlib.figure import Figure

    gammas = 1 - 1 / EFFECTIVE_HORIZONS
    achiam = [bounds.achiam(mdp, old, new, gamma, scaled=True) for gamma in gammas]
    schulman = [bounds.schulman(mdp, old, new, gamma, scaled=True).lower for gamma in gammas]
    average, tight = bounds.theorem_1(mdp, old, new), bounds.theorem_1_tight(mdp, old, new)
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(EFFECTIVE_HORIZONS, [c.exact for c in achiam], color="black", label="exact, (1−γ)(ρ_γ(π') − ρ_γ(π))")
    axes.axhline(tight.lower, color="tab:green", label="average: Lemmas 2 and 3, 2(κ−1)·ε·E[TV]")
    axes.axhline(average.lower, color="tab:blue", label="average: Theorem 1, 2ξ·E[TV]")
    axes.plot(
        EFFECTIVE_HORIZONS, [c.lower for c in achiam], color="tab:orange", label="(1−γ) × Achiam et al., Corollary 1"
    )
    axes.plot(
        EFFECTIVE_HORIZONS, schulman, ":", linewidth=3, color="tab:red", label="(1−γ) × Schulman et al., Theorem 1"
    )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=max(abs(average.exact), 1e-3))
    axes.set_xlabel("1/(1−γ)")
    axes.set_ylabel("lower bound on the improvement of a step")
    axes.set_title(f"{mdp.name}: {mdp.n_states} states, κ(π') = {mdp.chain(new).trace:.4g}", loc="left", fontsize=10)
    axes.set_ylim(top=10 * max(abs(average.exact), 1e-3))
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    axes.grid(alpha=0.3)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=140, metadata={"Software": None} if output.suffix == ".png" else None)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {output} cannot be written: {error}.") from None
