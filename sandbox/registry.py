"""A Schema Registry beside Kafka: Apicurio Registry, which answers the API of Confluent's, in memory."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from brew.deadline import Deadline
from brew.errors import Refused
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from sandbox.process import HOST
from sandbox.store import Store

_API = "/apis/ccompat/v7"
_RUNNER = "*-runner.jar"
_HEAP_MB = 384
_ANSWER_S = 2.0


class Registry(Store):
    """
    One registry without users; its schemas are gone when it stops.

    The first start fetches the application (142 MB) into the place of the other JVM parts.
    """

    name: ClassVar[str] = "registry"
    start_s: ClassVar[float] = 120.0  # 9 s on a machine that does nothing else

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        leashed: bool = True,
    ) -> Self:
        """As every server does; a download has a deadline of its own."""
        dependencies.fetch(Part.REGISTRY, dependencies.home())
        return super().start(directory, port=port, properties=properties, leashed=leashed)

    @property
    def url(self) -> str:
        """What `brew.formats` and Confluent's clients take as the registry's address."""
        return f"http://{HOST}:{self.state.port}{_API}"

    def command(self) -> Sequence[str]:
        runner = next(iter(self.data.glob(_RUNNER)))
        settings = {"quarkus.http.host": HOST, "quarkus.http.port": str(self.state.port), **self.state.properties}
        flags = [f"-Xmx{_HEAP_MB}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return [dependencies.java(), *flags, *options, "-jar", str(runner)]

    def prepare(self, deadline: Deadline) -> None:
        if any(self.data.glob(_RUNNER)):
            return
        deadline.check("starting the registry")
        shutil.rmtree(self.data, ignore_errors=True)  # of a start that was cut short
        fresh = Path(f"{self.data}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        (archive,) = dependencies.jars(Part.REGISTRY, dependencies.home())
        try:
            shutil.unpack_archive(archive, fresh)  # its checksum was compared
            fresh.rename(self.data)
        except (OSError, shutil.ReadError) as error:
            raise Refused(f"{archive} can't be unpacked into {self.data}: {error}; make room there") from error

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ANSWER_S) as answer:  # noqa: S310 - our own server
                return bool(answer.status == 200)  # noqa: PLR2004 - OK
        except OSError:
            return False
