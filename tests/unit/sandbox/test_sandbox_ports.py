"""Ports: free ones are found, taken ones refused with the holder's name."""

import os
import socket
from collections.abc import Iterator

import pytest

from brew.errors import Refused
from sandbox import process


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((process.HOST, 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_somebody_listens_on_is_refused_with_the_holders_number(taken: int) -> None:
    """One sentence says which port, who has it and what to do."""
    with pytest.raises(Refused, match=rf"port {taken} is taken by .*(process {os.getpid()}|another process).*--port"):
        process.require_free(taken)


def test_a_port_is_free_again_once_its_holder_has_closed_it() -> None:
    """Connections that linger after a server's end do not keep it from coming back."""
    with socket.create_server((process.HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((process.HOST, port)), server.accept()[0]:
            pass
    process.require_free(port)
    with socket.create_server((process.HOST, port)) as again:
        assert again.getsockname()[1] == port


def test_free_ports_are_different_and_below_the_outgoing_range() -> None:
    """A killed broker must find its port free again, so no outgoing connection may be given it meanwhile."""
    found = process.free(20)
    assert len(set(found)) == 20
    assert max(found) < 32_768
