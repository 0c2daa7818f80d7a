"""Count the connections that clients really have, with `ss`."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Collection

from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.tail import Tail
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from scale.numbers import Sockets
from scale.probe.place import Sandbox

_SETTLE_S = 1.5
_LONGEST_S = 15.0
_LOOK_S = 0.05


def connections(here: Sandbox, pids: Collection[int]) -> int:
    """
    Established connections of these processes to the brokers, as `ss -Htnp state established` tells them.

    Raises:
        Refused: there is no `ss`.
    """
    ports = {str(node.port) for node in here.cluster.layout.nodes}
    command = ["ss", "-Htnp", "state", "established"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"`{' '.join(command)}` can't be run ({error}); install iproute2") from error
    found = 0
    for line in told.splitlines():
        words = line.split()
        to = words[3].rpartition(":")[2] if len(words) > 3 else ""
        owners = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        found += to in ports and bool(owners & set(pids))
    return found


def settled(here: Sandbox) -> int:
    """How many this process has, once their number has not changed for one and a half seconds."""
    deadline, count, since = Deadline(_LONGEST_S), -1, time.monotonic()
    while time.monotonic() - since < _SETTLE_S:
        deadline.check("counting connections")
        now = connections(here, {os.getpid()})
        if now != count:
            count, since = now, time.monotonic()
        time.sleep(_LOOK_S)
    return count


def connection_us(here: Sandbox, times: int) -> float:
    """CPU of a broker for a connection, from its opening over one ApiVersions request (version 0) to its end."""
    node = here.cluster.layout.nodes[0]
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)

    def once() -> None:
        with socket.create_connection(("127.0.0.1", node.port), timeout=_LONGEST_S) as line:
            line.sendall(request)
            size = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")
            line.recv(size, socket.MSG_WAITALL)

    for _ in range(2 * times):
        once()
    idle, began, before = here.idle_cpu_per_s(), time.monotonic(), here.broker_cpu_s()
    for _ in range(times):
        once()
    return 1e6 * max(0.0, here.broker_cpu_s() - before - idle * (time.monotonic() - began)) / times


def count(here: Sandbox) -> tuple[int, int]:
    """Connections of one partition's tail, and of one transaction's two clients, in use."""
    topic = here.orders(100, 200)
    before = settled(here)
    tail = Tail(here.connection, "scale.sockets", topic, 0, 0, 1024 * 1024)
    deadline = Deadline(_LONGEST_S)
    while tail.take(100, 100_000, 0.1) is None:
        deadline.check("a first record")
    held = settled(here) - before
    kafka = KafkaTransaction(TransactionSettings(here.connection, "scale.sockets", 60.0), topic, 0)
    try:
        kafka.fence(Deadline(_LONGEST_S))
        kafka.locate(Deadline(_LONGEST_S))
        more = settled(here) - before - held
    finally:
        kafka.close()
        tail.close()
    return held, more


def sockets(one: tuple[int, int], three: tuple[int, int]) -> tuple[Sockets, Sockets]:
    """(tail, transaction) from counts with one broker and with three."""
    tail, transaction = (Sockets(few, (many - few) / 2) for few, many in zip(one, three, strict=True))
    return tail, transaction
