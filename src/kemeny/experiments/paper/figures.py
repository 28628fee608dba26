"""Each figure and table of the paper: the runs it shows, how it is drawn, and what the paper says about it."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from kemeny.errors import UserError

TASKS = ("cheetah", "ant", "humanoid")
"""As the names of arms begin."""
BEST = {"cheetah": "trpo99", "ant": "trpo99", "humanoid": "trpo95"}
"""TRPO with the discount factor that the paper found best on each task (§6.2)."""
DISCOUNTS = ("trpo80", "trpo90", "trpo95", "trpo99", "trpo999")
COSTS = ("atrpo-cost10", "atrpo-cost50", "atrpo", "atrpo-cost200", "atrpo-cost500")
ALL = "all"


class PaperFigure(NamedTuple):
    """One figure or table."""

    name: str
    title: str
    whats: tuple[str, ...]
    """What it shows of each task, as the names of arms end; BEST stands for TRPO's best discount factor."""
    central: str
    """What it is about: a task that has no such run is left out."""
    paper: tuple[str, ...]
    """What the paper says, in our words and with its numbers."""
    kind: Literal["curves", "speed", "lengths"] = "curves"
    rows: tuple[Literal["return", "rate", "cost"], ...] = ("return",)
    longest: int = 10_000
    """The longest horizon of the returns that it shows."""

    def arms(self, there: Sequence[str]) -> list[str]:
        """The arms that it shows, of those that there are."""
        found = []
        for task in TASKS:
            whats = [what.replace("BEST", BEST[task]) for what in self.whats]
            arms = [f"{task}-{what}" for what in whats if f"{task}-{what}" in there]
            if any(self.central in arm for arm in arms):
                found += arms
        return found


FIGURES: Mapping[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        PaperFigure(
            "figure-1",
            "Figure 1: ATRPO and TRPO with different discount factors",
            ("atrpo", *DISCOUNTS),
            "-trpo",
            (
                "On HalfCheetah, TRPO with its best discount factor performs as well as ATRPO.",
                "On Ant and Humanoid, ATRPO is dramatically better.",
                "On Humanoid, ATRPO is 50.1 % better than TRPO with its best discount factor on trajectories of at "
                "most 1,000 steps, and 913 % better on trajectories of at most 10,000 steps.",
                "The best discount factor is 0.99 on HalfCheetah and Ant, and 0.95 on Humanoid.",
            ),
        ),
        PaperFigure(
            "figure-2",
            "Figure 2: the speed of a Humanoid over one trajectory",
            ("atrpo", "trpo95"),
            "humanoid",
            (
                "From the seed that is best for TRPO, its agent is faster at first, is more erratic, and falls after "
                "about 5,000 steps. ATRPO's agent is a little slower and walks all 10,000 steps.",
            ),
            kind="speed",
        ),
        PaperFigure(
            "table-1",
            "Table 1: lengths of the trajectories of a Humanoid",
            ("trpo95", "atrpo"),
            "humanoid",
            ("All 10 seeds of ATRPO walk 10,000 steps without a fall. TRPO's trajectories are those of the table.",),
            kind="lengths",
        ),
        PaperFigure(
            "appendix-f",
            "Appendix F: ACPO with a limit of 2.0 on the speed, and ATRPO",
            ("acpo", "atrpo"),
            "acpo",
            ("ACPO learns high-performing policies while it enforces the limit.",),
            rows=("return", "cost"),
            longest=1_000,
        ),
        PaperFigure(
            "appendix-i-standard",
            "Appendix I: ATRPO, and TRPO trained without the reset scheme",
            ("atrpo", *(f"{what}-episodic" for what in DISCOUNTS)),
            "episodic",
            ("ATRPO still outperforms TRPO by a significant margin.",),
        ),
        PaperFigure(
            "appendix-i-reset",
            "Appendix I: TRPO's best discount factor with and without the reset scheme, and ATRPO",
            ("atrpo", "BEST", "BEST-episodic"),
            "episodic",
            ("TRPO performs quite similarly with and without the reset scheme.",),
        ),
        PaperFigure(
            "appendix-i-cost",
            "Appendix I: ATRPO with reset costs of 10, 50, 100, 200 and 500, and TRPO's best discount factor",
            (*COSTS, "BEST"),
            "atrpo-cost",
            (
                "ATRPO is largely insensitive to the reset cost. On Humanoid, costs of 200 and 500 make it worse, but "
                "it stays above TRPO.",
            ),
            longest=1_000,
        ),
    )
}


def chosen(names: Sequence[str]) -> list[PaperFigure]:
    """The figures with these names; `all` is every one."""
    for name in names:
        if name != ALL and name not in FIGURES:
            raise UserError(f"The paper has no figure named {name} here; there are {', '.join(FIGURES)}, and {ALL}.")
    return [figure for name, figure in FIGURES.items() if {name, ALL} & set(names)]


def only_tasks(arms: Sequence[str]) -> dict[str, list[str]]:
    """The arms of each task."""
    tasks = {task: [arm for arm in arms if arm.startswith(f"{task}-")] for task in TASKS}
    return {task: there for task, there in tasks.items() if there}
