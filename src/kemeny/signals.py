"""Ctrl-C and SIGTERM while a run is under way."""

import signal
import threading
from collections.abc import Callable
from typing import Any


class StopSignals:
    """Ctrl-C or SIGTERM asks for a stop after the iteration; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
