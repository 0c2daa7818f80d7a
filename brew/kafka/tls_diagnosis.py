"""Why a broker's certificate is not trusted, in one clause: librdkafka says that, and not why."""

from __future__ import annotations

import socket
import ssl

from brew.connection import CA, Connection

_CONNECT_S = 2.0


def reason(connection: Connection) -> str | None:
    """Shake hands as any client would, nothing else; None where that tells nothing either."""
    ca = connection.properties.get(CA)
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    for spot in connection.bootstrap.split(","):
        host, _, port = spot.rpartition(":")
        try:
            with (
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as plain,
                context.wrap_socket(plain, server_hostname=host.strip("[]")),
            ):
                pass
        except ssl.SSLCertVerificationError as error:
            return f"{spot}: {error.verify_message}"
        except ssl.SSLError as error:
            return f"{spot}: {error.reason}"
        except (OSError, ValueError):
            continue
    return None
