"""Redis on this machine: Debian's server in a directory of ours."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import ClassVar

import redis

from protocol.deadline import Deadline
from sandbox.ports import HOST
from sandbox.store import Store, missing

_ANSWER_S = 2
# What a claim needs to hold: every write on disk before its answer, and no key thrown out to make room.
_SETTINGS = {
    "bind": HOST,
    "protected-mode": "no",
    "daemonize": "no",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}


class Redis(Store):
    """One server, no password, on the loopback device only."""

    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.state.port}/0"

    def command(self) -> Sequence[str]:
        if (program := shutil.which("redis-server")) is None:
            raise missing("Redis")
        settings = {**_SETTINGS, "port": str(self.state.port), "dir": str(self.data), **self.state.properties}
        # A value of several words (`replicaof HOST PORT`) is several arguments; an empty one is one.
        words = [[f"--{name}", *(value.split() or [""])] for name, value in settings.items()]
        return [program, *(word for group in words for word in group)]

    def prepare(self, deadline: Deadline) -> None:
        deadline.check("starting Redis")
        self.data.mkdir(exist_ok=True)

    def answers(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
