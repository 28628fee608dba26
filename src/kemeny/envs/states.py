"""The state of a vector environment as arrays: what its `get_state()` gives, in a checkpoint and back.

The two methods are all that it takes to resume a run on a vector environment bit for bit:

    def get_state(self):
        return {"waiting": self.waiting, "random": self.np_random}

    def set_state(self, state):
        self.waiting, self.np_random = state["waiting"], state["random"]

The values are NumPy arrays, numbers, and NumPy's generators of random numbers. `set_state` gets new arrays and
generators under the same names, and 0-dimensional arrays for numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kemeny.errors import Damaged, UserError

DTYPES = ("bool", "int32", "int64", "uint32", "float32", "float64")
"""Types of arrays that a checkpoint may hold."""
GENERATOR, ARRAY = "generator", "array"
"""What an array of a checkpoint stands for; the first part of its name."""
WORDS = 10
"""32-bit words of a generator: 4 of its state, 4 of its increment, and a half of a number that may be left over."""


def to_arrays(state: Any, env: str) -> dict[str, np.ndarray]:
    """What `get_state()` returned, as new arrays that a checkpoint can hold."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) and name for name in state):
        raise UserError(f"{env} must return a dictionary of arrays by their names from get_state().")
    arrays = {}
    for name, value in state.items():
        if isinstance(value, np.random.Generator):
            arrays[f"{GENERATOR}/{name}"] = _words(value, name, env)
            continue
        array = np.array(value)
        if array.dtype.name not in DTYPES:
            raise UserError(
                f"{env} returned {name!r} of type {array.dtype} from get_state(), but it must be a NumPy generator, or "
                f"an array of one of the types {', '.join(DTYPES)}."
            )
        arrays[f"{ARRAY}/{name}"] = array
    return arrays


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What `set_state()` is to be given."""
    state: dict[str, Any] = {}
    for full_name, array in arrays.items():
        kind, _, name = full_name.partition("/")
        state[name] = _generator(array, name) if kind == GENERATOR else array.copy()
    return state


def same(some: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    """Whether two states are the same, bit for bit."""
    return some.keys() == others.keys() and all(
        array.dtype == others[name].dtype
        and array.shape == others[name].shape
        and array.tobytes() == others[name].tobytes()
        for name, array in some.items()
    )


def _words(generator: np.random.Generator, name: str, env: str) -> np.ndarray:
    """A generator as 32-bit words."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise UserError(
            f"{env} has a generator {name!r} of the kind {state['bit_generator']}, but only PCG64 can be saved: make "
            "it with numpy.random.default_rng, or use the np_random that Gymnasium makes."
        )
    numbers = [*_split(state["state"]["state"]), *_split(state["state"]["inc"]), state["has_uint32"], state["uinteger"]]
    return np.array(numbers, np.uint32)


def _generator(words: np.ndarray, name: str) -> np.random.Generator:
    if words.shape != (WORDS,) or words.dtype != np.uint32:
        raise Damaged(f"The checkpoint does not fit its run: {name} is no generator of random numbers.")
    numbers = [int(word) for word in words]
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": _joined(numbers[:4]), "inc": _joined(numbers[4:8])},
        "has_uint32": numbers[8],
        "uinteger": numbers[9],
    }
    return np.random.Generator(bits)


def _split(number: int) -> list[int]:
    return [number >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]


def _joined(words: list[int]) -> int:
    return sum(word << shift for word, shift in zip(words, (0, 32, 64, 96), strict=True))
