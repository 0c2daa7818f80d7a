"""A connection in the words of Kafka's Java clients; pure but for the certificate files that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from protocol.connection import Connection
from protocol.errors import Refused
from protocol.properties import CA, CERTIFICATE, KEY, KEY_PASSWORD, MECHANISM, PASSWORD, PROTOCOL, SCRAM, USERNAME

_MODULES = {
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}
_SAME = {"client.id": "client.id", PROTOCOL: "security.protocol"}
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_settings(connection: Connection) -> dict[str, str]:
    """
    What a Java client is told beside its bootstrap servers; secrets are in clear, so hand it over and forget it.

    Certificates go as PEM (KIP-651): the authority's as a file, which every machine has for librdkafka, too; ours as
    text, since a Java client wants certificate and key in one place.

    Raises:
        Refused: the key is in a form that Java can't read.
    """
    ours = connection.settings()
    settings = {java: str(ours[name]) for name, java in _SAME.items() if name in ours}
    mechanism = ours.get(MECHANISM) or ours.get("sasl.mechanisms")
    if mechanism is not None:
        settings["sasl.mechanism"] = str(mechanism)
        settings["sasl.jaas.config"] = jaas(str(mechanism), str(ours[USERNAME]), str(ours[PASSWORD]))
    if CA in ours:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ours[CA])}
    if CERTIFICATE in ours:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(str(ours[CERTIFICATE])),
            "ssl.keystore.key": _key(str(ours[KEY])),
        }
        if KEY_PASSWORD in ours:
            settings["ssl.key.password"] = str(ours[KEY_PASSWORD])
    return settings


def jaas(mechanism: str, user: str, password: str) -> str:
    """
    One login of JAAS.

    Kafka reads it with Java's StreamTokenizer: between quotes a backslash begins an escape, and a quote ends the text.
    """
    return f"{_MODULES[mechanism]} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def java_properties(settings: Mapping[str, str]) -> str:
    """A file that Java's `Properties` reads back as these settings, whatever characters they hold."""
    return "".join(f"{_escaped(name, ':= #!')}={_escaped(value, '')}\n" for name, value in settings.items())


def _escaped(text: str, special: str) -> str:
    whole = []
    for index, one in enumerate(text):
        if one in "\\" + special or (one == " " and index == 0):
            whole.append("\\" + one)
        elif one in _NAMED:
            whole.append(_NAMED[one])
        elif " " <= one <= "~":
            whole.append(one)
        else:
            units = one.encode("utf-16-be")
            whole += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(whole)


_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise Refused(f"{path} can't be read any more: {error.strerror}; --client-config names it") from error


def _key(path: str) -> str:
    text = _text(path)
    if not any(begin in text for begin in _PKCS8):
        raise Refused(
            f"{KEY}={path}: Spark's Java consumer reads PKCS #8 keys only (-----BEGIN PRIVATE KEY-----); "
            f"`openssl pkcs8 -topk8 -in {path}` writes one, or use --reader direct"
        )
    return text
