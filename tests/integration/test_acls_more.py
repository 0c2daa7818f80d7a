"""Each right beyond a plain run's, taken away: the program says which, of whom, how to grant it; nothing comes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.operate import command_line
from harness.programs import until
from harness.secure import DOWNSTREAM, OPERATOR, PARTITIONS, PIPELINE, PROOF, QUICK, Secure, SecurePrograms, SecureStage
from harness.servers import Names, make_topics

from brew import acl
from brew.acl import Kind, Operation, Purpose, Right
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.topics import CLEANUP_POLICY
from brew.names import READ_UNCOMMITTED, ExitCode
from brew.offsets import SourcePosition
from brew.orders import profile
from downstream.__main__ import downstream
from downstream.receive.command import DemoServer
from pipeline.__main__ import cli as pipeline
from proof.seed import Seeding, next_number, seed
from sandbox.store import Redis

ORDERS = 8
_HEARTBEAT_S = "0.3"


def _create_output_topics(resources: SecurePrograms) -> None:
    resources.make("output", "dead_letter")


def _create_profiles(resources: SecurePrograms) -> None:
    _create_output_topics(resources)
    name = resources.place.profiles
    make_topics(resources.stage.connection, name, config={CLEANUP_POLICY: "compact"})
    resources.stage.produce(name, (0, b"c-00001", profile("c-00001", "gold")))


def _create_outputs(resources: SecurePrograms) -> None:
    """Enriched orders, for who reads them."""
    resources.make("output", "dead_letter")
    code, output = resources.run()
    assert code == ExitCode.DONE, output


def _run_as_admin(resources: SecurePrograms) -> None:
    resources.make("output")
    code, output = resources.stage.run_as(
        pipeline, "run", *resources.stage.options(), "--master", "none", *QUICK, user="admin"
    )
    assert code == ExitCode.DONE, output


def _run_with_profiles(resources: SecurePrograms) -> tuple[int, str]:
    return resources.run("--tiers", "profiles", "--profiles-topic", resources.place.profiles)


def _call(resources: SecurePrograms, *more: str) -> tuple[int, str]:
    """Nobody takes anything, so that dead letters are written."""
    words = ("--url", resources.sink.url, "--attempts", "1", "--dead-letter", resources.stage.names.dead_letter)
    return resources.consume("call", *words, *more)


def _totals(resources: SecurePrograms) -> tuple[int, str]:
    words = ("--output", resources.place.totals, "--store", "memory", "--transaction-timeout", "5")
    code, output = resources.consume("totals", *words)
    return (code, output) if code != ExitCode.DONE else resources.consume("totals", *words, "--recompute")


def _receive(resources: SecurePrograms) -> tuple[int, str]:
    return resources.consume("receive", "--store", "redis-script", "--redis", resources.redis.url)


def _replay(resources: SecurePrograms) -> tuple[int, str]:
    names = resources.stage.names
    words = ("--input", names.input, "--dead-letter", names.dead_letter, "--group", names.group)
    return resources.stage.run_as(pipeline, "dlq", "replay", *resources.where, *words, user=OPERATOR)


def _run_shared(resources: SecurePrograms, *more: str) -> tuple[int, str]:
    return resources.run("--share", "--claims", resources.place.claims, "--claim-interval", _HEARTBEAT_S, *more)


def _receive_by_claims(resources: SecurePrograms) -> tuple[int, str]:
    words = ("--ownership", "claims", "--claims", resources.place.claims, "--heartbeat-interval-s", _HEARTBEAT_S)
    input_options = (
        "--topic",
        resources.stage.names.output,
        "--group",
        resources.stage.names.group,
        "--patience-s",
        "1",
    )
    store = ("--store", "redis-script", "--redis", resources.redis.url)
    return resources.stage.run_as(
        downstream, "receive", *resources.where, *input_options, *store, *words, user=DOWNSTREAM
    )


def _count(resources: SecurePrograms) -> tuple[int, str]:
    words = ("count", *resources.where, "--topic", resources.stage.names.output)
    return resources.stage.run_as(downstream, *words, user=DOWNSTREAM)


@dataclass(frozen=True)
class Case:
    """``served_too``: other purposes that the command serves, too."""

    user: str
    prepare: Callable[[SecurePrograms], None]
    command: Callable[..., tuple[int, str]]
    served_too: Sequence[Purpose] = ()


CASES = {
    Purpose.MAKE: Case(PIPELINE, lambda _: None, SecurePrograms.run),
    Purpose.PROFILES: Case(PIPELINE, _create_profiles, _run_with_profiles),
    Purpose.SHARE: Case(PIPELINE, _create_output_topics, _run_shared),
    Purpose.OWNERSHIP: Case(DOWNSTREAM, _create_outputs, _receive_by_claims, [Purpose.RECEIVE]),
    Purpose.OTHER_GROUP: Case(DOWNSTREAM, _create_outputs, _count),
    Purpose.TOTALS: Case(DOWNSTREAM, _create_outputs, _totals, [Purpose.OTHER_GROUP]),
    Purpose.CALL: Case(DOWNSTREAM, _run_as_admin, _call),
    Purpose.RECEIVE: Case(DOWNSTREAM, _create_outputs, _receive),
    Purpose.REPLAY: Case(OPERATOR, _create_outputs, _replay),
}


REFUSED_LATE = (Purpose.SHARE, 3)
"""Describe on the claims' group: the client asks for its coordinator by itself, so a short drain may end before."""


@pytest.fixture
def resources(
    secure: Secure, names: Names, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SecurePrograms]:
    """The input alone, with good orders and bad ones."""
    monkeypatch.setattr("downstream.totals.run.DENIED_S", 0.5)
    stage = SecureStage(secure.broker, names, secure)
    stage.create(PARTITIONS)
    with stage.acting_as("admin"):
        stage.seed(ORDERS, "--bad-every", "4")
    with DemoServer(fail_every=1) as sink:
        sink.serving()
        resources = SecurePrograms(stage, sink, redis, tmp_path)
        # Of the sandbox's own making; it would let `brew-scan` in.
        secure.revoke(DOWNSTREAM, *(right for right in acl.rights_of(DOWNSTREAM) if right.prefix))
        for user in acl.USERS:
            secure.grant(user, *acl.rights_of(user, resources.place))
        yield resources
        sink.shutdown()
    stage.no_process_left()


ROWS = [
    (purpose, index)
    for purpose, case in CASES.items()
    for index, _ in enumerate(acl.extra_rights(case.user, [purpose]))
]


@pytest.mark.parametrize(
    ("purpose", "index"), ROWS, ids=lambda value: value.name.lower() if isinstance(value, Purpose) else str(value)
)
def test_a_right_that_is_missing_is_named_and_nothing_comes_out(
    resources: SecurePrograms, purpose: Purpose, index: int
) -> None:
    """All but one; with all of them the work is done."""
    case, secure = CASES[purpose], resources.stage.secure
    case.prepare(resources)
    rights = acl.extra_rights(case.user, [purpose], resources.place)
    secure.grant(case.user, *rights, *acl.extra_rights(case.user, case.served_too, resources.place))
    assert secure.revoke(case.user, rights[index]) == 1
    before = _visible_records(resources)
    late = (purpose, index) == REFUSED_LATE
    code, output = case.command(resources, *(["--follow"] if late else []))
    assert code == ExitCode.REFUSED, output
    resources.stage.assert_named(rights[index], case.user, output)
    assert late or _visible_records(resources) == before
    if index == len(rights) - 1:  # to see it once is enough
        secure.grant(case.user, rights[index])
        code, output = case.command(resources)
        assert code == ExitCode.DONE, output


def _visible_records(resources: SecurePrograms) -> int:
    """Records that readers of the test's topics may see; totals, which are compared afterwards, are out by then."""
    stage, names = resources.stage, resources.stage.names
    possible = [names.input, names.output, names.dead_letter, f"{names.dead_letter}.replayed"]
    return sum(len(stage.records(name)) for name in topics.describe(stage.admin, possible, Deadline(30)))


TESTED_ELSEWHERE = {Purpose.UPSTREAM, Purpose.NAMES, Purpose.OFFSETS, Purpose.ABORT, Purpose.COMMITS}
"""They have tests of their own: below, and the last in test_acls.py."""


def test_each_purpose_of_the_page_has_a_test_that_takes_its_rights_away() -> None:
    assert CASES.keys() | TESTED_ELSEWHERE == set(Purpose)
    assert {row.user for row in acl.RIGHTS} == {PIPELINE, DOWNSTREAM, PROOF, OPERATOR}


COMMANDS = ("lag", "explain", "xray", "dlq list", "dlq inspect", "top")
MORE_OPTIONS = {
    "explain": ("{0.stage.names.input}/0/0",),
    "lag": ("--interval", "0.1"),
    "dlq inspect": ("--source", "{0.rejected}"),
    "top": ("--once", "--interval", "0.1"),
}


def _inspect(resources: SecurePrograms, command: str, *more: str) -> tuple[int, str]:
    return _run_as_operator(
        resources, command, *(word.format(resources) for word in MORE_OPTIONS.get(command, ())), *more
    )


def _run_as_operator(resources: SecurePrograms, command: str, *more: str) -> tuple[int, str]:
    return resources.stage.run_as(pipeline, *command_line(resources.stage, command), *more, user=OPERATOR)


def test_an_operator_without_one_right_is_told_its_name(resources: SecurePrograms) -> None:
    """With the rights of the page every look is given; without one, who needs it names it, and the others go on."""
    _create_outputs(resources)
    refusals = dict.fromkeys(COMMANDS, 0)
    for right in acl.rights_of(OPERATOR, resources.place):
        assert resources.stage.secure.revoke(OPERATOR, right) == 1
        results = {command: _inspect(resources, command) for command in COMMANDS}
        resources.stage.secure.grant(OPERATOR, right)
        refused = [command for command, (code, _) in results.items() if code != ExitCode.DONE]
        assert refused, f"nobody misses {right}"
        for command in refused:
            code, output = results[command]
            assert code == ExitCode.REFUSED, output
            resources.stage.assert_named(right, OPERATOR, output)
            refusals[command] += 1
    assert refusals["top"] == 0, "it shows what it can, and says what it can't"
    assert {command: _inspect(resources, command)[0] for command in COMMANDS} == dict.fromkeys(COMMANDS, ExitCode.DONE)


def test_who_holds_back_the_input_is_named_to_whoever_may_know(resources: SecurePrograms) -> None:
    """A run that waits says what it needs to be told the name; with the right it tells it. Both end alike."""
    stage, secure = resources.stage, resources.stage.secure
    resources.make("output", "dead_letter")
    with stage.acting_as("admin"):
        stage.seed(ORDERS, "--leave-open")
    [right] = acl.extra_rights(PIPELINE, [Purpose.UPSTREAM], resources.place)
    secure.revoke(PIPELINE, right, *acl.extra_rights(PIPELINE, [Purpose.UPSTREAM]))
    options = ("--blocked-patience", "1", "--progress", "json")
    code, output = resources.run(*options)
    assert code == ExitCode.REFUSED, output
    assert "is blocked at offset" in output
    assert "Describe on transactional ids" in output
    transactional_id = f"{right.name}:open"
    assert transactional_id not in output
    secure.grant(PIPELINE, right)
    code, output = resources.run(*options)
    assert code == ExitCode.REFUSED, output
    assert transactional_id in output


def test_what_only_tells_more_is_missed_by_name_and_an_abort_takes_a_right(resources: SecurePrograms) -> None:
    """An open transaction's name, and the group's commits; then who may look may not end it."""
    stage, secure = resources.stage, resources.stage.secure
    resources.make("output", "dead_letter")
    crashed = stage.pipeline("--master", "none", "--crash-prob", "1.0", seconds=60)
    assert crashed.code == ExitCode.CRASHED_ON_PURPOSE, crashed.text
    # The first partition that crashed ended the run: another one may not have come to write anything.
    source = SourcePosition.of(stage.records(stage.names.output, READ_UNCOMMITTED)[0].headers())
    explain = ("explain", str(source), "--json")
    doctor = ("doctor", *resources.where, "--topic", stage.names.output, "--older-than", "0")
    extra = {
        purpose: acl.extra_rights(OPERATOR, [purpose], resources.place)
        for purpose in (Purpose.NAMES, Purpose.OFFSETS, Purpose.ABORT)
    }
    assert [len(rows) for rows in extra.values()] == [1, 1, 1]
    for rows in extra.values():
        secure.revoke(OPERATOR, *rows)
    assert "TransactionalIdAuthorizationFailed" in json.loads(_inspect(resources, "lag", "--json")[1])["unavailable"]
    assert "Describe on its transactional id" in stage.run_as(pipeline, *doctor, "--json", user=OPERATOR)[1]
    unavailable = json.loads(_run_as_operator(resources, *explain)[1])["unavailable"]
    assert any("__consumer_offsets" in reason for reason in unavailable)

    for purpose in (Purpose.NAMES, Purpose.OFFSETS):
        secure.grant(OPERATOR, *extra[purpose])
    for command in (("lag", *MORE_OPTIONS["lag"], "--json"), explain):
        assert not json.loads(_run_as_operator(resources, *command)[1])["unavailable"]
    [transactional_id, *_] = [open_.transactional_id for open_ in stage.open_transactions()]
    abort = (*doctor, "--abort", "--transaction", str(transactional_id), "--yes", "--json")
    before = len(stage.open_transactions())
    code, output = stage.run_as(pipeline, *abort, user=OPERATOR)
    assert code == ExitCode.REFUSED, output
    stage.assert_named(extra[Purpose.ABORT][0], OPERATOR, output)
    assert len(stage.open_transactions()) == before
    secure.grant(OPERATOR, *extra[Purpose.ABORT])
    stage.run_as(pipeline, *abort, user=OPERATOR)
    until(lambda: transactional_id not in {open_.transactional_id for open_ in stage.open_transactions()}, "its end")
    code, output = resources.run()
    assert code == ExitCode.DONE, output


def test_who_may_only_write_orders_seeds_them(secure: Secure, names: Names) -> None:
    """The next number is above the last orders where these may be read, and the sum of the ends where not."""
    make_topics(secure.cluster.connection, names.input, partitions=1)
    secure.grant(OPERATOR, Right(OPERATOR, Kind.TOPIC, names.input, Operation.WRITE, "its orders"))
    writer = secure.security.connection(secure.cluster.layout, OPERATOR)
    for start, connection in ((0, writer), (90, secure.cluster.connection)):
        seed(
            connection,
            Seeding(names.input, 3, start=start),
            deadline=Deadline(20),
            advance=lambda _: None,
            transaction_timeout_s=60,
        )
    assert [next_number(one, names.input, Deadline(20)) for one in (writer, secure.cluster.connection)] == [6, 93]
