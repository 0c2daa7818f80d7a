"""
Diagnose a failed connection: librdkafka reports a wrong name, a closed port and a wrong protocol alike.

Checks name, port and TLS as any client would; sends only the first message of a TLS handshake.
"""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

from brew.connection import CA, Connection

_CONNECT_S = 2.0
_DIAGNOSIS_S = 5.0
_MAX_SERVERS = 3
_PROTOCOL = "security.protocol"
_REFUSED = "refuses connections: nothing listens there"
_CHECKOUT = Path(__file__).resolve().parents[2]


class Cause(NamedTuple):
    """What is wrong at a server, and what to do next, as clauses."""

    found: str
    next: str


def cause(connection: Connection) -> Cause:
    """Return the most specific problem among the first bootstrap servers, found within five seconds."""
    causes: list[Cause] = []

    def diagnose_all() -> None:
        servers = connection.bootstrap.split(",")[:_MAX_SERVERS]
        causes.extend(_diagnose(server.strip(), connection) for server in servers)

    thread = threading.Thread(target=diagnose_all, name="broker-diagnosis", daemon=True)  # resolving has no deadline
    thread.start()
    thread.join(_DIAGNOSIS_S)
    if not causes:
        server = connection.bootstrap.split(",")[0]
        return Cause(f"the diagnosis of {server} did not end within {_DIAGNOSIS_S:g} s", _other_bootstrap())
    return next((candidate for candidate in causes if not candidate.found.endswith(_REFUSED)), causes[0])


def _host_and_port(server: str) -> tuple[str, str]:
    """Split a server, which the clients also take with blanks around it and in the form `PLAINTEXT://host:port`."""
    host, _, port = server.strip().rpartition("://")[2].rpartition(":")
    return host.strip("[]"), port


def _diagnose(server: str, connection: Connection) -> Cause:
    host, port = _host_and_port(server)
    try:
        plain = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
    except socket.gaierror as error:
        return Cause(
            f"the name {host!r} has no address ({error.strerror})",
            "correct the name in BOOTSTRAP (--bootstrap), or make this machine's DNS or hosts file know it",
        )
    except ConnectionRefusedError:
        return Cause(f"{server} {_REFUSED}", _start_a_broker())
    except (OSError, ValueError) as error:
        return Cause(f"{server} can't be connected to ({error})", _other_bootstrap())
    with plain:
        speaks_tls = _speaks_tls(plain, host)
    return _protocol(server, connection, speaks_tls=speaks_tls)


def _protocol(server: str, connection: Connection, *, speaks_tls: bool | None) -> Cause:
    """Return the problem at a server that accepts connections but does not answer like a broker."""
    protocol, file = _protocol_of(connection), connection.source or "the file of --client-config (there is none)"
    if speaks_tls is False and "SSL" in protocol:
        # A file with SASL_PLAINTEXT would be refused.
        other = (
            "since a login goes over TLS only" if "SASL" in protocol else f"or set {_PROTOCOL} in {file} to PLAINTEXT"
        )
        return Cause(
            f"{server} does not speak TLS, and this client does ({_PROTOCOL} is {protocol})",
            f"point BOOTSTRAP (--bootstrap) at the broker's TLS port, {other}",
        )
    if speaks_tls and "SSL" not in protocol:
        return Cause(
            f"{server} speaks TLS, and this client does not ({_PROTOCOL} is {protocol})",
            f"set {_PROTOCOL} to SSL or SASL_SSL in {file}, or point BOOTSTRAP (--bootstrap) at a plaintext port",
        )
    return Cause(
        f"{server} accepts connections and answers nothing", f"check whether that broker hangs, or {_other_bootstrap()}"
    )


def _protocol_of(connection: Connection) -> str:
    return str(connection.properties.get(_PROTOCOL, "PLAINTEXT")).upper()


def _speaks_tls(plain: socket.socket, host: str) -> bool | None:
    """Return whether the server speaks TLS, trusted or not, or None if it did not answer in time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    try:
        with context.wrap_socket(plain, server_hostname=host):
            return True
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        # Only a TLS server sends an alert; a plaintext broker closes the connection or sends something else.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _start_a_broker() -> str:
    command = "make up" if (_CHECKOUT / "Makefile").is_file() else "brew-sandbox up"
    return f"start one with `{command}`, or {_other_bootstrap()}"


def _other_bootstrap() -> str:
    return "point BOOTSTRAP (--bootstrap) at yours"


def tls_failure(connection: Connection) -> str | None:
    """Return why a broker's certificate is not trusted, from our own TLS handshake; None if the handshake succeeds."""
    ca = connection.properties.get(CA)
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    for server in connection.bootstrap.split(","):
        host, port = _host_and_port(server)
        try:
            with (
                socket.create_connection((host, int(port)), timeout=_CONNECT_S) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                pass
        except ssl.SSLCertVerificationError as error:
            return f"{server}: {error.verify_message}"
        except ssl.SSLError as error:
            return f"{server}: {error.reason}"
        except (OSError, ValueError):
            continue
    return None
