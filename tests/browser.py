"""A page in headless Chromium, over the pipe of its debugging protocol: no other package is needed."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120
"""Seconds to wait for an answer; on a busy machine Chromium takes a while to start."""


def program() -> str | None:
    """Where Chromium is; None if it is not installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """An open page, and what it complained about or asked the network for."""

    def __init__(self, to: int, back: int):
        self._to, self._back = to, back
        self._count, self._unread, self._session, self._loaded = 0, b"", "", False
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file, and wait until it is drawn."""
        if not self._session:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.call("Page.bringToFront")  # a page that nobody sees may be drawn late
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False  # the event may come before the answer to the call
        self.call("Page.navigate", url=path.resolve().as_uri())
        if not self._loaded:
            self._wait(lambda _: self._loaded)
        self.run("new Promise((settled) => setTimeout(settled, 50))")

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move, press or release the mouse."""
        about = {"type": f"mouse{kind}", "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", **(about if kind != "Moved" else {**about, "button": "none"}))

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask Chromium, and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number = self._count
        answer = self._wait(lambda event: event.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _wait(self, wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self._unread:
                ready, _, _ = select.select([self._back], [], [], max(0, deadline - time.monotonic()))
                assert ready, f"Chromium did not answer in {PATIENCE} seconds"
                read = os.read(self._back, 2**20)
                assert read, "Chromium has ended"
                self._unread += read
            line, _, self._unread = self._unread.partition(b"\0")
            event = json.loads(line)
            self._note(event.get("method", ""), event.get("params", {}))
            if wanted({"method": "", **event}):
                return event

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and about["entry"]["level"] != "verbose"):
            self.complaints.append(json.dumps(about))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(about["args"]))
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith("data:"):
            self.requests.append(about["request"]["url"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Chromium with an empty profile in this folder; it is ended afterwards."""
    chromium = program()
    assert chromium is not None
    read_by_it, to = os.pipe()
    back, written_by_it = os.pipe()
    # The protocol is on the descriptors 3 and 4, whatever the pipe's ends are called here.
    command = f'exec "$0" "$@" 3<&{read_by_it} 4>&{written_by_it}'
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars".split()
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            command,
            chromium,
            *flags,
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "about:blank",
        ],
        pass_fds=(read_by_it, written_by_it),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(read_by_it)
    os.close(written_by_it)
    page = Page(to, back)
    try:
        yield page
        with contextlib.suppress(AssertionError, OSError):
            page._session = ""
            page.call("Browser.close")
    finally:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to)
        os.close(back)
