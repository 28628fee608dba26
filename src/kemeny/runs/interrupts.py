"""How a run is asked to stop: by Ctrl-C, by SIGTERM or SIGHUP, by a callback, or because it cannot go on."""

import signal
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kemeny.errors import RunError
from kemeny.observers import Observer


class Interrupted(RunError):
    """Training was asked to stop by a signal, finished its iteration and wrote a checkpoint."""


class Stop:
    """Whether a run shall stop after the iteration in progress, once it has written a checkpoint.

    While it is entered, Ctrl-C, SIGTERM and SIGHUP (the terminal is closed) ask for that. A second Ctrl-C or SIGTERM
    stops at once; a second SIGHUP does not, because both the shell and the system send one.
    """

    def __init__(self) -> None:
        self.asked = False
        self.finished = False
        """Because nothing is left to gain."""
        self.interrupted = False
        """By a signal."""
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
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: object) -> None:
        del frame
        if number != signal.SIGHUP:
            if self._impatient:
                raise KeyboardInterrupt
            self._impatient = True
        self.interrupted = True
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
