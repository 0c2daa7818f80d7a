"""Each right beyond a plain run's, taken away: the program says which, of whom, how to grant it; nothing comes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.names import Names
from harness.programs import until
from harness.secure import Secure
from harness.secure_stage import DOWNSTREAM, OPERATOR, PARTITIONS, PIPELINE, PROOF, QUICK, Ground, SecureStage
from harness.transactions import make_topics

from brew import acl
from brew.acl import Purpose
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.topics import CLEANUP_POLICY
from brew.names import READ_UNCOMMITTED, ExitCode
from brew.offsets import SourcePosition
from brew.orders import profile
from downstream.__main__ import downstream
from downstream.receive.command import DemoServer
from pipeline.__main__ import cli as pipeline
from sandbox.store import Redis

ORDERS = 8
_HEARTBEAT_S = "0.3"


def _profiles(ground: Ground) -> None:
    ground.make("output", "dead_letter")
    name = ground.place.profiles
    make_topics(ground.stage.connection, name, config={CLEANUP_POLICY: "compact"})
    ground.stage.produce(name, (0, b"c-00001", profile("c-00001", "gold")))


def _outputs(ground: Ground) -> None:
    """Enriched orders, for who reads them."""
    ground.make("output", "dead_letter")
    code, said = ground.run()
    assert code == ExitCode.DONE, said


def _run_done(ground: Ground) -> None:
    ground.make("output")
    code, said = ground.stage.here(pipeline, "run", *ground.stage.options(), "--master", "none", *QUICK, user="admin")
    assert code == ExitCode.DONE, said


def _call(ground: Ground, *more: str) -> tuple[int, str]:
    """Nobody takes anything, so that dead letters are written."""
    words = ("--url", ground.sink.url, "--attempts", "1", "--dead-letter", ground.stage.names.dead_letter)
    return ground.consume("call", *words, *more)


def _totals(ground: Ground) -> tuple[int, str]:
    words = ("--output", ground.place.totals, "--store", "memory", "--transaction-timeout", "5")
    code, said = ground.consume("totals", *words)
    return (code, said) if code != ExitCode.DONE else ground.consume("totals", *words, "--recompute")


def _receive(ground: Ground) -> tuple[int, str]:
    return ground.consume("receive", "--store", "redis-script", "--redis", ground.redis.url)


def _replay(ground: Ground) -> tuple[int, str]:
    names = ground.stage.names
    words = ("--input", names.input, "--dead-letter", names.dead_letter, "--group", names.group)
    return ground.stage.here(pipeline, "dlq", "replay", *ground.where, *words, user=OPERATOR)


def _shared(ground: Ground, *more: str) -> tuple[int, str]:
    return ground.run("--share", "--claims", ground.place.claims, "--claim-interval", _HEARTBEAT_S, *more)


def _owned(ground: Ground) -> tuple[int, str]:
    words = ("--ownership", "claims", "--claims", ground.place.claims, "--heartbeat-interval-s", _HEARTBEAT_S)
    mine = ("--topic", ground.stage.names.output, "--group", ground.stage.names.group, "--patience-s", "1")
    store = ("--store", "redis-script", "--redis", ground.redis.url)
    return ground.stage.here(downstream, "receive", *ground.where, *mine, *store, *words, user=DOWNSTREAM)


def _count(ground: Ground) -> tuple[int, str]:
    words = ("count", *ground.where, "--topic", ground.stage.names.output)
    return ground.stage.here(downstream, *words, user=DOWNSTREAM)


@dataclass(frozen=True)
class Case:
    """``beside``: other purposes that the command serves, too."""

    user: str
    prepare: Callable[[Ground], None]
    command: Callable[..., tuple[int, str]]
    beside: Sequence[Purpose] = ()


CASES = {
    Purpose.MAKE: Case(PIPELINE, lambda _: None, Ground.run),
    Purpose.PROFILES: Case(
        PIPELINE, _profiles, lambda one: one.run("--tiers", "profiles", "--profiles-topic", one.place.profiles)
    ),
    Purpose.SHARE: Case(PIPELINE, lambda one: one.make("output", "dead_letter"), _shared),
    Purpose.OWNERSHIP: Case(DOWNSTREAM, _outputs, _owned, [Purpose.RECEIVE]),
    Purpose.OTHER_GROUP: Case(DOWNSTREAM, _outputs, _count),
    Purpose.TOTALS: Case(DOWNSTREAM, _outputs, _totals, [Purpose.OTHER_GROUP]),
    Purpose.CALL: Case(DOWNSTREAM, _run_done, _call),
    Purpose.RECEIVE: Case(DOWNSTREAM, _outputs, _receive),
    Purpose.REPLAY: Case(OPERATOR, _outputs, _replay),
}


REFUSED_LATE = (Purpose.SHARE, 3)
"""Describe on the claims' group: the client asks for its coordinator by itself, so a short drain may end before."""


@pytest.fixture
def ground(
    secure: Secure, names: Names, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    """The input alone, with good orders and bad ones."""
    monkeypatch.setattr("downstream.totals.run._DENIED_S", 0.5)
    stage = SecureStage(secure.broker, names, secure)
    stage.create(PARTITIONS)
    with stage.acting("admin"):
        stage.seed(ORDERS, "--bad-every", "4")
    with DemoServer(fail_every=1) as sink:
        sink.serving()
        made = Ground(stage, sink, redis, tmp_path)
        # Of the sandbox's own making; it would let `brew-scan` in.
        secure.revoke(DOWNSTREAM, *(one for one in acl.rights_of(DOWNSTREAM) if one.prefix))
        for user in acl.USERS:
            secure.grant(user, *acl.rights_of(user, made.place))
        yield made
        sink.shutdown()
    stage.nobody_left()


ROWS = [(purpose, at) for purpose, case in CASES.items() for at in range(len(acl.extra_rights(case.user, [purpose])))]


@pytest.mark.parametrize(
    ("purpose", "at"), ROWS, ids=lambda one: one.name.lower() if isinstance(one, Purpose) else str(one)
)
def test_a_right_that_is_missing_is_named_and_nothing_comes_out(ground: Ground, purpose: Purpose, at: int) -> None:
    """All but one; with all of them the work is done."""
    case, secure = CASES[purpose], ground.stage.secure
    case.prepare(ground)
    rows = acl.extra_rights(case.user, [purpose], ground.place)
    secure.grant(case.user, *rows, *acl.extra_rights(case.user, case.beside, ground.place))
    assert secure.revoke(case.user, rows[at]) == 1
    before = _written(ground)
    late = (purpose, at) == REFUSED_LATE
    code, said = case.command(ground, *(["--follow"] if late else []))
    assert code == ExitCode.REFUSED, said
    ground.stage.named(rows[at], case.user, said)
    assert late or _written(ground) == before
    if at == len(rows) - 1:  # to see it once is enough
        secure.grant(case.user, rows[at])
        code, said = case.command(ground)
        assert code == ExitCode.DONE, said


def _written(ground: Ground) -> int:
    """Records that readers of the test's topics may see; totals, which are compared afterwards, are out by then."""
    stage = ground.stage
    there = topics.describe(stage.admin, _topics(ground), Deadline(30))
    return sum(len(stage.records(name)) for name in there)


def _topics(ground: Ground) -> list[str]:
    names = ground.stage.names
    return [names.input, names.output, names.dead_letter, f"{names.dead_letter}.replayed"]


ELSEWHERE = {Purpose.UPSTREAM, Purpose.NAMES, Purpose.OFFSETS, Purpose.ABORT, Purpose.COMMITS}
"""They have tests of their own: below, and the last in test_acls.py."""


def test_each_purpose_of_the_page_has_a_test_that_takes_its_rights_away() -> None:
    assert CASES.keys() | ELSEWHERE == set(Purpose)
    assert {row.user for row in acl.RIGHTS} == {PIPELINE, DOWNSTREAM, PROOF, OPERATOR}


LOOKS = {
    "lag": ("--input", "--group"),
    "explain": ("--input", "--output", "--dead-letter", "--group"),
    "xray": ("--input", "--output", "--group"),
    "dlq list": ("--dead-letter",),
    "dlq inspect": ("--dead-letter", "--input"),
    "top": ("--input", "--output", "--dead-letter", "--group"),
}
MORE = {
    "explain": ("{0.stage.names.input}/0/0",),
    "lag": ("--interval", "0.1"),
    "dlq inspect": ("--source", "{0.rejected}"),
    "top": ("--once", "--interval", "0.1"),
}


def _looked(ground: Ground, command: str, *more: str) -> tuple[int, str]:
    return _asked(ground, command, *(word.format(ground) for word in MORE.get(command, ())), *more)


def _asked(ground: Ground, command: str, *more: str) -> tuple[int, str]:
    given = ground.stage.options()
    pairs = dict(zip(given[::2], given[1::2], strict=True))
    words = [word for name in ("--bootstrap", *LOOKS[command]) for word in (name, pairs[name])]
    return ground.stage.here(pipeline, *command.split(), *words, *more, user=OPERATOR)


def test_an_operator_without_one_right_is_told_its_name(ground: Ground) -> None:
    """With the rights of the page every look is given; without one, who needs it names it, and the others go on."""
    _outputs(ground)
    refusing = dict.fromkeys(LOOKS, 0)
    for right in acl.rights_of(OPERATOR, ground.place):
        assert ground.stage.secure.revoke(OPERATOR, right) == 1
        told = {command: _looked(ground, command) for command in LOOKS}
        ground.stage.secure.grant(OPERATOR, right)
        refused = [command for command, (code, _) in told.items() if code != ExitCode.DONE]
        assert refused, f"nobody misses {right}"
        for command in refused:
            code, said = told[command]
            assert code == ExitCode.REFUSED, said
            ground.stage.named(right, OPERATOR, said)
            refusing[command] += 1
    assert refusing["top"] == 0, "it shows what it can, and says what it can't"
    assert {command: _looked(ground, command)[0] for command in LOOKS} == dict.fromkeys(LOOKS, ExitCode.DONE)


def test_who_holds_back_the_input_is_named_to_whoever_may_know(ground: Ground) -> None:
    """A run that waits says what it needs to be told the name; with the right it tells it. Both end alike."""
    stage, secure = ground.stage, ground.stage.secure
    ground.make("output", "dead_letter")
    with stage.acting("admin"):
        stage.seed(ORDERS, "--leave-open")
    [right] = acl.extra_rights(PIPELINE, [Purpose.UPSTREAM], ground.place)
    secure.revoke(PIPELINE, right, *acl.extra_rights(PIPELINE, [Purpose.UPSTREAM]))
    waited = ("--blocked-patience", "1", "--progress", "json")
    code, said = ground.run(*waited)
    assert code == ExitCode.REFUSED, said
    assert "is blocked at offset" in said
    assert "Describe on transactional ids" in said
    hanging = f"{right.name}:open"
    assert hanging not in said
    secure.grant(PIPELINE, right)
    code, said = ground.run(*waited)
    assert code == ExitCode.REFUSED, said
    assert hanging in said


def test_what_only_tells_more_is_missed_by_name_and_an_abort_takes_a_right(ground: Ground) -> None:
    """An open transaction's name, and the group's commits; then who may look may not end it."""
    stage, secure = ground.stage, ground.stage.secure
    ground.make("output", "dead_letter")
    crash = stage.pipeline("--master", "none", "--crash-prob", "1.0", seconds=60)
    assert crash.code == ExitCode.CRASHED_ON_PURPOSE, crash.text
    # The first partition that crashed ended the run: another one may not have come to write anything.
    source = SourcePosition.of(stage.records(stage.names.output, READ_UNCOMMITTED)[0].headers())
    explain = ("explain", str(source), "--json")
    doctor = ("doctor", *ground.where, "--topic", stage.names.output, "--older-than", "0")
    extra = {
        one: acl.extra_rights(OPERATOR, [one], ground.place) for one in (Purpose.NAMES, Purpose.OFFSETS, Purpose.ABORT)
    }
    assert [len(rows) for rows in extra.values()] == [1, 1, 1]
    for rows in extra.values():
        secure.revoke(OPERATOR, *rows)
    assert "TransactionalIdAuthorizationFailed" in json.loads(_looked(ground, "lag", "--json")[1])["unavailable"]
    assert "Describe on its transactional id" in stage.here(pipeline, *doctor, "--json", user=OPERATOR)[1]
    assert any("__consumer_offsets" in one for one in json.loads(_asked(ground, *explain)[1])["unavailable"])

    for purpose in (Purpose.NAMES, Purpose.OFFSETS):
        secure.grant(OPERATOR, *extra[purpose])
    for asked in (("lag", *MORE["lag"], "--json"), explain):
        assert not json.loads(_asked(ground, *asked)[1])["unavailable"]
    [named, *_] = [one.transactional_id for one in stage.open_transactions()]
    abort = (*doctor, "--abort", "--transaction", str(named), "--yes", "--json")
    before = len(stage.open_transactions())
    code, said = stage.here(pipeline, *abort, user=OPERATOR)
    assert code == ExitCode.REFUSED, said
    stage.named(extra[Purpose.ABORT][0], OPERATOR, said)
    assert len(stage.open_transactions()) == before
    secure.grant(OPERATOR, *extra[Purpose.ABORT])
    stage.here(pipeline, *abort, user=OPERATOR)
    until(lambda: named not in {one.transactional_id for one in stage.open_transactions()}, "its end")
    code, said = ground.run()
    assert code == ExitCode.DONE, said
