"""Each right of docs/SECURITY.md, taken away: the program says which, of whom, how to grant it; nothing comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from harness.names import Names
from harness.secure import Secure
from harness.secure_stage import DOWNSTREAM, PARTITIONS, PIPELINE, PROOF, QUICK, SecureStage

from brew import acl
from brew.acl import Kind, Operation, Purpose, Right
from brew.client_config import load
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable
from brew.kafka import cluster_admin
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_UNCOMMITTED, ExitCode
from brew.transaction import queue
from downstream.__main__ import downstream
from pipeline.__main__ import cli as pipeline
from proof.__main__ import proof

ORDERS = 20


@pytest.fixture
def stage(secure: Secure, names: Names) -> Iterator[SecureStage]:
    made = SecureStage(secure.broker, names, secure)
    made.create(PARTITIONS, output=PARTITIONS, dead_letter=PARTITIONS)
    made.grant_all()
    with made.acting("admin"):
        made.seed(ORDERS, "--bad-every", "5")
    yield made
    made.nobody_left()


def _run(stage: SecureStage, *options: str) -> tuple[int, str]:
    words = ("run", *stage.options(), "--master", "none", *QUICK, *options)
    return stage.here(pipeline, *words, user=PIPELINE)


def _visible(stage: SecureStage) -> int:
    return sum(len(stage.records(topic)) for topic in (stage.names.output, stage.names.dead_letter))


def _refused_without(stage: SecureStage, right: Right, *options: str) -> None:
    """A run that lacks ``right`` says so; nothing comes out, stays open or is committed. Then it has it back."""
    before = _visible(stage)
    assert stage.secure.revoke(PIPELINE, right) == 1
    code, said = _run(stage, *options)
    assert code == ExitCode.REFUSED, said
    stage.named(right, PIPELINE, said)
    assert _visible(stage) == before
    stage.nothing_open()
    stage.nothing_open(stage.names.dead_letter)
    assert all(at is None for at in stage.committed().values())
    stage.secure.grant(PIPELINE, right)


def test_a_run_without_one_right_names_it_and_lets_nothing_out(stage: SecureStage) -> None:
    """Each right in turn; with all of them again the next run does all of it once."""
    every = stage.rights(PIPELINE)
    searched = [right for right in every if _is_searched(right)]
    assert (len(every), len(searched)) == (9, 2)
    for right in every:
        if right not in searched:
            _refused_without(stage, right)
    assert _run(stage)[0] == ExitCode.DONE
    assert _visible(stage) == ORDERS

    # What came out is looked for only where the group has no position.
    cluster_admin.delete_group(stage.secure.cluster.connection, stage.names.group, Deadline(20))
    restored = ("--on-missing-position", "restore")
    for right in searched:
        _refused_without(stage, right, *restored)
    assert _run(stage, *restored)[0] == ExitCode.DONE
    assert _visible(stage) == ORDERS
    assert sum(len(stage.records(t, READ_UNCOMMITTED)) for t in (stage.names.output, stage.names.dead_letter)) >= ORDERS


def test_a_transaction_that_may_not_write_names_the_topic_however_much_it_writes(stage: SecureStage) -> None:
    """A few records fail when the offsets are sent; of many the client takes no more, and only says that it can't."""
    write = next(
        one for one in stage.rights(PIPELINE) if one.name.endswith(".out") and one.operation is Operation.WRITE
    )
    assert stage.secure.revoke(PIPELINE, write) == 1
    config = load(stage.secure.security.config(PIPELINE))
    mine = Connection(stage.broker.bootstrap, config.properties, config.secrets, config.source)
    named = rf"{{}} \(no Write on topic {stage.names.output}\): .*TOPIC_AUTHORIZATION_FAILED"
    deadline = Deadline(20)

    def transaction() -> KafkaTransaction:
        made = KafkaTransaction(TransactionSettings(mine, stage.names.group, 10), stage.names.input, 0)
        made.fence(deadline)
        made.begin()
        return made

    few = transaction()
    queue(few, deadline, stage.names.output, b"{}", b"key", 0)
    few.flush(deadline)
    with pytest.raises(Abortable, match=named.format("send-offsets")):
        few.send_offsets(1, "", deadline)
    few.close()

    def on_and_on(kafka: KafkaTransaction) -> None:
        with kafka.mapped("produce"):
            while not deadline.expired():
                queue(kafka, deadline, stage.names.output, b"{}", b"key", 0)

    many = transaction()
    with pytest.raises(Abortable, match=named.format("produce")):
        on_and_on(many)
    many.close()
    stage.nothing_open()


def _is_searched(right: Right) -> bool:
    return right.operation is Operation.READ and right.name.endswith((".out", ".dlq"))


def test_readers_without_their_right_name_it(stage: SecureStage) -> None:
    """With exactly the rights of the page nothing is refused."""
    assert _run(stage)[0] == ExitCode.DONE
    where = ("--bootstrap", stage.broker.bootstrap)
    programs = {
        DOWNSTREAM: (downstream, "count", *where, "--topic", stage.names.output),
        PROOF: (proof, "verify", *stage.options()),
    }
    for user, (program, *words) in programs.items():
        for right in stage.rights(user):
            assert stage.secure.revoke(user, right) == 1
            code, said = stage.here(program, *words, user=user)
            assert code == ExitCode.REFUSED, said
            stage.named(right, user, said)
            stage.secure.grant(user, right)
        code, said = stage.here(program, *words, user=user)
        assert code == ExitCode.DONE, said


def test_a_stranger_is_told_that_he_may_not(stage: SecureStage) -> None:
    """The reader of the output can't run the pipeline, nor fence it."""
    words = ("run", *stage.options(), "--master", "none", *QUICK)
    code, said = stage.here(pipeline, *words, user=DOWNSTREAM)
    assert code == ExitCode.REFUSED, said
    assert _visible(stage) == 0


def test_preflight_tells_of_the_transactional_ids_too(stage: SecureStage) -> None:
    right = next(one for one in stage.rights(PIPELINE) if one.kind is Kind.TRANSACTIONAL_ID)
    words = ("preflight", *stage.options(), "--master", "none")
    stage.secure.revoke(PIPELINE, right)
    code, said = stage.here(pipeline, *words, user=PIPELINE)
    assert code == ExitCode.REFUSED, said
    assert "transactional-id-access" in said
    stage.secure.grant(PIPELINE, right)
    code, said = stage.here(pipeline, *words, user=PIPELINE)
    assert code == ExitCode.DONE, said


def test_commits_are_checked_where_kafkas_own_log_may_be_read(stage: SecureStage) -> None:
    """
    `verify` has the group's commits with Read on `__consumer_offsets` alone.

    Without it names who lacks what and proves the rest; with Describe it names it, too, and with `--settled`, which
    says that all was looked at, nothing is proven.
    """
    assert _run(stage)[0] == ExitCode.DONE
    [read] = acl.extra_rights(PROOF, [Purpose.COMMITS])
    describe = replace(read, operation=Operation.DESCRIBE)

    def verified(*options: str) -> tuple[int, str]:
        return stage.here(proof, "verify", *stage.options(), "--json", *options, user=PROOF)

    def blind(*options: str, code: int = ExitCode.DONE) -> bool:
        ended, said = verified(*options)
        assert ended == code, said
        lacks = [note for note in (one for some in _texts(json.loads(said)) for one in some) if read.seen in note]
        assert all(f"User:{PROOF} {read.seen}" in note and read.command(f"User:{PROOF}") in note for note in lacks)
        return bool(lacks)

    assert blind()
    stage.secure.grant(PROOF, describe)
    assert blind()
    assert blind("--settled", code=ExitCode.REFUSED)
    stage.secure.grant(PROOF, read)
    assert not blind()
    assert not blind("--settled")
    assert stage.secure.revoke(PROOF, read, describe) == 2


def _texts(report: dict[str, Any]) -> list[list[str]]:
    """Notes and doubts of a report."""
    return [report["notes"], report["doubts"]]
