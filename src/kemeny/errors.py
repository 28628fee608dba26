"""The ways in which things go wrong that are not bugs of Kemeny's."""


class UserError(ValueError):
    """A mistake of the caller: one sentence that says what is wrong and what to do (exit code 2)."""


class InUse(UserError):
    """Another process is at work there. Nothing was changed, and the same command can be given again later."""


class RunError(RuntimeError):
    """Something outside went wrong while a run was in progress: an environment, a worker, the disk."""


class Damaged(RunError):
    """What was read from a file cannot be used; the message names the file and says why."""


class Renormalised(UserWarning):
    """Probabilities that did not sum to 1 were divided by their sum: what was given has fewer digits than a float."""
