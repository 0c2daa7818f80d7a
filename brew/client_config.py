"""
Read a client configuration file: who we are to the brokers, and how we know that they are the brokers.

A value may stand somewhere else: `${env:NAME}` is a variable of the environment, `${file:PATH}` the text of a file
(one line feed at its end does not count). Paths that are not absolute begin at the configuration file's own folder.
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

_ELSEWHERE = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """
    A file's settings, the secret ones apart.

    ``variables``: the environment's names that secrets came from; whoever starts others may take them away first.
    """

    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    source: str | None = None
    variables: frozenset[str] = frozenset()


def load(path: Path, environ: Mapping[str, str] | None = None) -> ClientConfig:
    """
    The settings of the file at ``path``.

    Raises:
        UsageError: it is not there, or says what is not let through.
        Refused: it, or a file it names, holds a secret that everybody on this machine may read.
    """
    environ = os.environ if environ is None else environ
    where = str(path)
    found = parse(_text(path, where, "--client-config"), where)
    inline = sorted(name for name in SECRETS & found.keys() if not _ELSEWHERE.fullmatch(found[name].value))
    if inline:
        _check_private(path, f"{where}:{found[inline[0]].number}: {inline[0]}={MASK}")
    variables: set[str] = set()
    values = {name: _value(path, name, line, environ, variables) for name, line in found.items()}
    for name in FILES & values.keys():
        values[name] = _checked_file(path, name, values[name])
    check_together(values, where)
    plain = {name: line.value for name, line in values.items() if name not in SECRETS}
    secrets = {name: Secret(values[name].value) for name in SECRETS & values.keys()}
    return ClientConfig(plain, secrets, str(path.absolute()), frozenset(variables))


def _text(path: Path, at: str, setting: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UsageError(f"{at}: more than {MAX_BYTES} bytes; {setting} takes a file of settings")
        return content.decode()
    except OSError as error:
        raise UsageError(f"{at} can't be read: {error.strerror}; {setting} names a file that this user may read") from (
            error
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"{at}: byte {error.start} is no UTF-8; save the file as UTF-8") from error


def _check_private(path: Path, what: str) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IRWXO:
        raise Refused(
            f"{what} is refused: everybody on this machine may open {path} (mode {mode:04o}); `chmod 600 {path}`, "
            "or in Kubernetes defaultMode: 0440"
        )


def _value(path: Path, name: str, line: ConfigLine, environ: Mapping[str, str], variables: set[str]) -> ConfigLine:
    """The setting with its value, wherever that stands."""
    match = _ELSEWHERE.fullmatch(line.value)
    at = f"{path}:{line.number}"
    if match is None:
        if line.value.startswith("${") and name not in SECRETS:
            raise UsageError(f"{at}: {name}={MASK}: a value from elsewhere is ${{env:NAME}} or ${{file:PATH}}")
        return line
    kind, place = match[1], match[2]
    if kind == "env":
        if place not in environ:
            raise UsageError(f"{at}: {name} is to come from the environment, which has no {place}; set it")
        if name in SECRETS:
            variables.add(place)
        value = environ[place]
    else:
        file = path.parent / place
        value = _text(file, f"{at}: {name}: {file}", name).removesuffix("\n").removesuffix("\r")
        if name in SECRETS:
            _check_private(file, f"{at}: {name}={MASK}")
    if not value.strip():
        raise UsageError(f"{at}: {name}: ${{{kind}:{place}}} is empty")
    # Held against the list once more: what came from elsewhere is no better than what stands here.
    checked = value if name in SECRETS else parse(f"{name}={value}", at)[name].value
    if "\n" in value or "\0" in value:
        raise UsageError(f"{at}: {name}: ${{{kind}:{place}}} holds more than one line")
    return replace(line, value=checked)


def _checked_file(path: Path, name: str, line: ConfigLine) -> ConfigLine:
    """A file that a client will read by itself: there, ours to read, a key not everybody's, a certificate in time."""
    at, file = f"{path}:{line.number}", path.parent / line.value
    text = _text(file, f"{at}: {name}: {file}", name)
    if name == KEY:
        _check_private(file, f"{at}: {name}={file}")
    elif "-----BEGIN CERTIFICATE-----" not in text:
        raise UsageError(f"{at}: {name}: {file} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    if name == CERTIFICATE:
        _check_dates(at, name, file, text)
    return replace(line, value=str(file.absolute()))


def _check_dates(at: str, name: str, file: Path, text: str) -> None:
    from cryptography import x509  # noqa: PLC0415 - a tenth of a second, for those who use certificates

    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
    except ValueError as error:
        raise UsageError(f"{at}: {name}: {file} is no certificate: {error}") from error
    now = dt.datetime.now(dt.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        kind = "has expired" if now > ends else "is not valid yet"
        raise Refused(
            f"{at}: {name}: certificate {file} {kind}: it holds from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} "
            "UTC; get a new one from whoever signs them"
        )
