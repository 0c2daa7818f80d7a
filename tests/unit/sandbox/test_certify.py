"""A command that gives brokers another certificate returns once they show it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from sandbox import secure
from sandbox.certificates import Authority
from sandbox.layout import Node
from sandbox.secure import await_certificate

HOST = "127.0.0.1"


@pytest.fixture
def certificates(tmp_path: Path) -> list[Path]:
    authority, paths = Authority.fresh(), [tmp_path / "old.pem", tmp_path / "new.pem"]
    for path in paths:
        path.write_bytes(b"".join(authority.issue("broker", [HOST])))
    return paths


@contextmanager
def broker(shows: Sequence[Path]) -> Iterator[tuple[Node, list[Path]]]:
    """Shows one certificate after another, the last one for ever; with the list of those that it has shown."""
    shown = list[Path]()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            shown.append(shows[min(len(shown), len(shows) - 1)])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(shown[-1])
            with suppress(OSError):  # the client's time was up
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server((HOST, 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield Node(1, listener.getsockname()[1], 0), shown
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join(10)


def test_a_broker_that_still_shows_the_old_certificate_is_waited_for(certificates: list[Path]) -> None:
    """One of its network threads may show the new one before the others do."""
    old, new = certificates
    with broker([old, old, new, old, new]) as (node, shown):
        await_certificate(node, new, Deadline(20))
    assert shown[:4] == [old, old, new, old]
    assert shown[4:] == [new] * secure._CONNECTIONS_IN_A_ROW


def test_a_broker_that_keeps_the_old_certificate_or_does_not_answer_is_named(certificates: list[Path]) -> None:
    """One takes the connection and never answers the handshake."""
    old, new = certificates
    with broker([old]) as (node, shown), pytest.raises(DeadlineExceeded, match="new certificate of broker 1"):
        await_certificate(node, new, Deadline(0.2))
    assert len(shown) > 1
    with socket.create_server((HOST, 0)) as silent, pytest.raises(DeadlineExceeded, match="certificate of broker 1"):
        await_certificate(Node(1, silent.getsockname()[1], 0), new, Deadline(0.2))
