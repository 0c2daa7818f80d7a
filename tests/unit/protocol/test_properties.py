"""What a client configuration file may say, line by line; and that nobody is shown what is secret in it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brew.connection import ALLOWED, REFUSED, ConfigLine, Connection, Secret, check_together, parse
from brew.errors import UsageError

CANARY = "canary-7f3a"
WEAKENS = (
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "transactional.id",
    "transaction.timeout.ms",
    "acks",
    "enable.idempotence",
    "message.timeout.ms",
    "max.in.flight.requests.per.connection",
    "check.crcs",
    "partitioner",
    "group.id",
    "allow.auto.create.topics",
    "plugin.library.paths",
    "ssl.engine.location",
    "ssl.providers",
    "debug",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
)


def test_what_is_let_through_comes_back_with_its_line() -> None:
    text = "# who we are\n\n  security.protocol = sasl_ssl\r\nsasl.password=a=b#c \\ d\n! end\n"
    assert parse(text, "f") == {
        "security.protocol": ConfigLine(3, "SASL_SSL"),
        "sasl.password": ConfigLine(4, "a=b#c \\ d"),
    }


@pytest.mark.parametrize("name", WEAKENS)
def test_what_the_promise_rests_on_is_refused_by_name_with_its_line_and_without_its_value(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"# one\nsecurity.protocol=SSL\n{name}={CANARY}\n", "client.properties")
    text = str(caught.value)
    assert text.startswith(f"client.properties:3: {name}=*** is refused: ")
    assert CANARY not in text
    assert len(text) > len(f"client.properties:3: {name}=*** is refused: ") + 10, "it says why, or what to do"


def test_no_setting_is_both_let_through_and_refused() -> None:
    assert not ALLOWED.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{CANARY}", "write name=value"),
        (f"={CANARY}", "write name=value"),
        (f"queue.buffering.max.ms={CANARY}", "not on the list"),
        ("sasl.password=", "has no value"),
        ("sasl.password=a\x00b", "control character"),
        ("security.protocol=SASL_PLAINTEXT", "in clear text"),
        ("ssl.endpoint.identification.algorithm=none", "it has to be https"),
        ("enable.ssl.certificate.verification=false", "anybody could pose as a broker"),
        ("sasl.mechanism=DIGEST", "one of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN, OAUTHBEARER, GSSAPI"),
        ("sasl.oauthbearer.config=x", "not on the list"),
        ("sasl.username=a\nsasl.username=b", "stands in line 1, too"),
    ],
)
def test_every_other_line_is_refused_with_what_to_do(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line, "f")
    assert words in str(caught.value)
    assert CANARY not in str(caught.value)


@given(st.text(max_size=300))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        found = parse(text, "f")
    except UsageError as error:
        assert "f:" in str(error)  # noqa: PT017 - either way is right
        return
    assert found.keys() <= ALLOWED.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sasl.username=a", "has no effect with security.protocol=PLAINTEXT"),
        ("security.protocol=SSL\nsasl.password=a", "f:2: sasl.password has no effect"),
        ("ssl.ca.location=a", "has no effect"),
        ("security.protocol=SASL_SSL\nsasl.username=a", "needs sasl.password, sasl.mechanism, too"),
        ("security.protocol=SSL\nssl.key.location=a", "f:2: ssl.key.location needs ssl.certificate.location, too"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        check_together(parse(text, "f"), "f")


def test_a_secret_prints_as_stars_wherever_it_goes_and_is_there_for_the_client() -> None:
    secret = Secret(CANARY)
    connection = Connection("h:1", {"client.id": "me"}, {"sasl.password": secret}, "/f")
    shown = [repr(secret), str(secret), f"{secret:>9}", "%s" % secret, repr(connection), str({"a": secret})]  # noqa: UP031
    assert not [text for text in shown if CANARY in text]
    again = pickle.loads(pickle.dumps(connection))
    assert again == connection
    assert again.settings() == {"client.id": "me", "sasl.password": CANARY}
