"""The end of a proxy, whoever comes meanwhile."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading

import pytest
from harness.brokers import Broker

from proof.wire.proxy import WireProxy


def test_a_proxy_that_ends_while_clients_come_leaves_no_socket_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are accepted and not yet handed on, others wait for their broker; each is ended with the rest."""
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: left.append(one.exc_value))
    ended = threading.Event()

    def come(address: tuple[str, int], came: threading.Event) -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(address, 1).close()
                came.set()

    for _ in range(5):
        with WireProxy(broker.bootstrap) as proxy:
            host, port = proxy.bootstrap.split(":")
            ended.clear()
            came = [threading.Event() for _ in range(2)]
            clients = [threading.Thread(target=come, args=((host, int(port)), one)) for one in came]
            for client in clients:
                client.start()
            assert all(one.wait(20) for one in came)
        ended.set()
        for client in clients:
            client.join(20)
    gc.collect()
    assert left == []
