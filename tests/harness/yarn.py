"""YARN on this machine: a resource manager and a node manager as processes, and the settings for clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from brew.deadline import Deadline
from brew.jvm import dependencies
from brew.jvm.dependencies import Part, java
from sandbox.jvm import QUICK
from sandbox.process import HOST, ServerProcess, await_start, free
from sandbox.spark import LOG4J, spark_home

_SERVER = "org.apache.hadoop.yarn.server"
_RESOURCE_MANAGER = f"{_SERVER}.resourcemanager.ResourceManager"
_NODE_MANAGER = f"{_SERVER}.nodemanager.NodeManager"
_ACTIVE, _RUNNING = b"Transitioned to active state", b"Node Transitioned from NEW to RUNNING"
_START_S, _STOP_S = 180.0, 15.0
_PORTS = (
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.webapp.address",
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.webapp.address",
)
_NODE = {
    "yarn.resourcemanager.hostname": HOST,
    "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.hostname": HOST,
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}


class YarnCluster:
    """One resource manager and one node manager, which end with this program; files are on the local file system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.site = self.directory / "site"
        """The value for `HADOOP_CONF_DIR`."""
        self._started: list[ServerProcess] = []

    @classmethod
    def start(cls, directory: Path) -> Self:
        """
        Start both servers in an empty directory.

        Raises:
            Refused: the jars were not fetched (`brew-sandbox setup-yarn`), or a server did not start.
        """
        cluster = cls(directory)
        deadline = Deadline(_START_S)
        cluster.site.mkdir(parents=True)
        cluster._write_settings()
        try:
            cluster._launch(_RESOURCE_MANAGER)
            cluster._await(_RESOURCE_MANAGER, _ACTIVE, deadline)
            cluster._launch(_NODE_MANAGER)
            cluster._await(_RESOURCE_MANAGER, _RUNNING, deadline)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def close(self) -> None:
        """Stop both, the node manager first: it ends its running containers."""
        for server in reversed(self._started):
            server.identity.stop(Deadline(_STOP_S))
            server.ended()
        self._started.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def log(self, server: str) -> Path:
        return self.directory / f"{server.rpartition('.')[2]}.log"

    def _write_settings(self) -> None:
        addresses = {name: f"{HOST}:{port}" for name, port in zip(_PORTS, free(len(_PORTS)), strict=True)}
        folders = {f"yarn.nodemanager.{name}-dirs": str(self.directory / name) for name in ("local", "log")}
        (self.site / "yarn-site.xml").write_text(_xml({**_NODE, **addresses, **folders}))
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.directory / "tmp")}
        (self.site / "core-site.xml").write_text(_xml(core))

    def _launch(self, server: str) -> None:
        jars = dependencies.jars(Part.YARN, dependencies.home())
        if not jars:
            raise dependencies.missing_jars(Part.YARN, dependencies.home())
        path = os.pathsep.join([str(self.site), *map(str, jars), f"{spark_home()}/jars/*"])
        command = [java(), *QUICK, "-Xmx400m", f"-Dlog4j2.configurationFile=file:{LOG4J}", "-cp", path, server]
        # Containers inherit part of the node manager's environment; our PYTHONPATH must not be in it.
        command = ["env", "-u", "PYTHONPATH", *command]
        self._started.append(ServerProcess(command, self.log(server), ends_with_parent=True))

    def _await(self, server: str, wanted: bytes, deadline: Deadline) -> None:
        def ready() -> bool:
            return wanted in self.log(server).read_bytes()

        def alive() -> bool:
            return all(one.identity.alive() for one in self._started)

        await_start("YARN", ready, alive, self.log(server), deadline)


def _xml(settings: Mapping[str, str]) -> str:
    rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(rows)}</configuration>\n"
