"""Shapes and types are checked at run time in tests only; JAX is strict about mixed types."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # pytest -n uses the cores

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")
install_import_hook(
    ["kemeny.advantages", "kemeny.direction", "kemeny.learner", "kemeny.normalizer", "kemeny.policy", "kemeny.rollout"],
    "beartype.beartype",
)
