"""How a run is asked to stop: by Ctrl-C, by a scheduler's signal, by a callback, or because it cannot go on."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from kemeny.errors import RunError
from kemeny.observers import Observer

CALL_AGAIN = 75
"""The exit code that asks for the same command again: EX_TEMPFAIL of <sysexits.h>."""
BY_A_SCHEDULER = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send, or a terminal that is closed: the process shall leave, and may be called again."""


class Interrupted(RunError):
    """Training was asked to stop by a signal, finished its iteration and wrote a checkpoint."""

    def __init__(self, message: str, by: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.by = by
        """The signal that came first."""


class StoppedAtOnce(KeyboardInterrupt):
    """A scheduler's signal came while nothing was trained, so there is nothing to finish."""


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let a scheduler's signal end what is not training (yet), such as imports, with `StoppedAtOnce`.

    While a run trains, its `Stop` hears the signals instead. Those that are ignored or heard by others stay so.
    """
    before: dict[int, Callable[..., Any] | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        for number in BY_A_SCHEDULER:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:
    raise StoppedAtOnce(signal.Signals(number).name)


class Stop:
    """Whether a run shall stop after the iteration in progress, once it has written a checkpoint.

    While it is entered, Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP (the terminal is closed) ask for that. A second
    Ctrl-C stops at once. Another second signal does not: schedulers and shells send one to the process and one to its
    group, and who cannot wait has SIGKILL.
    """

    def __init__(self) -> None:
        self.asked = False
        self.finished = False
        """Because nothing is left to gain."""
        self.interrupted_by: int | None = None
        """The signal that came first."""
        self._impatient = False
        self.error: BaseException | None = None
        """What to raise after the checkpoint."""
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def ask(self, error: BaseException | None = None) -> None:
        """Stop after this iteration, and then raise the error, if there is one."""
        self.asked = True
        self.error = self.error or error

    def finish(self) -> None:
        """Stop after this iteration, as at the end of the run."""
        self.asked = self.finished = True

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *BY_A_SCHEDULER):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: object) -> None:
        del frame
        if number == signal.SIGINT:
            if self._impatient:
                raise KeyboardInterrupt
            self._impatient = True
        self.interrupted_by = self.interrupted_by or number
        self.ask()


class CallbackObserver(Observer):
    """The user's callback: it gets every record, and may ask to stop by returning True, or by raising."""

    def __init__(self, callback: Callable[[dict[str, Any]], Any], stop: Stop) -> None:
        self._callback, self._stop = callback, stop

    def iteration(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        self._call({"log": "metrics", **record})

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl."""
        self._call({"log": "evaluations", **record})

    def _call(self, record: dict[str, Any]) -> None:
        if self._stop.error is not None:
            return
        try:
            answer = self._callback(record)
        except BaseException as error:
            self._stop.ask(error)
            return
        if answer is True:
            self._stop.ask()
