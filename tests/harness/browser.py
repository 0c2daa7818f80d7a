"""A real browser for the tests: a page as it is after its script has run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

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
