"""Addresses of stores and receivers, whose passwords never appear in messages, and HTTP request outcomes; pure."""

from __future__ import annotations

import base64
import enum
import hashlib
import re
from urllib.parse import unquote, urlsplit

from brew.connection import MASK
from brew.errors import UsageError

_HTTP = {"http", "https"}
_AGAIN = {408, 425, 429}  # time-out, too early, too many (RFC 9110, 8470, 6585); other 4xx answers are permanent
# Characters allowed in a login (RFC 3986); all others are written as %XX. An unescaped @ or / would make libraries take
# the rest of a password for the host, the port or a parameter, which their error messages quote.
_WHO = re.compile(r"(?:[\w.~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*", re.ASCII)


def invalid_address(option: str, example: str) -> UsageError:
    """Return an error that does not quote the address, because any part of it may be the password."""
    return UsageError(
        f"{option} is invalid, and not shown because it may hold a password; give {example}, with %XX for each of "
        "@ : / ? # [ ] % and spaces in a password"
    )


def checked_login(address: str, option: str, example: str) -> str:
    """Return the address; raises `UsageError` if its login could be parsed as something else."""
    _, _, rest = address.partition("://")
    login, separator, _ = rest.rpartition("@")
    if separator and not _WHO.fullmatch(login):
        raise invalid_address(option, example)
    return address


def checked_http(url: str, option: str) -> str:
    """Return the address if it is an HTTP URL, else raise `UsageError`."""
    if masked_url(url) == MASK:
        raise invalid_address(option, "http://host:port/path or https://...")
    return checked_login(url, option, "http://host:port/path or https://...")


def masked_url(url: str) -> str:
    """Return a URL for messages, without login, query and fragment, which may hold secrets; `***` if it is not HTTP."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return MASK
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}" if parts.scheme in _HTTP and parts.hostname else MASK


def authorization(url: str) -> dict[str, str]:
    """Return the header for the URL's login (RFC 7617), which `urllib3` does not send by itself; empty without one."""
    login, separator, _ = urlsplit(url).netloc.rpartition("@")
    if not separator:
        return {}
    user, _, password = login.partition(":")
    words = f"{unquote(user)}:{unquote(password)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(words).decode()}"}


def idempotency_key(message_id: str) -> str:
    """Return the id, or its SHA-256 if a header can't carry it unchanged (RFC 9110: visible ASCII, inner spaces)."""
    if message_id.isascii() and message_id.isprintable() and message_id == message_id.strip():
        return message_id
    return f"sha256:{hashlib.sha256(message_id.encode()).hexdigest()}"


class RequestOutcome(enum.Enum):
    SENT = enum.auto()
    REFUSED = enum.auto()
    LATER = enum.auto()

    @classmethod
    def of(cls, status: int) -> RequestOutcome:
        """Classify a response status (RFC 9110): 2xx is success, most 4xx are permanent errors of the sender."""
        if 200 <= status < 300:  # noqa: PLR2004 - as above
            return cls.SENT
        return cls.REFUSED if 400 <= status < 500 and status not in _AGAIN else cls.LATER  # noqa: PLR2004 - as above
