"""A running program, probed as an orchestrator does."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from brew.observability.status import Status, from_json

from .programs import Running
from .waiting import until

PAGES = ("/livez", "/readyz", "/startupz", "/metrics", "/status", "/status?producers")


@dataclass
class Probed:
    """A running program, and the address of its probes."""

    program: Running

    def url(self) -> str:
        addresses: list[str] = []

        def announced() -> bool:
            addresses[:] = re.findall(r"probes at (http://\S+)", self.program.output())
            assert self.program.alive(), self.program.output()
            return bool(addresses)

        until(announced, "probes are announced")
        return addresses[0]

    def ask(self, page: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url() + page, timeout=5) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def code(self, page: str) -> int:
        return self.ask(page)[0]

    def status(self) -> Status:
        return from_json(self.ask("/status")[1])

    def metric(self, line: str) -> float:
        """Return the sum of all samples whose name and labels contain ``line``."""
        lines = [sample for sample in self.ask("/metrics")[1].decode().splitlines() if re.match(line, sample)]
        return sum(float(sample.rpartition(" ")[2]) for sample in lines)

    def until(self, condition: Callable[[Status], bool], what: str, seconds: float = 20) -> Status:
        seen: list[Status] = []

        def holds() -> bool:
            seen.append(self.status())
            return condition(seen[-1])

        try:
            until(holds, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {seen[-1]}") from None
        return seen[-1]

    def ends(self) -> None:
        self.program.terminate()
        assert self.program.wait(20).code == 0
