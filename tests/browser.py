"""A browser for tests: headless Chromium, driven over a pipe with the DevTools protocol and nothing but JSON."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60.0  # seconds for one answer, on a machine that does other things
# The browser listens at 3 and speaks at 4; a small program puts the pipes there before it becomes the browser.
_BECOME = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Browser:
    """One window with one page; a context manager."""

    def __init__(self, profile):
        inward, self._send = os.pipe()
        self._receive, outward = os.pipe()
        far = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inward, outward)]
        command = [sys.executable, "-c", _BECOME, *map(str, far), CHROMIUM, *_FLAGS]
        command += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=far, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (inward, outward, *far):
            os.close(end)
        self._buffer, self._count, self._session, self._events = b"", 0, None, []
        self.errors = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, EOFError):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._send)
            os.close(self._receive)

    def call(self, method, **parameters):
        """Send one command and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._send, data) :]
        while (answer := self._read()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def open(self, path, *, width, height=900, dark=False, touch=False, query=""):
        """Load a file in a window of this size and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors, self._events = [], []
        self.call("Page.navigate", url=Path(path).absolute().as_uri() + query)
        while "Page.loadEventFired" not in self._events:
            self._note(self._read())
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression):
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found.get("exceptionDetails")
        return found["result"].get("value")

    def mouse(self, kind, x, y, **more):
        """Send a mouse event such as ``mouseMoved`` at a place in the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name, text=""):
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)

    def screenshot(self, path, whole=True):
        """Write the page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True} if whole else {}
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    def _note(self, event):
        method, details = event.get("method"), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(details["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.errors.append(details["args"])
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(details["entry"])

    def _read(self):
        while b"\0" not in self._buffer:
            if not select.select([self._receive], [], [], PATIENCE)[0]:
                raise TimeoutError(f"the browser said nothing for {PATIENCE:g} s")
            data = os.read(self._receive, 1 << 20)
            if not data:
                raise EOFError("the browser went away")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
