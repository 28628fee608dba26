"""A policy meets environments: acting in NumPy, collecting, evaluating, filming."""
