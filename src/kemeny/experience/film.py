"""A policy on film: one trajectory of the mean action as an mp4."""

from pathlib import Path

import numpy as np

from kemeny.envs.camera import make_camera
from kemeny.envs.names import EnvLike, as_environment
from kemeny.errors import UserError
from kemeny.experience.acting import Policy


def record(policy: Policy, env: EnvLike, path: Path, *, max_steps: int, seed: int) -> int:
    """Film one trajectory until a fall or `max_steps`; the number of steps filmed.

    The trajectory is the first of an evaluation with the same seed.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("Videos need an extra package: pip install 'kemeny[video]'.") from error
    camera = make_camera(env, seed=seed)
    try:
        one = np.arange(1)
        observation = camera.pool.reset(one)
        picture = camera.picture()
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(
                f"{as_environment(env).name} cannot be filmed: its pictures have shape {picture.shape}, "
                "not height × width × 3."
            )
        height, width = picture.shape[:2]
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=camera.fps, macro_block_size=2)
        writer.send(None)
        filmed = 0
        while filmed < max_steps:
            writer.send(np.ascontiguousarray(picture))
            camera.pool.send(policy.mode(policy.head(observation)))
            step = camera.pool.recv()
            filmed += 1
            observation, picture = step.observation, camera.picture()
            if (step.terminated | step.truncated).any():
                break
        writer.send(np.ascontiguousarray(picture))
        writer.close()
        return filmed
    except OSError as error:
        raise UserError(f"The video {path} cannot be written: {error}.") from error
    finally:
        camera.pool.close()
