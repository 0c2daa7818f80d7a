"""The same connection in Java's words: nothing that a password holds breaks out of its quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brew.connection import Connection, Secret, jaas, java_properties, java_settings
from brew.errors import Refused
from sandbox.certificates import Authority

PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)


def _tokens(text: str) -> list[str]:
    """As Java's StreamTokenizer takes them: words, and texts in quotes with backslash escapes."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', text)
    return [word or re.sub(r"\\(.)", r"\1", quoted) for quoted, word in found]


@given(PRINTABLE, PRINTABLE)
def test_user_and_password_come_out_of_the_login_as_they_went_in(user: str, password: str) -> None:
    module, required, *rest = _tokens(jaas("SCRAM-SHA-512", user, password).removesuffix(";"))
    assert (module, required) == ("org.apache.kafka.common.security.scram.ScramLoginModule", "required")
    assert rest == ["username=", user, "password=", password]


def test_a_quote_does_not_end_a_password() -> None:
    assert jaas("PLAIN", "u", 'a" evil="b\\').endswith(' username="u" password="a\\" evil=\\"b\\\\";')


def _loaded(text: str) -> dict[str, str]:
    """As Java's `Properties.load` reads a line."""
    found = {}
    for line in text.splitlines():
        name, value = re.match(r"((?:[^=\\]|\\.)*)=(.*)", line).groups()  # type: ignore[union-attr]
        plain = [re.sub(r"\\u([0-9a-f]{4})|\\(.)", _plain, one) for one in (name, value)]
        name, value = (one.encode("utf-16", "surrogatepass").decode("utf-16") for one in plain)
        found[name] = value
    return found


def _plain(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(match[2], match[2])


@given(st.dictionaries(PRINTABLE, PRINTABLE, max_size=4))
def test_javas_file_holds_what_was_put_in(settings: dict[str, str]) -> None:
    text = java_properties(settings)
    assert text.isascii()
    assert _loaded(text) == settings


def test_certificates_go_as_pem_and_a_key_that_java_can_not_read_is_refused(tmp_path: Path) -> None:
    authority = Authority.fresh()
    authority.write(tmp_path)
    key, certificate = authority.issue("me")
    (tmp_path / "me.key").write_bytes(key)
    (tmp_path / "me.pem").write_bytes(certificate)
    ours = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "me.pem"),
        "ssl.key.location": str(tmp_path / "me.key"),
    }
    settings = java_settings(Connection("h:1", ours, {"ssl.key.password": Secret("p")}))
    assert settings == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.decode(),
        "ssl.keystore.key": key.decode(),
        "ssl.key.password": "p",
    }
    (tmp_path / "me.key").write_bytes(key.replace(b"BEGIN PRIVATE", b"BEGIN EC PRIVATE"))
    with pytest.raises(Refused, match="openssl pkcs8 -topk8"):
        java_settings(Connection("h:1", ours))


def test_a_plain_connection_says_nothing_to_java() -> None:
    assert java_settings(Connection("h:1")) == {}
