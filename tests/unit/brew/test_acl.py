"""Rights: what the page lists and the sandbox grants, and what is said when the brokers refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
import pytest
from harness.pages import ROOT, tables

from brew import acl
from brew.acl import Denial, Kind, Operation, ResourceNames, Right, advice, denial_in
from brew.connection import ALLOWED, CLIENT_CONFIG
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof

NAMES = {"input": "in.v1", "output": "out", "dead_letter": "out.dlq", "group": "g"}
ME, FILE = "User:me", "/c.properties"
TOPIC = "Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
GROUP = "Group authorization failed (GROUP_AUTHORIZATION_FAILED)"
ID = "Transactional Id authorization failed (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)"


def advice_for_me(text: str, names: Mapping[str, str] = NAMES, *, read_only: bool = False) -> str:
    return advice(text, ME, dict(names), FILE, read_only=read_only) or ""


@pytest.mark.parametrize(
    ("text", "rights"),
    [
        (f"fence: Broker: {ID}", ["Write on transactional-id g:*"]),
        (f"locate: Broker: {GROUP}", ["Read on group g"]),
        (f"Abortable: produce: Broker: {TOPIC}", ["Write on topic out", "Write on topic out.dlq"]),
        (f"scan of out.dlq: {TOPIC}", ["Read on topic out.dlq"]),
        (f"configuration of out: {TOPIC}", ["DescribeConfigs on topic out"]),
        (
            "Spark: org.apache.kafka.TopicAuthorizationException: Not authorized to access topics: [in.v1]",
            ["Read on topic in.v1"],
        ),
        (
            "preflight: x (ACLs of this principal on topic out (kafka-acls.sh)): DESCRIBE_CONFIGS is not granted: y",
            ["DescribeConfigs on topic out"],
        ),
        (
            "append to topic c: Failed to acquire idempotence PID from b: x (CLUSTER_AUTHORIZATION_FAILED)",
            ["Write on topic c"],
        ),
        (f"scan of out: {GROUP}", ["Describe on group brew-scan"]),
        (f"read of out as g: {GROUP}", ["Read on group g"]),
        (f"describe topic out.dlq.replayed: Broker: {TOPIC}", ["Read on topic out.dlq.replayed"]),
        (f"read of topic claims as brew-claims: {GROUP}", ["Describe on group brew-claims"]),
        ("read of topic claims as brew-claims: Fetch failed (TOPIC_AUTHORIZATION_FAILED)", ["Read on topic claims"]),
        ("append to topic claims: x (TOPIC_AUTHORIZATION_FAILED)", ["Write on topic claims"]),
        (f"topic 'claims' is missing and could not be made: {TOPIC}", ["Create on topic claims"]),
        ("fence of b:in:0: x (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", ["Write on transactional-id b:in:0"]),
        ("x: Cluster authorization failed (CLUSTER_AUTHORIZATION_FAILED)", ["Create on cluster kafka-cluster"]),
    ],
)
def test_a_missing_right_is_named_with_the_command_that_grants_it(text: str, rights: list[str]) -> None:
    assert denial_in(text) is Denial.RIGHT
    message = advice_for_me(text)
    for right in rights:
        assert f"{right}: `kafka-acls --add --allow-principal User:me --operation {right.split()[0]} " in message
    assert message.count("kafka-acls") == len(rights)
    assert message.startswith("User:me lacks ")


def test_what_a_command_writes_is_named_where_the_brokers_name_nothing() -> None:
    names = {"input": "in", "dead_letter": "in.dlq", "written0": "in", "written1": "in.dlq.replayed", "group": "g"}
    message = advice_for_me("send-offsets: x (TOPIC_AUTHORIZATION_FAILED)", names)
    assert "Write on topic in: " in message
    assert "Write on topic in.dlq.replayed: " in message
    assert message.count("kafka-acls") == 2
    for text, right in (("describe topic in", "Write on topic in: "), ("scan of in", "Read on topic in: ")):
        assert right in advice_for_me(f"{text}: x (TOPIC_AUTHORIZATION_FAILED)", names)


SINKS = "send-offsets of group a source in topic in.1"


@pytest.mark.parametrize(
    ("error", "lacks"),
    [("GROUP_AUTHORIZATION_FAILED", "Read on group a source"), ("TopicAuthorizationFailedError", "Read on topic in.1")],
)
def test_a_sinks_refused_offsets_name_the_group_or_topic_of_the_two_that_it_sends(error: str, lacks: str) -> None:
    """Its position's, and those of its query's source."""
    assert f"lacks {lacks}:" in advice_for_me(f"{SINKS}: x ({error})")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("connect: SASL authentication error: Authentication failed (_AUTHENTICATION)", Denial.LOGIN),
        ("Spark: org.apache.kafka.common.errors.SaslAuthenticationException: invalid credentials", Denial.LOGIN),
        ("connect: ssl://h:1: SSL handshake failed: certificate has expired (_SSL)", Denial.TLS),
        ("Spark: org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed", Denial.TLS),
    ],
)
def test_a_door_that_stays_shut_names_the_user_or_the_file(text: str, kind: Denial) -> None:
    assert denial_in(text) is kind
    message = advice_for_me(text)
    assert FILE in message
    assert (ME in message) is (kind is Denial.LOGIN)


@pytest.mark.parametrize("text", ["", "survey: timed out (_TIMED_OUT)", "fence: a newer holder (_FENCED)"])
def test_every_other_error_is_left_alone(text: str) -> None:
    assert denial_in(text) is None
    assert advice(text, ME, NAMES, FILE) is None


SECURITY = (ROOT / "docs/SECURITY.md").read_text()

# Brokers that are broken are the campaign's own; those of its F36 cells are secure ones.
_WITHOUT = {"campaign", "replay"}


def test_the_page_and_the_makefile_tell_what_the_code_does() -> None:
    assert acl.rights_table() in SECURITY
    assert acl.sink_rights_table() in SECURITY
    settings = " ".join(row[0] for row in tables(SECURITY, "One file says who we are")[0])
    assert ALLOWED.keys() - set(settings.replace("`", "").replace(",", "").split()) == {"sasl.mechanisms"}
    assert "$(call option,--client-config,CLIENT_CONFIG)" in (ROOT / "Makefile").read_text()


def test_a_place_fills_in_its_names_and_nobody_but_the_pipeline_may_write() -> None:
    place = ResourceNames("in", "out", "dead", "g")
    rights = list(acl.rights_of("pipeline", place))
    others = [str(right) for right in rights if right.kind is not Kind.TOPIC]
    assert others == ["Read on group g", "Write on transactional-id g:*"]
    assert {right.name for right in rights if right.kind is Kind.TOPIC} == {"in", "out", "dead"}
    assert {right.user for right in acl.RIGHTS if right.operation is Operation.WRITE} == {"pipeline"}


def test_a_right_tells_the_command_that_grants_it() -> None:
    right = Right("u", Kind.TRANSACTIONAL_ID, "g:", Operation.WRITE, "", prefix=True)
    assert right.command("User:u") == (
        "kafka-acls --add --allow-principal User:u --operation Write --resource-pattern-type prefixed "
        "--transactional-id g:"
    )
    looking = advice_for_me("locate: x (GROUP_AUTHORIZATION_FAILED)", read_only=True)
    assert "Describe on group g: " in looking, "who only looks at a position needs less"


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        elif command is not None:
            yield f"{path} {name}", command


PROGRAMS = {"pipeline": pipeline, "downstream": downstream, "proof": proof}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_that_is_told_where_brokers_are_is_told_who_it_is(name: str) -> None:
    commands = dict(_commands(PROGRAMS[name], name))
    assert len(commands) > 3
    for path, command in commands.items():
        options = {flag: one for one in command.params for flag in one.opts}
        if "--bootstrap" not in options or path.split()[-1] in _WITHOUT:
            continue
        assert "--client-config" in options, f"{path}: use brew.cli beside --bootstrap"
        assert options["--client-config"].envvar == CLIENT_CONFIG
