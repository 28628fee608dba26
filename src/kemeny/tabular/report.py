"""`kemeny exact`: everything exact about a finite model, as tables and one picture."""

import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import rich.console
import rich.table
from tyro.conf import Positional, arg

from kemeny.errors import UserError
from kemeny.tabular import bounds, solve
from kemeny.tabular import zoo as zoo_models
from kemeny.tabular.chain import DENSE_LIMIT, Chain
from kemeny.tabular.mdp import MDP
from kemeny.tabular.worst_case import kappa_star

HORIZONS = np.logspace(1, 6, 41)
"""1/(1−γ) along the picture."""


def exact(
    file: Annotated[Positional[pathlib.Path | None], arg(metavar="FILE")] = None,
    zoo: str | None = None,
    output: Annotated[pathlib.Path, arg(aliases=["-o"])] = pathlib.Path("exact.png"),
    limit: float | None = None,
    share: float = 0.01,
) -> None:
    """Solve a finite model exactly: its constants, its best policy, and what the bounds say about a step toward it.

    Args:
        file: A model, as numpy.savez(FILE, P=…, r=…) writes it: P is states × actions × states, r states × actions.
        zoo: The name of a known model instead of a file, such as access_control.
        output: The picture of the bounds against the discount; its ending chooses the format (png, pdf, svg).
        limit: Solve also for the best policy whose average cost keeps this limit (the model needs costs).
        share: How far the step goes from the uniform policy toward the best one, for the bounds.
    """
    if (file is None) == (zoo is None):
        raise UserError(
            "Name a file or, with --zoo, a known model, but not both: " + ", ".join(zoo_models.MODELS) + "."
        )
    if not 0 < share <= 1:
        raise UserError(f"The share must be above 0 and at most 1, not {share:g}.")
    mdp = MDP.load(file) if file is not None else zoo_models.model(str(zoo))
    console = rich.console.Console()
    console.print(f"[bold]{mdp.name}[/bold]: {mdp.n_states:,} states, {mdp.n_actions} actions")
    best = solve_unichain(mdp)
    if best is None:
        report_multichain(mdp, console)
        return
    report_policies(mdp, best.policy, console)
    report_best(mdp, best, console)
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


def solve_unichain(mdp: MDP) -> solve.Solution | None:
    """The best policy, or None where the gain may depend on the start."""
    if not mdp.chain(mdp.uniform_policy).is_unichain:
        return None
    try:
        best = solve.policy_iteration(mdp)
    except UserError:
        # A policy on the way has several recurrent classes; the best one need not.
        return None
    return best if mdp.chain(best.policy).is_unichain else None


def report_multichain(mdp: MDP, console: rich.console.Console) -> None:
    """Where the gain depends on the start: gain and action for each start."""
    found = solve.multichain_policy_iteration(mdp)
    console.print(f"The gain may depend on the start. The best policy has {mdp.chain(found.policy).classes}.")
    table = rich.table.Table(title="The best policy", title_justify="left")
    for heading in ("start", "best gain", "action"):
        table.add_column(heading, justify="right")
    for s in range(min(mdp.n_states, 60)):
        table.add_row(str(s), f"{found.gain[s]:.10g}", str(found.policy[s]))
    console.print(table)
    console.print("The paper's bounds are about models with one recurrent class, so there is no picture.")


def report_policies(mdp: MDP, best: np.ndarray, console: rich.console.Console) -> None:
    """The uniform policy and the best one side by side."""
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
        table.add_row(name, *(attempt(quantity, chain) for chain in chains))
    console.print(table)
    if mdp.n_states <= DENSE_LIMIT:
        worst = kappa_star(mdp)
        relation = "=" if worst.exact else "≥"
        how = "all deterministic policies tried" if worst.exact else "a search, so a lower bound"
        console.print(f"κ* {relation} {worst.value:.6g}, the largest κ of any policy ({how})")


QUANTITIES: dict[str, Callable[[Chain], Any]] = {
    "transient states": lambda chain: len(chain.classes.transient),
    "period": lambda chain: chain.periods[0],
    "κ = Tr(Z), Kemeny's constant": lambda chain: chain.kemeny if chain.n <= DENSE_LIMIT else chain.kemeny_estimate(),
    "1 + (n−1)/(1−SLEM), its bound": lambda chain: chain.kemeny_bound,
    "Tr(Z), transient states included": lambda chain: chain.trace,
    "ζ = ‖Z‖∞": lambda chain: chain.zeta,
    "SLEM": lambda chain: chain.slem,
    "mixing time (TV ≤ ¼)": lambda chain: chain.mixing_time(),
    "longest mean first passage": lambda chain: chain.first_passage.max(),
}


def attempt(quantity: Callable[[Chain], Any], chain: Chain) -> str:
    """The quantity, or a dash where the chain has none (a periodic chain never mixes)."""
    try:
        value = quantity(chain)
    except UserError:
        return "–"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Ten digits."""
    return f"{value:.10g}"


def report_best(mdp: MDP, best: solve.Solution, console: rich.console.Console) -> None:
    """The optimal policy and its gain."""
    console.print(f"Best gain {best.gain:.12g}, by {best.method} in {best.iterations} iterations.")
    if mdp.n_states <= 400:
        console.print("Best policy, the action of each state:", " ".join(map(str, best.policy)), soft_wrap=True)
    else:
        counts = np.bincount(best.policy, minlength=mdp.n_actions)
        console.print("Best policy, states per action:", " ".join(f"{a}: {n:,}" for a, n in enumerate(counts)))


def report_limit(mdp: MDP, limit: float, console: rich.console.Console) -> None:
    """The constrained optimum."""
    found = solve.linear_programme(mdp, limit)
    mixed = np.flatnonzero((found.policy > 1e-9).sum(axis=1) > 1)
    where = ", ".join(f"state {s}: {np.round(found.policy[s], 6).tolist()}" for s in mixed) or "nowhere"
    console.print(
        f"With average cost ≤ {limit:g}: best gain {found.gain:.12g} at cost {found.cost:.12g}; a unit of the limit is "
        f"worth {found.price:.6g}; random in {where}."
    )


def report_bounds(mdp: MDP, old: np.ndarray, new: np.ndarray, share: float, console: rich.console.Console) -> None:
    """The certificates of one step."""
    table = rich.table.Table(
        title=f"A step of {share:g} from the uniform policy toward the best: ρ(π') − ρ(π)", title_justify="left"
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
    """The lower bounds on one step against 1/(1−γ): the discounted ones fall without limit, the average ones stay."""
    from matplotlib.figure import Figure

    gammas = 1 - 1 / HORIZONS
    achiam = [bounds.achiam(mdp, old, new, gamma, scaled=True) for gamma in gammas]
    schulman = [bounds.schulman(mdp, old, new, gamma, scaled=True).lower for gamma in gammas]
    average, tight = bounds.theorem_1(mdp, old, new), bounds.theorem_1_tight(mdp, old, new)
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(HORIZONS, [c.exact for c in achiam], color="black", label="exact, (1−γ)(ρ_γ(π') − ρ_γ(π))")
    axes.axhline(tight.lower, color="tab:green", label="average: Lemmas 2 and 3, 2(κ−1)·ε·E[TV]")
    axes.axhline(average.lower, color="tab:blue", label="average: Theorem 1, 2ξ·E[TV]")
    axes.plot(HORIZONS, [c.lower for c in achiam], color="tab:orange", label="(1−γ) × Achiam et al., Corollary 1")
    axes.plot(HORIZONS, schulman, ":", linewidth=3, color="tab:red", label="(1−γ) × Schulman et al., Theorem 1")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=max(abs(average.exact), 1e-3))
    axes.set_xlabel("1/(1−γ)")
    axes.set_ylabel("lower bound on the gain of a step")
    axes.set_title(f"{mdp.name}: {mdp.n_states} states, κ(π') = {mdp.chain(new).trace:.4g}", loc="left", fontsize=10)
    axes.set_ylim(top=10 * max(abs(average.exact), 1e-3))
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    axes.grid(alpha=0.3)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=140, metadata={"Software": None} if output.suffix == ".png" else None)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {output} cannot be written: {error}.") from None
