"""`kemeny exact`: solve a finite model exactly."""

import pathlib
import sys
import warnings
from typing import Annotated

from tyro.conf import Positional, arg


def exact(
    file: Annotated[Positional[pathlib.Path | None], arg(metavar="FILE")] = None,
    zoo: str | None = None,
    output: Annotated[pathlib.Path, arg(aliases=["-o"])] = pathlib.Path("exact.png"),
    reward: str | None = None,
    costs: str | None = None,
    limit: float | None = None,
    share: float = 0.01,
    precision: float = 1e-8,
) -> None:
    """Solve a finite model exactly: print its constants, its best policy and the bounds on a step toward that policy.

    Args:
        file: A model: one of Storm's .drn files (DTMC, MDP or CTMC), or a .npz file written by mdp.save(FILE) or by
            numpy.savez(FILE, P=…, r=…), where P is states × actions × states and r is states × actions.
        zoo: The name of a known model instead of a file, such as access_control.
        output: The picture to write, the bounds against the discount; its suffix sets the format (png, pdf, svg).
        reward: Of a .drn file: the reward model to maximise (the first one by default), or a label, whose states pay 1.
        costs: Of a .drn file: the reward model, or the label, that is the cost.
        limit: Also find the best policy whose average cost is at most this; the model needs costs.
        share: The size of the step for the bounds: the fraction of the way from the uniform policy to the best one.
        precision: How well the best gain of a large model must be known, relative to the gain. Ctrl-C stops the search
            and prints the bounds that are known by then.
    """
    from kemeny.errors import UserError
    from kemeny.experiments.exact import report_model
    from kemeny.tabular import solve
    from kemeny.tabular.mdp import MDP
    from kemeny.tabular.zoo import MODELS, model

    if file is not None and zoo is None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            mdp = MDP.load(file, reward, costs)
        for warning in said:
            print(warning.message, file=sys.stderr)
    elif zoo is not None and file is None:
        if reward is not None or costs is not None:
            raise UserError("A model of the zoo has its own rewards and costs; leave out --reward and --costs.")
        mdp = model(zoo)
    else:
        raise UserError(f"Give either a model file or, with --zoo, the name of a known model: {', '.join(MODELS)}.")
    if not 0 < precision < 1:
        raise UserError(f"The precision must be above 0 and below 1, not {precision:g}.")
    try:
        report_model(mdp, output, limit, share, precision)
    except solve.Stopped as stopped:
        print(stopped)
        raise SystemExit(130) from None
