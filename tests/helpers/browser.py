"""A real browser without a window: Chromium, controlled by its debugging protocol over a pair of pipes.

Source: https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

NAMES = "chromium", "chromium-browser", "google-chrome"
_TIMEOUT_S = 60.0
_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
_KEY_CODES |= {f"Arrow{side}": 37 + number for number, side in enumerate(("Left", "Up", "Right", "Down"))}


class Rendered(NamedTuple):
    """A rendered page: its picture as PNG, the URLs it requested, the console's messages, and the evaluated values."""

    picture: bytes
    requests: list[str]
    console: list[str]
    values: dict[str, Any]


def executable() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser, for one page at a time; close it after use."""

    def __init__(self, profile: Path) -> None:
        path = executable()
        assert path is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4; a shell puts the pipes there.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", "--disable-background-networking", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, path, *flags, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def render(self, page: Path | str, *, width: int, dark: bool, evaluate: dict[str, str]) -> Rendered:
        """Open a file or a URL in a window of a width in pixels, and evaluate JavaScript expressions by name."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        if not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive(lambda message: message.get("method") == "Page.loadEventFired")
        values = {name: self.evaluate(expression) for name, expression in evaluate.items()}
        picture = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        by_method = {
            method: [event["params"] for event in self._events if event["method"] == method]
            for method in ("Network.requestWillBeSent", "Log.entryAdded", "Runtime.consoleAPICalled")
        }
        return Rendered(
            picture=base64.b64decode(picture),
            requests=[event["request"]["url"] for event in by_method["Network.requestWillBeSent"]],
            console=[str(event) for event in by_method["Log.entryAdded"] + by_method["Runtime.consoleAPICalled"]],
            values=values,
        )

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, or that of its promise."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"]
        return result.get("value")

    def press(self, *keys: str) -> None:
        """Press and release keys, by their names in JavaScript: "Enter", "ArrowLeft", "a"."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _KEY_CODES.get(key, 0)
            down = {"text": text} if text else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **down)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(_TIMEOUT_S)
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._receive(lambda message: message.get("id") == self._number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that is wanted, and keep the events before it."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
                assert ready, "the browser does not answer"
                received = os.read(self._in, 1 << 20)
                assert received, "the browser has ended"
                self._buffer += received
            text, _, self._buffer = self._buffer.partition(b"\0")
            message: dict[str, Any] = json.loads(text)
            if wanted(message):
                return message
            self._events.append(message)
