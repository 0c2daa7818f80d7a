"""Ports: which are free, and who holds one that isn't."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

import psutil

from protocol.errors import Refused

HOST = "127.0.0.1"

# Below the range that systems take outgoing ports from: a killed server finds its port free when it comes back, and
# a client that keeps trying a port nobody listens on can't end up connected to itself.
_CANDIDATES = range(15_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now; ports of connections that have just ended count as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
    """``count`` different free ports."""
    found: list[int] = []
    for port in random.sample(_CANDIDATES, k=len(_CANDIDATES)):
        if len(found) == count:
            break
        if port not in apart_from and is_free(port):
            found.append(port)
    if len(found) < count:
        raise Refused(f"{count} free ports are needed and {len(found)} were found from {_CANDIDATES[0]} on")
    return found


def require_free(port: int) -> None:
    """Raise `Refused`, with the holder's name where the system tells it, when ``port`` is taken; 0 is none."""
    if port and not is_free(port):
        raise Refused(f"port {port} is taken by {_holder(port)}; stop it, or choose another with --port")


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass  # some systems tell only their administrator
    return "another process"
