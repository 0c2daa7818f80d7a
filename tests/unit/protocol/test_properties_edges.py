"""A client configuration file at the edge of each rule: the whole sentence, its line, and what is let through."""

from __future__ import annotations

import pytest

from brew.connection import ALLOWED, ConfigLine, check_together, parse
from brew.errors import UsageError

LISTED = ", ".join(ALLOWED)
VERIFICATION = "enable.ssl.certificate.verification"
LIST = f"=*** is not on the list of settings that are let through: {LISTED}"


def sentence(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        check_together(parse(text, "f"), "f")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client.id", "f:1: this is not a setting; write name=value, and begin a comment with #"),
        ("\n\n=x", "f:3: this is not a setting; write name=value, and begin a comment with #"),
        ("a" * 60 + "=1", f"f:1: {'a' * 60}{LIST}"),
        ("a" * 61 + "=1", f"f:1: '{'a' * 60}'...{LIST}"),
        ("a\x07b=1", rf"f:1: 'a\x07b'...{LIST}"),
        ("sasl.oauthbearer=1", f"f:1: sasl.oauthbearer{LIST}"),
        ("client.id=\nacks=1", "f:1: client.id has no value; write one, or leave the line out"),
        ("client.id=a\x07", "f:1: client.id=*** holds a control character; take it out"),
        ("client.id=a\n#\nclient.id=b", "f:3: client.id stands in line 1, too; leave one of them"),
        ("broker.address.family=v5", "f:1: broker.address.family=*** is refused: it has to be one of any, v4, v6"),
        (
            f"{VERIFICATION}=no",
            f"f:1: {VERIFICATION}=*** is refused: it has to be true; anybody could pose as a broker",
        ),
    ],
)
def test_a_line_that_is_refused_is_told_in_one_whole_sentence(text: str, said: str) -> None:
    """File and line, name, what it has to be; never the value."""
    assert sentence(text) == said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("client.id=a=b", {"client.id": ConfigLine(1, "a=b")}),
        ("\t client.id\t=\ta b \r\n", {"client.id": ConfigLine(1, "a b")}),
        ("!client.id=a\n  # x\nclient.id=#a", {"client.id": ConfigLine(3, "#a")}),
        ("broker.address.family=V6", {"broker.address.family": ConfigLine(1, "v6")}),
        ("broker.address.family=${env:FAMILY}", {"broker.address.family": ConfigLine(1, "${env:FAMILY}")}),
        ("", {}),
    ],
)
def test_what_is_let_through_is_given_as_the_client_wants_it(text: str, found: dict[str, ConfigLine]) -> None:
    """A reference to a secret is looked up later, so its value is not compared with the list."""
    assert parse(text, "f") == found


PLAIN = "sasl.username=u\nsasl.password=p\n"


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_either_name_of_the_mechanism_will_do(mechanism: str) -> None:
    check_together(parse(f"security.protocol=SASL_SSL\n{PLAIN}{mechanism}=PLAIN\nssl.ca.location=x", "f"), "f")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "client.id=a",
        "security.protocol=PLAINTEXT",
        "security.protocol=SSL\nssl.ca.location=a",
        "security.protocol=SSL\nssl.certificate.location=a\nssl.key.location=b",
    ],
)
def test_settings_that_go_together_are_accepted(text: str) -> None:
    check_together(parse(text, "f"), "f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "security.protocol=SASL_SSL",
            "f: security.protocol=SASL_SSL needs sasl.username, sasl.password, sasl.mechanism, too",
        ),
        (f"security.protocol=SASL_SSL\n{PLAIN}", "f: security.protocol=SASL_SSL needs sasl.mechanism, too"),
        (
            "client.id=a\nsasl.username=u\nsasl.password=p",
            "f:3: sasl.password has no effect with security.protocol=PLAINTEXT; set SASL_SSL",
        ),
        (
            "security.protocol=SSL\nsasl.username=u",
            "f:2: sasl.username has no effect with security.protocol=SSL; set SASL_SSL",
        ),
        (
            "client.id=a\nssl.key.location=k\nssl.ca.location=c",
            "f:3: ssl.ca.location has no effect with security.protocol=PLAINTEXT; set SSL or SASL_SSL",
        ),
        (
            "security.protocol=SSL\nssl.certificate.location=c",
            "f:2: ssl.certificate.location needs ssl.key.location, too",
        ),
        (
            "security.protocol=SSL\nssl.key.location=k",
            "f:2: ssl.key.location needs ssl.certificate.location, too",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_told_in_one_whole_sentence(text: str, said: str) -> None:
    """With the line of the first one by name."""
    assert sentence(text) == said
