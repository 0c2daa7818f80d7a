"""Each right of docs/SECURITY.md, taken away: the program says which, of whom, how to grant it; nothing comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness.secure import DOWNSTREAM, PARTITIONS, PIPELINE, PROOF, QUICK, Secure, SecureStage
from harness.servers import Names

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
    stage = SecureStage(secure.broker, names, secure)
    stage.create(PARTITIONS, output=PARTITIONS, dead_letter=PARTITIONS)
    stage.grant_all()
    with stage.acting_as("admin"):
        stage.seed(ORDERS, "--bad-every", "5")
    yield stage
    stage.no_process_left()


def _run(stage: SecureStage, *options: str, user: str = PIPELINE) -> tuple[int, str]:
    return stage.run_as(pipeline, "run", *stage.options(), "--master", "none", *QUICK, *options, user=user)


def _visible(stage: SecureStage) -> int:
    return sum(len(stage.records(topic)) for topic in (stage.names.output, stage.names.dead_letter))


def _refused_without(stage: SecureStage, right: Right, *options: str) -> None:
    """A run that lacks ``right`` says so; nothing comes out, stays open or is committed. Then it has it back."""
    before = _visible(stage)
    assert stage.secure.revoke(PIPELINE, right) == 1
    code, output = _run(stage, *options)
    assert code == ExitCode.REFUSED, output
    stage.assert_named(right, PIPELINE, output)
    assert _visible(stage) == before
    stage.nothing_open()
    stage.nothing_open(stage.names.dead_letter)
    assert all(position is None for position in stage.committed().values())
    stage.secure.grant(PIPELINE, right)


def test_a_run_without_one_right_names_it_and_lets_nothing_out(stage: SecureStage) -> None:
    """Each right in turn; with all of them again the next run does all of it once."""
    rights = stage.rights(PIPELINE)
    needed_by_search = [right for right in rights if _is_searched(right)]
    assert (len(rights), len(needed_by_search)) == (9, 2)
    for right in rights:
        if right not in needed_by_search:
            _refused_without(stage, right)
    assert _run(stage)[0] == ExitCode.DONE
    assert _visible(stage) == ORDERS

    # What came out is looked for only where the group has no position.
    cluster_admin.delete_group(stage.secure.cluster.connection, stage.names.group, Deadline(20))
    restored = ("--on-missing-position", "restore")
    for right in needed_by_search:
        _refused_without(stage, right, *restored)
    assert _run(stage, *restored)[0] == ExitCode.DONE
    assert _visible(stage) == ORDERS
    assert sum(len(stage.records(t, READ_UNCOMMITTED)) for t in (stage.names.output, stage.names.dead_letter)) >= ORDERS


def test_a_transaction_that_may_not_write_names_the_topic_however_much_it_writes(stage: SecureStage) -> None:
    """A few records fail when the offsets are sent; of many the client takes no more, and only says that it can't."""
    write_right = next(
        right for right in stage.rights(PIPELINE) if right.name.endswith(".out") and right.operation is Operation.WRITE
    )
    assert stage.secure.revoke(PIPELINE, write_right) == 1
    config = load(stage.secure.security.config(PIPELINE))
    connection = Connection(stage.broker.bootstrap, config.properties, config.secrets, config.source)
    pattern = rf"{{}} \(no Write on topic {stage.names.output}\): .*TOPIC_AUTHORIZATION_FAILED"
    deadline = Deadline(20)

    def transaction() -> KafkaTransaction:
        kafka = KafkaTransaction(TransactionSettings(connection, stage.names.group, 10), stage.names.input, 0)
        kafka.fence(deadline)
        kafka.begin()
        return kafka

    few = transaction()
    queue(few, deadline, stage.names.output, b"{}", b"key", 0)
    few.flush(deadline)
    with pytest.raises(Abortable, match=pattern.format("send-offsets")):
        few.send_offsets(1, "", deadline)
    few.close()

    def produce_until_refused(kafka: KafkaTransaction) -> None:
        with kafka.mapped("produce"):
            while not deadline.expired():
                queue(kafka, deadline, stage.names.output, b"{}", b"key", 0)

    many = transaction()
    with pytest.raises(Abortable, match=pattern.format("produce")):
        produce_until_refused(many)
    many.close()
    stage.nothing_open()


def _is_searched(right: Right) -> bool:
    return right.operation is Operation.READ and right.name.endswith((".out", ".dlq"))


def test_readers_without_their_right_name_it(stage: SecureStage) -> None:
    """With exactly the rights of the page nothing is refused."""
    assert _run(stage)[0] == ExitCode.DONE
    bootstrap = ("--bootstrap", stage.broker.bootstrap)
    programs = {
        DOWNSTREAM: (downstream, "count", *bootstrap, "--topic", stage.names.output),
        PROOF: (proof, "verify", *stage.options()),
    }
    for user, (program, *words) in programs.items():
        for right in stage.rights(user):
            assert stage.secure.revoke(user, right) == 1
            code, output = stage.run_as(program, *words, user=user)
            assert code == ExitCode.REFUSED, output
            stage.assert_named(right, user, output)
            stage.secure.grant(user, right)
        code, output = stage.run_as(program, *words, user=user)
        assert code == ExitCode.DONE, output


def test_preflight_tells_of_the_transactional_ids_too(stage: SecureStage) -> None:
    right = next(right for right in stage.rights(PIPELINE) if right.kind is Kind.TRANSACTIONAL_ID)
    words = ("preflight", *stage.options(), "--master", "none")
    stage.secure.revoke(PIPELINE, right)
    code, output = stage.run_as(pipeline, *words, user=PIPELINE)
    assert code == ExitCode.REFUSED, output
    assert "transactional-id-access" in output
    stage.secure.grant(PIPELINE, right)
    code, output = stage.run_as(pipeline, *words, user=PIPELINE)
    assert code == ExitCode.DONE, output


def test_commits_are_checked_where_kafkas_own_log_may_be_read(stage: SecureStage) -> None:
    """
    `verify` has the group's commits with Read on `__consumer_offsets` alone.

    Without it names who lacks what and proves the rest; with Describe it names it, too, and with `--settled`, which
    says that all was looked at, nothing is proven.
    """
    assert _run(stage)[0] == ExitCode.DONE
    [read] = acl.extra_rights(PROOF, [Purpose.COMMITS])
    describe = replace(read, operation=Operation.DESCRIBE)

    def lacks_commits(*options: str, code: int = ExitCode.DONE) -> bool:
        exit_code, output = stage.run_as(proof, "verify", *stage.options(), "--json", *options, user=PROOF)
        assert exit_code == code, output
        report = json.loads(output)
        notes = [note for note in report["notes"] + report["doubts"] if read.seen in note]
        assert all(f"User:{PROOF} {read.seen}" in note and read.command(f"User:{PROOF}") in note for note in notes)
        return bool(notes)

    assert lacks_commits()
    stage.secure.grant(PROOF, describe)
    assert lacks_commits()
    assert lacks_commits("--settled", code=ExitCode.REFUSED)
    stage.secure.grant(PROOF, read)
    assert not lacks_commits()
    assert not lacks_commits("--settled")
    assert stage.secure.revoke(PROOF, read, describe) == 2
