"""A real browser: a page as it is after its script has run, or open while the script runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from brew.deadline import Deadline

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Node:
    """An element in the browser's document."""

    tag: str
    attributes: dict[str, str]


class Page(HTMLParser):
    """All elements of a page in order, and the text below each id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.texts: dict[str, str] = {}
        self._inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.nodes.append(Node(tag, attributes))
        self._inside.append((tag, attributes.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, name in self._inside:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def attribute(self, name: str, which: str) -> str:
        """Return one attribute of the element with this id."""
        return next(node.attributes[which] for node in self.nodes if node.attributes.get("id") == name)


def browser_path() -> str:
    """
    Return the browser's path.

    Raises:
        RuntimeError: there is none; the text names the command that installs one.
    """
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        raise RuntimeError("this test looks at a page with chromium and none is on PATH: apt-get install chromium")
    return browser


def rendered(page: Path, fragment: str = "") -> Page:
    """
    Return the page's elements after its script has run, with this fragment in its address.

    Raises:
        RuntimeError: there is no browser, or it ended with an error.
    """
    browser = browser_path()
    with tempfile.TemporaryDirectory(prefix="brew-browser-", ignore_cleanup_errors=True) as profile:
        # The browser's sandbox can't run as root; the page's own policy blocks all network access.
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
        done = subprocess.run(
            [browser, *options, page.resolve().as_uri() + fragment],
            capture_output=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    if done.returncode:
        raise RuntimeError(f"{browser} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}")
    return Page(done.stdout.decode())


WAIT = """new Promise((done, failed) => {
  const end = performance.now() + 15000;
  const look = () => (%s) ? done(true) : performance.now() > end ? failed("not in time") : requestAnimationFrame(look);
  look();
})"""
"""A script that returns when its condition (after `%`) holds."""
_START_S = 40.0
_PIECE = 1 << 16


class Tab:
    """One page, through the browser's pipe (Chrome DevTools Protocol: JSON messages, each followed by a zero byte)."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = into, out
        self._held = b""
        self._next = 0
        self._session: str | None = None

    def open(self, url: str) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")
        self.ask("Page.navigate", url=url)

    def evaluate(self, script: str, seconds: float = 20.0) -> Any:
        """Return the value of a script's last expression or, if that is a promise, its result."""
        reply = self.ask(
            "Runtime.evaluate",
            seconds,
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            timeout=seconds * 1000,
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def point(self, selector: str, *, press: bool = False) -> None:
        """Scroll to an element and move the pointer to its middle; with ``press``, click there."""
        script = f"""(() => {{
          const found = document.querySelector({json.dumps(selector)});
          found.scrollIntoView({{block: "center"}});
          const {{x, y, width, height}} = found.getBoundingClientRect();
          return [x + width / 2, y + height / 2];
        }})()"""
        x, y = self.evaluate(script)
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if press else ():
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str, code: int) -> None:
        """Press and release a key; ``code`` is its Windows key code, which the browser uses."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def ask(self, method: str, seconds: float = _START_S, **parameters: Any) -> Any:
        """Send a command and return its answer; events in between are skipped."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        deadline = Deadline(seconds)
        while not deadline.expired():
            reply = self._message()
            if reply.get("id") == self._next:
                assert "error" not in reply, reply["error"]
                return reply["result"]
        raise AssertionError(f"{method}: no answer within {seconds:g} s")

    def _message(self) -> Any:
        while b"\0" not in self._held:
            piece = os.read(self._out, _PIECE)
            assert piece, "the browser has ended"
            self._held += piece
        first, _, self._held = self._held.partition(b"\0")
        return json.loads(first)


@contextmanager
def tab(url: str) -> Iterator[Tab]:
    """Yield the page at ``url`` in a separate browser, which is closed at the end."""
    browser = browser_path()
    their_in, into = os.pipe()
    out, their_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="brew-browser-", ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        # The browser reads its commands from descriptor 3 and answers on 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}', browser, *options]
        process = subprocess.Popen(
            shell, pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(their_in)
        os.close(their_out)
        try:
            page = Tab(into, out)
            page.open(url)
            yield page
        finally:
            process.terminate()
            process.wait(_START_S)
            os.close(into)
            os.close(out)
