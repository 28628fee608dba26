"""Ways to improve a policy on samples, each a `PolicyStep`."""
