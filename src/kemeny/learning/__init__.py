"""From a batch to a better policy, in JAX: pure functions that know no environment, clock or disk."""
