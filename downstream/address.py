"""Addresses of stores and receivers, whose passwords no message quotes, and what receivers' answers mean; pure."""

from __future__ import annotations

import enum
import re
from urllib.parse import urlsplit

from brew.connection import MASK
from brew.errors import UsageError

_HTTP = {"http", "https"}
_AGAIN = {408, 425, 429}  # time-out, too early, too many (RFC 9110, RFC 8470, RFC 6585); other 4xx stay as they are
# Who logs in, as RFC 3986 has it: everything else is written as %XX. A raw @ or / puts the rest of a password where
# libraries look for the host, the port or a parameter, and those are named when they are wrong.
_WHO = re.compile(r"(?:[\w.~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*", re.ASCII)


def invalid_address(option: str, example: str) -> UsageError:
    """A refusal that does not quote the address: any part of it may be the password."""
    return UsageError(
        f"{option} can't be read, and is not shown, as it may hold a password; give {example}, with %XX for each of "
        "@ : / ? # [ ] % and spaces in a password"
    )


def checked_login(address: str, option: str, example: str) -> str:
    """
    The address, if its login can't be taken for anything else.

    Raises:
        UsageError: it can.
    """
    _, _, rest = address.partition("://")
    login, separator, _ = rest.rpartition("@")
    if separator and not _WHO.fullmatch(login):
        raise invalid_address(option, example)
    return address


def checked_http(url: str, option: str) -> str:
    """
    The address, once it is known to be an HTTP one.

    Raises:
        UsageError: it is none.
    """
    if masked_url(url) == MASK:
        raise invalid_address(option, "http://host:port/path or https://...")
    return checked_login(url, option, "http://host:port/path or https://...")


def masked_url(url: str) -> str:
    """An HTTP address for messages: without login, query and fragment, which may hold a secret; `***` if it is none."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return MASK
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}" if parts.scheme in _HTTP and parts.hostname else MASK


class RequestOutcome(enum.Enum):
    """What became of one request."""

    SENT = enum.auto()
    REFUSED = enum.auto()
    LATER = enum.auto()

    @classmethod
    def of(cls, status: int) -> RequestOutcome:
        """By the answer's status (RFC 9110): 2xx is success, most of 4xx is the sender's fault for good."""
        if 200 <= status < 300:  # noqa: PLR2004 - as above
            return cls.SENT
        return cls.REFUSED if 400 <= status < 500 and status not in _AGAIN else cls.LATER  # noqa: PLR2004 - as above
