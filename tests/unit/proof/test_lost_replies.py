"""The door that loses a COMMIT's reply: the server has done it, and the client is cut off instead of told."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from proof.campaign.cells.ledger import ReplyDroppingProxy

REPLY = b"C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00\x00\x05I"


@pytest.fixture
def server() -> socket.socket:
    """Answers everything with the end of a COMMIT, but `begin`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            while asked := client.recv(100):
                client.sendall(b"BEGIN\x00" if asked == b"begin" else REPLY)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[client], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listening:
        yield listening


def _door(server: socket.socket, probability: float) -> ReplyDroppingProxy:
    return ReplyDroppingProxy(
        f"postgresql://brew@127.0.0.1:{server.getsockname()[1]}/brew", probability, random.Random(1)
    )


def _client(door: ReplyDroppingProxy) -> socket.socket:
    port = int(door.url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), 5)


def test_only_replies_to_a_commit_are_lost(server: socket.socket) -> None:
    """Everything before the commit passes; then the client reads the end of its connection."""
    with _door(server, 1.0) as door, _client(door) as client:
        client.sendall(b"begin")
        assert client.recv(100) == b"BEGIN\x00"
        client.sendall(b"commit")
        assert client.recv(100) == b""
        assert (door.lost, door.recovery_s) == (1, [])
    assert door.url.startswith("postgresql://brew@127.0.0.1:")


def test_what_is_not_lost_is_passed_on_and_ends_the_time_without_an_answer(server: socket.socket) -> None:
    """A connection made anew after a loss gets its reply, and the seconds between are kept."""
    with _door(server, 1.0) as door:
        with _client(door) as client:
            client.sendall(b"commit")
            assert client.recv(100) == b""
        door._probability = 0.0
        with _client(door) as client:
            client.sendall(b"commit")
            assert client.recv(100) == REPLY
    assert (door.lost, len(door.recovery_s)) == (1, 1)
