"""
Read a client configuration file: the security settings of the connection to the brokers.

A value may be a reference: `${env:NAME}` to an environment variable, or `${file:PATH}` to the content of a file (one
trailing line feed is ignored). Relative paths start at the configuration file's folder.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from brew.connection import CERTIFICATE, FILES, KEY, MASK, MAX_BYTES, SECRETS, ConfigLine, Secret, check_together, parse
from brew.errors import Refused, UsageError

LAST_PORT = 65_535
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """
    The settings of a file, with secrets kept apart.

    ``variables``: the environment variables that held secrets, so that they can be removed for child processes.
    """

    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    source: str | None = None
    variables: frozenset[str] = frozenset()


def checked_bootstrap(servers: str) -> str:
    """
    Return ``servers`` unchanged.

    Raises:
        UsageError: one of them is not host:port; the clients differ in what they make of it.
    """
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host.strip("[]") or not (port.isascii() and port.isdecimal() and 0 < int(port) <= LAST_PORT):
            raise UsageError(
                f"BOOTSTRAP (--bootstrap) {servers!r}: {server!r} is not HOST:PORT with a port of 1 to {LAST_PORT}; "
                "write, for example, kafka-1:9092,kafka-2:9092"
            )
    return servers


def load(path: Path, environ: Mapping[str, str] | None = None) -> ClientConfig:
    """
    Load the file at ``path``.

    Raises:
        UsageError: the file can't be read, or has a setting that is not allowed.
        Refused: the file, or a file that it names, holds a secret and is readable by everyone on this machine.
    """
    environ = os.environ if environ is None else environ
    file = str(path)
    lines = parse(_text(path, file, "--client-config"), file)
    inline = sorted(name for name in SECRETS & lines.keys() if not _REFERENCE.fullmatch(lines[name].value))
    if inline:
        _check_private(path, f"{file}:{lines[inline[0]].number}: {inline[0]}={MASK}")
    variables: set[str] = set()
    values = {name: _value(path, name, line, environ, variables) for name, line in lines.items()}
    for name in FILES & values.keys():
        values[name] = _checked_file(path, name, values[name])
    check_together(values, file)
    plain = {name: line.value for name, line in values.items() if name not in SECRETS}
    secrets = {name: Secret(values[name].value) for name in SECRETS & values.keys()}
    return ClientConfig(plain, secrets, str(path.absolute()), frozenset(variables))


def _text(path: Path, location: str, setting: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UsageError(f"{location}: more than {MAX_BYTES} bytes; {setting} takes a file of settings")
        return content.decode()
    except OSError as error:
        raise UsageError(
            f"{location} can't be read: {error.strerror}; {setting} names a file that this user may read"
        ) from (error)
    except UnicodeDecodeError as error:
        raise UsageError(f"{location}: byte {error.start} is no UTF-8; save the file as UTF-8") from error


def _check_private(path: Path, setting: str) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IRWXO:
        raise Refused(
            f"{setting} is refused: everybody on this machine may open {path} (mode {mode:04o}); `chmod 600 {path}`, "
            "or in Kubernetes defaultMode: 0440"
        )


def _value(path: Path, name: str, line: ConfigLine, environ: Mapping[str, str], variables: set[str]) -> ConfigLine:
    """Return the setting with its reference resolved."""
    match = _REFERENCE.fullmatch(line.value)
    location = f"{path}:{line.number}"
    if match is None:
        if line.value.startswith("${") and name not in SECRETS:
            raise UsageError(f"{location}: {name}={MASK}: a value from elsewhere is ${{env:NAME}} or ${{file:PATH}}")
        return line
    kind, source = match[1], match[2]
    if kind == "env":
        if source not in environ:
            raise UsageError(f"{location}: {name} is to come from the environment, which has no {source}; set it")
        if name in SECRETS:
            variables.add(source)
        value = environ[source]
    else:
        file = path.parent / source
        value = _text(file, f"{location}: {name}: {file}", name).removesuffix("\n").removesuffix("\r")
        if name in SECRETS:
            _check_private(file, f"{location}: {name}={MASK}")
    if not value.strip():
        raise UsageError(f"{location}: {name}: ${{{kind}:{source}}} is empty")
    # A referenced value must pass the same checks as a literal one.
    blank = "\n" * (line.number - 1)  # so that its messages have this line's number
    checked = value if name in SECRETS else parse(f"{blank}{name}={value}", str(path))[name].value
    if "\n" in value or "\0" in value:
        raise UsageError(f"{location}: {name}: ${{{kind}:{source}}} holds more than one line")
    return replace(line, value=checked)


def _checked_file(path: Path, name: str, line: ConfigLine) -> ConfigLine:
    """Check a file that the client library reads: it exists, a key is private, a certificate is valid today."""
    location, file = f"{path}:{line.number}", path.parent / line.value
    text = _text(file, f"{location}: {name}: {file}", name)
    if name == KEY:
        _check_private(file, f"{location}: {name}={file}")
    elif "-----BEGIN CERTIFICATE-----" not in text:
        raise UsageError(f"{location}: {name}: {file} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    if name == CERTIFICATE:
        _check_dates(location, name, file, text)
    return replace(line, value=str(file.absolute()))


def _check_dates(location: str, name: str, file: Path, text: str) -> None:
    from cryptography import x509  # noqa: PLC0415 - takes a tenth of a second, which only users of certificates need

    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
    except ValueError as error:
        raise UsageError(f"{location}: {name}: {file} is no certificate: {error}") from error
    now = dt.datetime.now(dt.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        kind = "has expired" if now > ends else "is not valid yet"
        raise Refused(
            f"{location}: {name}: certificate {file} {kind}: it is valid from {begins:%Y-%m-%d %H:%M} to "
            f"{ends:%Y-%m-%d %H:%M} UTC; get a new one from your certificate authority"
        )
