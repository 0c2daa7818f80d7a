"""The brokers of a campaign: a sandbox, broken by its own commands, or an external cluster, which is never broken."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from brew.client_config import load
from brew.connection import CLIENT_CONFIG, Connection
from brew.deadline import Deadline
from brew.errors import KafkaFailure, Refused
from brew.kafka import cluster_admin
from brew.kafka.clients import AdminClient, admin
from proof.campaign.cell import Need
from proof.campaign.programs import ROOT, repeated

CLIENTS = "clients"
_COMMAND_S, _POLL_S = 240.0, 0.05
_GUARD = 'read -r word || { "$@"; rm -rf -- "$0"; }'
_ALL, _HEAP_MB = 3, 512
_DISK_MB = 4096  # of the last broker; an hour of mixtures writes more than 512 MiB
# Kafka creates its internal topics at first use.
_INTERNAL = (cluster_admin.OFFSETS, cluster_admin.TRANSACTIONS)


class ExternalCluster:
    """A cluster that is never broken; cells that need to break brokers are inconclusive on it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def lacks(self, need: Need) -> bool:
        return need not in {Need.SPARK, Need.PROXY}

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap)

    @functools.cached_property
    def admin(self) -> AdminClient:
        return admin(self.connection)

    def restore(self, deadline: Deadline, topics: Sequence[str] = ()) -> None:
        """Do nothing: an external cluster is never broken."""


class SandboxFolder:
    """A folder for servers of `python -m sandbox`, or of its ``group``; removed on exit, even after an error."""

    def __init__(self, folder: Path, *group: str) -> None:
        self.folder, self._group = folder, group
        folder.mkdir(parents=True, exist_ok=True)
        self._guard = guard(folder, self._command("down", "--wipe"))

    def run(self, *words: str) -> None:
        """Run a command; raise `Refused` with its output if it fails."""
        done = self._run(*words)
        if done.returncode != 0:
            raise Refused(f"`python -m {' '.join(['sandbox', *self._group, *words])}` failed: {done.stderr.strip()}")

    def status(self) -> dict[str, Any]:
        """Return the output of `status`, also when it exits with 3 because a server is down."""
        status: dict[str, Any] = json.loads(self._run("status", "--json").stdout)
        return status

    def close(self) -> None:
        with contextlib.suppress(Refused, subprocess.TimeoutExpired):
            self.run("down", "--wipe")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guard.communicate(b"ended\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self._command(*words)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_COMMAND_S, check=False)

    def _command(self, *words: str) -> list[str]:
        ours = ("--config", os.devnull, "--dir", str(self.folder))  # no brew.toml of the user's own servers
        return [sys.executable, "-m", "sandbox", *self._group, *words, *ours]


class Sandbox(SandboxFolder, ExternalCluster):
    """A cluster started by the campaign, with additional broker settings."""

    def __init__(
        self, directory: Path, brokers: int = _ALL, properties: Mapping[str, str] | None = None, *, secure: bool = False
    ) -> None:
        SandboxFolder.__init__(self, directory)
        self._touched = False
        """Whether anything was broken since the cluster was last whole."""
        options = ["--brokers", str(brokers), "--port", "0", "--quick", "--heap-mb", str(_HEAP_MB)]
        if secure:
            options.append("--secure")
        if brokers >= _ALL:
            options += ["--network", "namespaces", "--data-size-mb", str(_DISK_MB)]
        try:
            self.run("up", *options, *repeated("--property", properties or {}))
            status = self.status()
            self._nodes: list[dict[str, Any]] = status["brokers"]
            ExternalCluster.__init__(self, str(status["bootstrap"]))
            self._secure: dict[str, Any] | None = status.get("secure")
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Connection:
        """A connection with all rights."""
        if self._secure is None:
            return Connection(self.bootstrap)
        config = load(self.client_config("admin"))
        return Connection(self.bootstrap, config.properties, config.secrets, config.source)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the helper programs, not of the one under test: their credentials."""
        return {} if self._secure is None else {CLIENT_CONFIG: str(self.client_config("admin"))}

    def client_config(self, user: str) -> Path:
        """Return the `--client-config` file of ``user``, for a secure cluster."""
        if self._secure is None:
            raise Refused("this sandbox has no users; start it with --secure")
        return Path(self._secure["client_configs"][user])

    @property
    def brokers(self) -> list[int]:
        return [int(node["broker"]) for node in self._nodes]

    @property
    def disk_broker(self) -> int:
        return next(int(node["broker"]) for node in self._nodes if node["data_size_mb"])

    def lacks(self, need: Need) -> bool:
        if need is Need.THREE:
            return len(self._nodes) < _ALL
        if need is Need.NETWORKS:
            return any(node["network"] != "namespaces" for node in self._nodes)
        return need is Need.DISK and not any(node["data_size_mb"] for node in self._nodes)

    def kill(self, *numbers: int) -> float:
        """Send SIGKILL to all these brokers at once; return the time."""
        return self._signal(numbers, signal.SIGKILL)

    def pause(self, *numbers: int) -> float:
        return self._signal(numbers, signal.SIGSTOP)

    def resume(self, *numbers: int) -> float:
        return self._signal(numbers, signal.SIGCONT)

    def _signal(self, numbers: Sequence[int], what: signal.Signals) -> float:
        # A command's own start would delay the kill: it only reports the pids, and the signal is sent from here.
        processes = {int(node["broker"]): node["process"] for node in self.status()["brokers"]}
        self._touched = True
        for number in numbers:
            if processes[number] is None:
                raise Refused(f"broker {number} is not running")
            os.kill(int(processes[number]), what)
        return time.time()

    def restart(self, *numbers: int) -> None:
        """Start brokers again, all together; those that are running are shut down cleanly first."""
        self._touched = True
        self.run("restart", *map(str, numbers))

    def cut(self, number: int, *others: int | str) -> float:
        """Block all traffic between a broker and others; return the time at which it was blocked."""
        return self._broken("cut", str(number), *(word for other in others for word in ("--from", str(other))))

    def fill(self, number: int) -> float:
        return self._broken("fill", str(number))

    def heal(self) -> float:
        """Undo cuts and full disks; return the time at which it was done."""
        self.run("heal")
        return time.time()

    def _broken(self, *words: str) -> float:
        self._touched = True
        self.run(*words)
        return time.time()

    def down(self) -> list[int]:
        return [int(node["broker"]) for node in self.status()["brokers"] if not node["running"]]

    def restore(self, deadline: Deadline, topics: Sequence[str] = ()) -> None:
        """Heal everything, and wait until each replica of ``topics`` and of Kafka's internal topics is in sync."""
        if not self._touched and self._is_healthy(topics, deadline):
            return  # no fault was injected, and nothing failed by itself
        self.run("heal")
        nodes = self.status()["brokers"]
        for node in nodes:
            if node["running"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(node["process"]), signal.SIGCONT)
        if gone := [int(node["broker"]) for node in nodes if not node["running"]]:
            self.restart(*gone)
        while not self._is_healthy(topics, deadline):
            time.sleep(_POLL_S)
        self._touched = False

    def _is_healthy(self, topics: Sequence[str], deadline: Deadline) -> bool:
        deadline.check("all replicas in sync")
        with contextlib.suppress(KafkaFailure):
            if len(cluster_admin.brokers(self.admin, deadline)) == len(self._nodes):
                known = set(self.admin.list_topics(timeout=max(0.1, deadline.remaining_s())).topics)
                return not cluster_admin.out_of_sync(self.admin, known.intersection([*topics, *_INTERNAL]), deadline)
        return False


def guard(directory: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a shell that runs ``command`` and removes ``directory`` once our end of its pipe closes without a word."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, str(directory), *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
