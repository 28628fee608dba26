"""What is said when a run ends: above all, whether each limit was kept."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kemeny.runs.directory import Run


def say_finished(run: "Run") -> None:
    """The end of `train` and of `resume`."""
    from kemeny.runs.ending import limits_in_last_evaluation

    for line in limits_in_last_evaluation(run):
        print(line)
    explore = " --explore" if run.config["settings"]["limit"] else ""  # limits are kept for the policy as it explores
    print(
        f"Finished. Look at it with: kemeny evaluate {run.path}{explore}; "
        f"kemeny plot {run.path} -o {run.path}/curve.png"
    )
