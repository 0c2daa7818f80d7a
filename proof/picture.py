"""Takes a picture of a page with chromium, which nothing else of the house needs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Refused

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SIZE = "1280,1800"
_TOLD = 400


def picture(page: Path, into: Path, deadline: Deadline) -> None:
    """
    Write the top of ``page``, as a wide window shows it, to ``into`` as PNG.

    Raises:
        Refused: there is no chromium, or it wrote no picture; the text says what to do.
        DeadlineExceeded: it did not end in time.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise Refused(
            "a picture needs chromium and none was found on PATH; install it (Debian: apt-get install chromium) "
            "or leave --picture out"
        )
    into.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="brew-picture-", ignore_cleanup_errors=True) as profile:
        # Root has no sandbox to give; the page's own policy lets nothing in or out.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--window-size={_SIZE}", f"--screenshot={into.resolve()}", page.resolve().as_uri()]
        try:
            done = subprocess.run(
                [browser, *options, *shot], capture_output=True, check=False, timeout=deadline.remaining_s()
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(f"picture: {browser} did not end within {deadline.budget_s:g} s") from error
    if done.returncode or not into.exists():
        told = done.stderr.decode(errors="replace").strip()[-_TOLD:]
        raise Refused(
            f"{browser} ended with {done.returncode} and wrote no picture; leave --picture out, or see: {told}"
        )
