"""
OAUTHBEARER tokens for both client libraries: fetched once, and kept until shortly before they expire.

librdkafka could fetch tokens on its own, but does so for each new client, and every transaction has its own client.
"""

from __future__ import annotations

import base64
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from brew import sasl
from brew.connection import Connection
from brew.errors import Denied, Refused, Retriable

_FETCH_S = 10.0
_MOST_BYTES = 1_000_000
_SERVERS_FAULT, _LATER = 500, {408, 429}
"""HTTP answers that may be another one soon: the server's own errors, and a client that is slow, or asks too often."""
_USED = 0.8  # the fraction of its lifetime after which the next token is fetched
_DEFAULT_LIFE_S = 300.0
_SIGNER, _SIGNER_MODULE = "aws-msk-iam-sasl-signer-python", "aws_msk_iam_sasl_signer"


class Token(NamedTuple):
    """A token, when to replace it, and when it expires, in seconds since 1970."""

    text: str
    fresh_until: float
    ends: float


_kept: dict[tuple[str, ...], Token] = {}
_lock = threading.Lock()


def uses_tokens(settings: Mapping[str, Any]) -> bool:
    """Return whether a connection logs in with tokens."""
    return sasl.METHOD in settings


def token(settings: Mapping[str, Any], now: Callable[[], float] = time.time) -> Token:
    """
    Return the token for a connection's login; it is fetched unless a cached one is still fresh.

    Raises:
        Denied: the token endpoint refuses.
        Retriable: the endpoint does not answer, and no cached token is still valid.
        Refused: the package that signs for AWS is not installed.
    """
    key = tuple(str(settings.get(name)) for name in (sasl.TOKEN_URL, sasl.CLIENT_ID, sasl.SCOPE, sasl.REGION))
    with _lock:
        kept = _kept.get(key)
        if kept is None or now() >= kept.fresh_until:
            fetch = _signed if settings[sasl.METHOD] == sasl.AWS else _fetched
            try:
                kept = _kept[key] = fetch(settings, now())
            except Retriable:
                if kept is None or now() >= kept.ends:
                    raise
        return kept


def forget() -> None:
    """Discard all cached tokens."""
    with _lock:
        _kept.clear()


def client_settings(connection: Connection) -> dict[str, Any]:
    """
    Return a connection's settings for librdkafka, with a callback in place of those that it does not know.

    Raises:
        Denied, Retriable, Refused: there is no token. The client itself would wait ten seconds for one.
    """
    settings: dict[str, Any] = dict(connection.settings())
    if not uses_tokens(settings):
        return settings
    token(settings)
    more = sasl.extensions(settings)

    def told(_config: str) -> tuple[str, float, str, dict[str, str]]:
        found = token(settings)
        return found.text, found.ends, "", more

    known = {name: value for name, value in settings.items() if name not in sasl.ALLOWED}
    return known | {"oauth_cb": told}


def _fetched(settings: Mapping[str, Any], now: float) -> Token:
    """Fetch a token with the client's credentials (RFC 6749, section 4.4)."""
    import http.client  # noqa: PLC0415 - Python's own HTTP and TLS are slow to import, and rarely needed
    import ssl  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415
    import urllib.parse  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    url = str(settings[sasl.TOKEN_URL])
    form = {"grant_type": "client_credentials"} | ({"scope": settings[sasl.SCOPE]} if sasl.SCOPE in settings else {})
    pair = ":".join(urllib.parse.quote(str(settings[name]), safe="") for name in (sasl.CLIENT_ID, sasl.CLIENT_SECRET))
    head = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", "Accept": "application/json"}
    asked = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), head)  # noqa: S310 - checked: http or https
    trust = ssl.create_default_context(cafile=settings.get(sasl.TOKEN_CA)) if url.startswith("https") else None
    try:
        with urllib.request.urlopen(asked, timeout=_FETCH_S, context=trust) as answer:  # noqa: S310 - as above
            found = orjson.loads(answer.read(_MOST_BYTES))
        text, life_s = str(found["access_token"]), float(found.get("expires_in", _DEFAULT_LIFE_S))
    except urllib.error.HTTPError as error:
        error.close()
        passing = error.code >= _SERVERS_FAULT or error.code in _LATER
        raise (Retriable if passing else Denied)(_no_token(settings, f"HTTP {error.code}")) from error
    except OSError as error:
        raise Retriable(_no_token(settings, str(error))) from error
    except http.client.HTTPException as error:  # something else than HTTP, or an answer that broke off
        raise Retriable(_no_token(settings, repr(error))) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Denied(_no_token(settings, f"its answer holds none ({type(error).__name__})")) from error
    return Token(text, now + _USED * life_s, now + life_s)


def _no_token(settings: Mapping[str, Any], why: str) -> str:
    return (
        f"no token for client {settings[sasl.CLIENT_ID]} from {settings[sasl.TOKEN_URL]}: {why}; look at "
        f"{sasl.TOKEN_URL}, {sasl.CLIENT_ID} and {sasl.CLIENT_SECRET} in the file of --client-config"
    )


def _signed(settings: Mapping[str, Any], now: float) -> Token:
    """Sign a token with the AWS identity of this process."""
    try:
        signer = importlib.import_module(_SIGNER_MODULE)
    except ImportError as error:
        why = f"{sasl.METHOD}={sasl.AWS} takes a package that is not installed"
        raise Refused(f"{why}: pip install {_SIGNER}") from error
    text, ends_ms = signer.MSKAuthTokenProvider.generate_auth_token(str(settings[sasl.REGION]))
    ends = float(ends_ms) / 1000
    return Token(str(text), now + _USED * (ends - now), ends)
