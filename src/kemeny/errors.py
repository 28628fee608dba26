"""The two ways in which things go wrong that are not bugs of Kemeny's."""


class UserError(ValueError):
    """A mistake of the caller's: one sentence that says what is wrong and what to do (exit code 2)."""


class RunError(RuntimeError):
    """Something outside went wrong while a run was under way: an environment, a worker, the disk."""
