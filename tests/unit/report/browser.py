"""A headless Chromium driven through a pipe by its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
_LIMIT_S = 120.0


def find_browser() -> str | None:
    """Return the path of an installed Chromium, None without one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One tab; ``problems`` are its console errors, exceptions and failed loads."""

    def __init__(self, commands: int, answers: int) -> None:
        self.problems: list[str] = []
        self._commands, self._answers, self._buffer = commands, answers, b""
        self._number, self._session, self._has_loaded = 0, "", False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Load a page at a width and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._has_loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._has_loaded:
            self._message()

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], _LIMIT_S)[0], "the browser hangs"
            block = os.read(self._answers, 1 << 16)
            assert block, "the browser has ended"
            self._buffer += block
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        found = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._has_loaded = True
            case "Runtime.exceptionThrown":
                self.problems.append(str(found["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning", "assert"):
                self.problems.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.problems.append(str(found["entry"]))
            case "Network.requestWillBeSent" if not found["request"]["url"].startswith(
                ("file:", "data:")
            ):
                self.problems.append(found["request"]["url"])
        return message


@contextmanager
def open_tab(browser: str, profile: Path) -> Iterator[Tab]:
    """Start a browser and yield a tab of it."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]

    def connect() -> None:  # Chromium reads file 3 and writes file 4
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [browser, *_OPTIONS, f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=connect,
    )
    for end in (commands, answers, *high):
        os.close(end)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
