"""The end of a proxy, whoever comes meanwhile."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading

import pytest
from harness.servers import Broker

from proof.wire.proxy import WireProxy


def test_a_proxy_that_ends_while_clients_come_leaves_no_socket_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are accepted and not yet handed on, others wait for their broker; each is ended with the rest."""
    exceptions: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: exceptions.append(unraisable.exc_value))
    stop = threading.Event()

    def connect_until_stopped(address: tuple[str, int], connected: threading.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(address, 1).close()
                connected.set()

    for _ in range(5):
        with WireProxy(broker.bootstrap) as proxy:
            host, port = proxy.bootstrap.split(":")
            stop.clear()
            connected = [threading.Event() for _ in range(2)]
            address = (host, int(port))
            clients = [threading.Thread(target=connect_until_stopped, args=(address, event)) for event in connected]
            for client in clients:
                client.start()
            assert all(event.wait(20) for event in connected)
        stop.set()
        for client in clients:
            client.join(20)
    gc.collect()
    assert exceptions == []
