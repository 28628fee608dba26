"""The animation of the README: trained policies side by side, as a WebP file that browsers play again and again.

    python benchmarks/film.py runs/humanoid-3M-10 runs/humanoid-3M-11 runs/humanoid-3M-12 -o docs/pictures/humanoid.webp

It shows the last seconds of the first `--steps` steps of each run, by the mean action.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from kemeny.experience.evaluate import evaluation_seed
from kemeny.experience.film import stills
from kemeny.runs.directory import Run
from kemeny.runs.environment import environment_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=340, help="more, and they leave the floor that is drawn")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the environment's time")
    parser.add_argument("--fps", type=float, default=22.0, help="pictures per second")
    parser.add_argument("--crop", type=int, nargs=4, default=(110, 150, 370, 450), help="left, top, right, bottom")
    parser.add_argument("--quality", type=int, default=55)
    given = parser.parse_args()
    films = [_film(Run(path), given.steps, round(given.seconds * given.fps), 1 / given.fps) for path in given.runs]
    left, top, right, bottom = given.crop
    together = [
        Image.fromarray(np.concatenate([one[top:bottom, left:right] for one in moment], axis=1))
        for moment in zip(*films, strict=True)
    ]
    how = {"save_all": True, "append_images": together[1:], "duration": round(1000 / given.fps), "loop": 0}
    together[0].save(given.output, quality=given.quality, method=6, **how)
    print(f"Wrote {given.output}: {len(together)} pictures, {given.output.stat().st_size:,} bytes.")


def _film(run: Run, steps: int, count: int, apart: float) -> list[np.ndarray]:
    env = environment_of(run)
    taken = stills(run.policy, env, count=count, max_steps=steps, seed=evaluation_seed(0, 0), apart=apart)
    print(f"Filmed {run.path}, until step {taken[-1].step}.")
    return [still.picture for still in taken]


if __name__ == "__main__":
    main()
