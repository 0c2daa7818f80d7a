"""What the live view is told, refused together; frozen."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.settings import PipelineSettings
from protocol.errors import UsageError
from protocol.observe.settings import PORT

LOOPBACK = "127.0.0.1"
OWN_STATUS = f"http://{LOOPBACK}:{PORT}/status"
"""Where a run on this machine answers by default."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """
    What to look at, and how often.

    ``run`` names cluster, topics and group; ``statuses`` are addresses of running programs' `/status`; ``tail`` is how
    many offsets of each output partition are drawn; ``patience_s`` is what one question may take.
    """

    run: PipelineSettings
    statuses: tuple[str, ...] = ()
    proof: Path | None = None
    interval_s: float = 1.0
    patience_s: float = 5.0
    tail: int = 400

    def __post_init__(self) -> None:
        limits = [
            ("--interval", self.interval_s, 0.1, 3600),
            ("--patience", self.patience_s, 0.5, 120),
            ("--tail", self.tail, 1, 100_000),
        ]
        for setting, value, least, most in limits:
            if not least <= value <= most:
                raise UsageError(f"{setting} is {value:g}: it has to be between {least:g} and {most:g}")
        for one in self.statuses:
            checked_address(one)


def checked_address(url: str) -> str:
    """
    The address of a status document: `/status` where it names no path.

    Raises:
        UsageError: it is no http address, or holds a user or a password; the text repeats neither.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError(
            "--status-url holds a user or a password: command lines are seen by others; `/status` asks for none"
        )
    try:
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"--status-url is {url!r}: write http://host:port, as in http://127.0.0.1:3000")
    path = parts.path if parts.path not in {"", "/"} else "/status"
    return f"{parts.scheme}://{parts.netloc}{path}"


def loopback(host: str) -> bool:
    """True where only this machine's own programs reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
