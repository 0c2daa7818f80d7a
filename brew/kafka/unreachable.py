"""
Why no broker answered, and what to do next: librdkafka tells no wrong name from a closed port or a wrong protocol.

Looks as any client would, at name, port and TLS; nothing is sent but the first message of a TLS handshake.
"""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

from brew.connection import Connection

_CONNECT_S = 2.0
_LOOK_S = 5.0
_MOST_SERVERS = 3
_PROTOCOL = "security.protocol"
_REFUSED = "refuses connections: nothing listens there"
_CHECKOUT = Path(__file__).resolve().parents[2]


class Cause(NamedTuple):
    """What was found at a server, and what to do next, as clauses."""

    found: str
    next: str


def cause(connection: Connection) -> Cause:
    """Of the first bootstrap server that tells more than the others; within five seconds."""
    found: list[Cause] = []

    def look() -> None:
        servers = connection.bootstrap.split(",")[:_MOST_SERVERS]
        found.extend(_of(server.strip(), connection) for server in servers)

    looking = threading.Thread(target=look, name="broker-diagnosis", daemon=True)  # a resolver has no deadline
    looking.start()
    looking.join(_LOOK_S)
    if not found:
        server = connection.bootstrap.split(",")[0]
        return Cause(f"nothing was found out about {server} in {_LOOK_S:g} s", _point_elsewhere())
    return next((one for one in found if not one.found.endswith(_REFUSED)), found[0])


def _of(server: str, connection: Connection) -> Cause:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        plain = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
    except socket.gaierror as error:
        return Cause(
            f"the name {host!r} has no address ({error.strerror})",
            "correct the name in BOOTSTRAP (--bootstrap), or make this machine's DNS or hosts file know it",
        )
    except ConnectionRefusedError:
        return Cause(f"{server} {_REFUSED}", _start_one())
    except (OSError, ValueError) as error:
        return Cause(f"{server} can't be connected to ({error})", _point_elsewhere())
    with plain:
        speaks_tls = _speaks_tls(plain, host)
    return _protocol(server, connection, speaks_tls=speaks_tls)


def _protocol(server: str, connection: Connection, *, speaks_tls: bool | None) -> Cause:
    """Where somebody listens and does not answer as a broker."""
    ours, file = _ours(connection), connection.source or "the file of --client-config (there is none)"
    if speaks_tls is False and "SSL" in ours:
        return Cause(
            f"{server} does not speak TLS, and this client does ({_PROTOCOL} is {ours})",
            f"point BOOTSTRAP (--bootstrap) at the broker's TLS port, or set {_PROTOCOL} in {file} to "
            f"{ours.replace('SSL', 'PLAINTEXT')}",
        )
    if speaks_tls and "SSL" not in ours:
        return Cause(
            f"{server} speaks TLS, and this client does not ({_PROTOCOL} is {ours})",
            f"set {_PROTOCOL} to SSL or SASL_SSL in {file}, or point BOOTSTRAP (--bootstrap) at a plaintext port",
        )
    return Cause(
        f"{server} takes connections and answers nothing", f"see whether that broker hangs, or {_point_elsewhere()}"
    )


def _ours(connection: Connection) -> str:
    return str(connection.properties.get(_PROTOCOL, "PLAINTEXT")).upper()


def _speaks_tls(plain: socket.socket, host: str) -> bool | None:
    """Whether a TLS server is there, trusted or not; None where it does not say in time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    try:
        with context.wrap_socket(plain, server_hostname=host):
            return True
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        # An alert is TLS's own way to say no; a broker in plaintext ends the connection, or answers something else.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _start_one() -> str:
    command = "make up" if (_CHECKOUT / "Makefile").is_file() else "brew-sandbox up"
    return f"start one with `{command}`, or {_point_elsewhere()}"


def _point_elsewhere() -> str:
    return "point BOOTSTRAP (--bootstrap) at yours"
