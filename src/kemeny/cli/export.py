"""`kemeny export`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def export(
    run: Annotated[Positional[Path], arg(metavar="DIR")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("policy.onnx"),
    best: bool = False,
    distribution: bool = False,
) -> None:
    """Write a trained policy as one file that other programs can use, normaliser and bounds included.

    Args:
        run: A run directory, or one of its checkpoints.
        output: The file to write, which is replaced if it exists; its ending chooses the format: onnx, or npz for
            plain NumPy arrays.
        best: Take the policy of the best evaluation instead of the newest.
        distribution: Let the ONNX graph give mean and std, or probabilities, beside the action.
    """
    from kemeny.runs.export import export as write

    print(f"Wrote {write(run, output, best=best, distribution=distribution)}.")
