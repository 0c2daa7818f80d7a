"""Settings and options of probes: where a program answers, and how long a partition may make no progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from brew.cli import flag, named_option, options, plain_option
from brew.errors import UsageError

PORT = 3000
HOST = "127.0.0.1"
TTL_S = 300.0
_SHORTEST_TTL_S, _LONGEST_TTL_S = 1.0, 86_400.0
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """
    ``port`` 0 is any free one; ``asked``: the user named the port, so no other one will do. ``polling_ttl_s``: how long
    a partition may go without being polled. ``consuming_ttl_s``: how long it may make no progress although there are
    records to read.
    """

    host: str = HOST
    port: int = PORT
    asked: bool = False
    polling_ttl_s: float = TTL_S
    consuming_ttl_s: float = TTL_S

    def __post_init__(self) -> None:
        checked_host(self.host, "PROBE_HOST (--probe-host)")
        for setting, value in (("--polling-ttl", self.polling_ttl_s), ("--consuming-ttl", self.consuming_ttl_s)):
            if not _SHORTEST_TTL_S <= value <= _LONGEST_TTL_S:
                raise UsageError(
                    f"{setting} is {value:g}: it has to be between {_SHORTEST_TTL_S:g} and {_LONGEST_TTL_S:g} s"
                )


def checked_host(host: str, setting: str) -> str:
    """Refuse an empty address, as of an unset variable: a socket takes it for all addresses of the machine."""
    if not host:
        raise UsageError(f"{setting} is empty; name an address, such as {HOST}, or leave the option out")
    return host


PROBE_OPTIONS = (
    plain_option(
        "--probe-port",
        f"Port of probes and /status; also of metrics; 0: any free port.  [default: {PORT} with --follow]",
        envvar="PROBE_PORT",
        type=click.IntRange(0, 65_535),
    ),
    flag("--no-probes", "Serve no probes.", envvar="NO_PROBES"),
    named_option("--probe-host", "PROBE_HOST", HOST, "Address on which probes listen."),
    *(
        plain_option(
            name,
            f"Time until a partition {which} counts as stuck.  [default: {TTL_S:g}, more for long work]",
            type=float,
        )
        for name, which in (("--polling-ttl", "that is not polled"), ("--consuming-ttl", "without progress"))
    ),
)
probe_options = options(*PROBE_OPTIONS)


def probe_settings(given: Mapping[str, Any], *, follow: bool, longest_work_s: float) -> ProbeSettings | None:
    """
    Return the settings; None for a draining program, which reports by its exit code. ``longest_work_s``: how long one
    healthy piece of work may take. Raises `UsageError`: an invalid time, or one shorter than ``longest_work_s``.
    """
    if given["no_probes"] or (given["probe_port"] is None and not follow):
        return None
    return ProbeSettings(
        given["probe_host"],
        PORT if given["probe_port"] is None else given["probe_port"],
        given["probe_port"] is not None,
        _ttl("--polling-ttl", given["polling_ttl"], longest_work_s),
        _ttl("--consuming-ttl", given["consuming_ttl"], longest_work_s),
    )


def _ttl(setting: str, asked: float | None, longest_work_s: float) -> float:
    """Return the time: the default leaves room for the work, a given one must not be shorter than it."""
    if asked is None:
        return max(TTL_S, longest_work_s + _SLACK_S)
    if asked < longest_work_s:
        raise UsageError(
            f"{setting} is {asked:g}: it has to be at least {longest_work_s:g} s, which one piece of work may take "
            "(twice the transaction timeout and the time to load profiles, or the poll interval); "
            f"raise {setting}, or shorten those"
        )
    return asked
