"""Pictures of an environment."""

from functools import partial

import numpy as np
import pytest

from kemeny.envs import make_pool
from kemeny.envs.film import FPS, make_film
from kemeny.errors import UserError
from tests.envs.toys import Counter

ZERO = np.array([0])


def film_or_skip(*args, **settings):
    try:
        return make_film(*args, **settings)
    except UserError as error:
        if "OpenGL" in str(error):
            pytest.skip(str(error))
        raise


def test_a_v3_body_is_filmed_as_it_moves():
    film = film_or_skip("HalfCheetah-v3", seed=3, size=64)
    plain = make_pool("HalfCheetah-v3", 1, seed=3)
    assert np.array_equal(film.pool.reset(ZERO), plain.reset(ZERO))
    before = film.picture()
    for _ in range(5):
        film.pool.send(np.ones((1, 6), np.float32))
        film.pool.recv()
    after = film.picture()
    assert before.shape == after.shape == (64, 64, 3)
    assert before.dtype == np.uint8
    assert len(np.unique(before)) > 10
    assert not np.array_equal(before, after)
    assert film.fps == 20


def test_a_function_is_filmed_if_it_can_be():
    film = make_film(partial(Counter, render_mode="rgb_array"), seed=0)
    film.pool.reset(ZERO)
    film.pool.send(np.zeros((1, 1), np.float32))
    film.pool.recv()
    assert film.picture().tolist() == np.ones((4, 4, 3)).tolist()
    assert film.fps == 7
    with pytest.raises(UserError, match='must be made with render_mode="rgb_array"'):
        make_film(Counter, seed=0)
    with pytest.raises(UserError, match="cannot be filmed: ZeroDivisionError"):
        make_film(lambda: 1 / 0, seed=0)


def test_gymnasium_films_its_own():
    film = film_or_skip("InvertedPendulum-v5", seed=0, backend="gymnasium")
    assert film.fps == FPS["InvertedPendulum"]


@pytest.mark.parametrize("family", FPS)
def test_the_table_of_speeds_is_gymnasiums(family):
    from kemeny.envs.gymnasium import make_env

    env, _ = make_env(f"{family}-v5")
    assert env.metadata["render_fps"] == FPS[family]
    env.close()
