"""A small client for headless Chromium over its DevTools pipe: pages opened, watched, asked and pictured.

It stands on Debian's package and the standard library only: nothing to download, nothing that opens a port.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
PATIENCE = 60
INSTALL = "apt-get install -y --no-install-recommends chromium fonts-wqy-microhei"


NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed():
    """The path of a browser of Chromium's family, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def program():
    """The path of Chromium, which Debian's package brings where it is missing; an error if it cannot."""
    found = installed()
    if found is None:
        command = f"apt-get update -qq && {INSTALL}"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
        found = installed()
        assert found, f"no Chromium, and `{INSTALL}` did not bring it:\n{done.stderr[-2_000:]}"
    return found


def _pipe():
    """A pipe whose ends are out of the way of the two descriptors that Chromium wants."""
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return ends


class Browser:
    """One running Chromium; `page()` opens a tab. Use it in a `with` block."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        self.reads, theirs_out = _pipe()
        theirs_in, self.writes = _pipe()
        # The pipe must be the descriptors 3 and 4: a shell moves them there before Chromium starts.
        redirect = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        command = ["bash", "-c", redirect, "bash", program(), *FLAGS]
        command += [f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.number, self.messages = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.writes)
        os.close(self.reads)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def page(self):
        """A new empty tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session)

    def call(self, method, session=None, **parameters):
        """What the browser answers; its notices meanwhile are kept in `messages`."""
        self.number += 1
        wanted = self.number
        message = {"id": wanted, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writes, data) :]
        while True:
            found = self.next()
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self.messages.append(found)

    def next(self):
        """The next message of the browser, which must come within a minute."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reads], [], [], max(until - time.monotonic(), 0))
            data = os.read(self.reads, 1 << 20) if ready else b""
            assert data, "Chromium does not answer"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)


class Page:
    """One tab: what it asked of the network, what it complained of, and what stands in it."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def open(self, path, scripts=True):
        """Loads the file and waits until all of it is there."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        del self.browser.messages[:]
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self.heard("Page.loadEventFired"):
            self.browser.messages.append(self.browser.next())
        return self

    def heard(self, *methods):
        """The notices of these kinds since the page was opened."""
        mine = (m for m in self.browser.messages if m.get("sessionId") == self.session)
        return [m["params"] for m in mine if m["method"] in methods]

    def requests(self):
        """Every address that the page asked for."""
        self.ask("0")
        sent = self.heard("Network.requestWillBeSent", "Network.webSocketCreated")
        return [item["request"]["url"] if "request" in item else item["url"] for item in sent]

    def complaints(self):
        """Every error and warning of the console, thrown errors and breaches of the policy included."""
        self.ask("0")
        found = [m["exceptionDetails"]["text"] for m in self.heard("Runtime.exceptionThrown")]
        found += [
            f"{m['type']}: {m['args']}"
            for m in self.heard("Runtime.consoleAPICalled")
            if m["type"] in ("error", "warning", "assert")
        ]
        return found + [m["entry"]["text"] for m in self.heard("Log.entryAdded")]

    def ask(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code=0, text=""):
        """Presses and lets go of one key, as a person would."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", **keys, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def type(self, text):
        """Types the text where the keyboard is."""
        self.call("Input.insertText", text=text)

    def look(self, width=1280, height=900, dark=False, media=""):
        """Sets the size of the window, the colours the reader prefers, and the medium."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        return self

    def picture(self, path, whole=True):
        """Writes a PNG of the page, or of the window only."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(answer["data"]))
