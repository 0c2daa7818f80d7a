"""
Isolation of the sandbox's brokers, as root: a network of their own, and a data directory of limited size.

Each broker has a network namespace, all on one bridge; a cut is a blackhole route, on both sides if both have one.
Names are derived from the directory, so that they suffice to remove what a killed command left. A limited disk is a
small file system in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brew.errors import Refused
from sandbox.process import locked

CLIENTS = "clients"

_PREFIX = "brew"
_RANGE = ipaddress.IPv4Network("10.213.0.0/16")
_HOST_PART, _COMMAND_S, _TRIES = 254, 10, 50
_NO_DISK = "omit --data-size-mb"


@dataclass(frozen=True, slots=True)
class Network:
    """The network of one sandbox directory; every call runs one or a few `ip` commands."""

    directory: Path

    @property
    def name(self) -> str:
        """The bridge's name and the prefix of all other names; interface names have at most 15 characters."""
        return _PREFIX + hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:8]

    def namespace(self, number: int) -> str:
        return f"{self.name}-{number}"

    def entering(self, number: int) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace(number)}"]

    def make(self, numbers: Collection[int]) -> dict[int, str]:
        """Create what is missing; return each broker's address."""
        # Two sandboxes that choose addresses at the same time would choose the same ones.
        with locked(Path(tempfile.gettempdir()) / f"{_PREFIX}-network.lock"):
            hosts = self._bridge()
            known = set(_namespaces())
            for number in numbers:
                if self.namespace(number) not in known:
                    self._join(number, hosts)
        return {number: str(hosts[number]) for number in numbers}

    def _bridge(self) -> ipaddress.IPv4Network:
        addresses = self._addresses()
        if addresses is not None:
            return addresses
        hosts = _unused()
        _ip("link", "add", self.name, "type", "bridge")
        # Tells `sweep` the owner if nothing else is left of it.
        _ip("link", "set", "dev", self.name, "alias", str(self.directory.resolve())[:250])
        _ip("address", "add", f"{hosts[_HOST_PART]}/{hosts.prefixlen}", "dev", self.name)
        _ip("link", "set", self.name, "up")
        return hosts

    def _join(self, number: int, hosts: ipaddress.IPv4Network) -> None:
        inside = self.namespace(number)
        _ip("netns", "add", inside)
        _ip("link", "add", inside, "type", "veth", "peer", "name", "eth0", "netns", inside)
        _ip("link", "set", inside, "master", self.name, "up")
        _ip("-n", inside, "address", "add", f"{hosts[number]}/{hosts.prefixlen}", "dev", "eth0")
        _ip("-n", inside, "link", "set", "eth0", "up")
        _ip("-n", inside, "link", "set", "lo", "up")

    def _addresses(self) -> ipaddress.IPv4Network | None:
        links = (link for link in _asked("-json", "address", "show") if link.get("ifname") == self.name)
        return next((_network(link["addr_info"][0]) for link in links if link.get("addr_info")), None)

    def cut(self, number: int, others: Collection[int | str]) -> None:
        """Block all traffic between broker ``number`` and the ``others`` (broker numbers, or `CLIENTS`)."""
        if (hosts := self._addresses()) is None:
            raise Refused(
                f"the brokers of {self.directory} have no networks of their own; use `up --network namespaces`"
            )
        for other in others:
            far = _HOST_PART if other == CLIENTS else int(other)
            self._blackhole(number, str(hosts[far]))
            if other != CLIENTS:
                self._blackhole(far, str(hosts[number]))

    def _blackhole(self, number: int, address: str) -> None:
        _ip("-n", self.namespace(number), "route", "replace", "blackhole", f"{address}/32")

    def heal(self) -> int:
        """Remove all cuts; return their number."""
        cuts = 0
        for inside in self._mine():
            for route in _asked("-n", inside, "-json", "route", "show", "type", "blackhole"):
                _ip("-n", inside, "route", "delete", "blackhole", str(route["dst"]))
                cuts += 1
        return cuts

    def remove(self) -> None:
        """Remove the whole network; does nothing if there is none."""
        if not may_isolate():
            return
        # Links first: the kernel keeps a namespace and its end of the link while a process in it is still exiting.
        for link in [str(link["ifname"]) for link in _asked("-json", "link", "show")]:
            if link == self.name or link.startswith(f"{self.name}-"):
                _ip("link", "delete", link)
        for inside in self._mine():
            _ip("netns", "delete", inside)

    def _mine(self) -> list[str]:
        return [name for name in _namespaces() if name.startswith(f"{self.name}-")]


def may_isolate() -> bool:
    """Return whether this process may create namespaces: it needs to be root, with `ip` and `nsenter`."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in ("ip", "nsenter"))


def sweep() -> list[Path]:
    """Remove the networks of directories that no longer exist; return these directories."""
    gone = []
    for link in _asked("-json", "link", "show", "type", "bridge"):
        owner = link.get("ifalias")
        if str(link["ifname"]).startswith(_PREFIX) and owner and not Path(owner).exists():
            Network(Path(owner)).remove()
            gone.append(Path(owner))
    return gone


def _unused() -> ipaddress.IPv4Network:
    links = _asked("-json", "-4", "address", "show")
    taken = [_network(address) for link in links for address in link.get("addr_info", ())]
    routes = [route["dst"] for route in _asked("-json", "-4", "route", "show", "table", "all")]
    taken += [ipaddress.IPv4Network(dst, strict=False) for dst in routes if dst != "default"]
    candidates = list(_RANGE.subnets(new_prefix=24))
    random.shuffle(candidates)
    unused = (candidate for candidate in candidates if not any(map(candidate.overlaps, taken)))
    if (found := next(unused, None)) is None:
        raise Refused(f"no free network in {_RANGE}; use `--network loopback`")
    return found


def _network(address: dict[str, Any]) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)


def _namespaces() -> list[str]:
    return [str(namespace["name"]) for namespace in _asked("-json", "netns", "list")]


def _asked(*words: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(_ip(*words) or "[]")
    return [answer for answer in answers if answer]


def _ip(*words: str) -> str:
    return _run("ip", *words, instead="use `--network loopback`")


def limit_disk(directory: Path, size_mb: int) -> None:
    """Mount ``size_mb`` MiB of memory at ``directory``; an existing mount is resized and keeps its data."""
    directory.mkdir(parents=True, exist_ok=True)
    if directory.resolve() in _mounted():
        _mount("-o", f"remount,size={size_mb}m", str(directory))
    else:
        _mount("-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "brew-sandbox", str(directory))


def fill_disk(directory: Path) -> int:
    """Remove all free space, so that the next write fails; return the bytes in use."""
    if directory.resolve() not in _mounted():
        raise Refused(f"{directory} is not a file system of its own; `up --data-size-mb 512` as root creates one")
    for _ in range(_TRIES):
        used = shutil.disk_usage(directory).used
        # A write in between makes the size too small, which the kernel refuses.
        with contextlib.suppress(Refused):
            _mount("-o", f"remount,size={used}", str(directory))
            return used
    raise Refused(f"{directory} fills faster than it can be shrunk; pause its broker and retry")


def release_disks(below: Path) -> None:
    """Unmount everything below a sandbox's directory; the data is lost."""
    root = below.resolve()
    for place in sorted(_mounted(), reverse=True):
        if root in place.parents:
            _run("umount", "--lazy", str(place), instead=_NO_DISK)


def may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _mounted() -> set[Path]:
    """Return the mount points of file systems in memory; the kernel writes blanks as octal escapes."""
    lines = Path("/proc/self/mounts").read_text().splitlines() if Path("/proc/self/mounts").exists() else []
    rows = [line.split(" ") for line in lines]
    return {Path(row[1].encode().decode("unicode_escape")) for row in rows if row[2] == "tmpfs"}


def _mount(*words: str) -> None:
    _run("mount", *words, instead=_NO_DISK)


def _run(*words: str, instead: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode != 0:
        raise Refused(f"`{' '.join(words)}` failed: {done.stderr.strip()}; {instead}")
    return done.stdout
