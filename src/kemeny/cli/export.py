"""`kemeny export`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.cli.parsing import chosen_manner


def export(
    run: Annotated[Positional[Path], arg(metavar="DIR")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("policy.onnx"),
    best: bool = False,
    distribution: bool = False,
    explore: bool = False,
    mean: bool = False,
) -> None:
    """Write a trained policy as one file that other programs can use, normaliser and bounds included.

    Args:
        run: A run directory, or one of its checkpoints.
        output: The file to write, which is replaced if it exists; its ending chooses the format: onnx, or npz for
            plain NumPy arrays.
        best: Take the policy of the best evaluation instead of the newest.
        distribution: Let the ONNX graph give mean and std, or probabilities, beside the action.
        explore: Let it draw its actions, as in training [as the run's --deploy says].
        mean: Let it act by its mean (or likeliest) action [as the run's --deploy says].
    """
    from kemeny.runs.export import export as write

    manner = chosen_manner(explore, mean)
    print(f"Wrote {write(run, output, best=best, distribution=distribution, explore=manner)}.")
