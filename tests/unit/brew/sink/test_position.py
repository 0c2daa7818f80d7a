"""What a batch may do, from the checkpoint's side and Kafka's: written, out already, or refused with both named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.offsets import committed
from brew.offsets import Committed
from brew.sink.position import BY_HAND, Batch, PositionBehind, PositionMetadata, fingerprint, is_new

QUERY, OTHER = "06bb0441-3498-4f6f-9b79-0f2cdb9bce3a", "73cff32c-a5e0-4566-9e0d-caac10aadf12"
TOPIC_ID = "vJ3bWcVYQbeYtDcy9mXq1A"
OFFSETS = ['[{"in":{"0":10}}]', '[{"in":{"0":20}}]', '[{"in":{"0":30}}]']


def metadata(batch: int, query: str | None = QUERY, topic_id: str = TOPIC_ID) -> PositionMetadata:
    return PositionMetadata(query, fingerprint(OFFSETS[batch]), topic_id)


def batch(number: int, query: str | None = QUERY, topic_id: str = TOPIC_ID) -> Batch:
    previous = fingerprint(OFFSETS[number - 1]) if number else None
    return Batch("revenue", "out", number, metadata(number, query, topic_id), previous)


def position(next_batch: int, query: str | None = QUERY, topic_id: str = TOPIC_ID) -> Committed:
    """As the batch before ``next_batch`` committed it."""
    return Committed(next_batch, str(metadata(next_batch - 1, query, topic_id)))


def no_evidence() -> int | None:
    return None


def never_again() -> Committed | None:
    raise AssertionError


def refuses(
    batch: Batch,
    committed: Committed | None,
    *phrases: str,
    evidence: Callable[[], int | None] = no_evidence,
    again: Committed | None = None,
) -> Refused:
    """The batch is refused, in a sentence that holds these phrases."""
    with pytest.raises(Refused) as refused:
        is_new(batch, committed, evidence, lambda: again)
    assert [phrase for phrase in phrases if phrase not in str(refused.value)] == []
    return refused.value


def test_the_next_batch_is_written_and_the_one_before_is_out_already() -> None:
    """Evidence is looked for only where there is no position; a checkpoint may have dropped the batch before."""
    never = Mock(side_effect=AssertionError)
    assert is_new(batch(0), None, no_evidence, never_again)
    assert is_new(batch(1), position(1), never, never_again)
    assert not is_new(batch(0), position(1), never, never_again)
    assert is_new(Batch("revenue", "out", 1, metadata(1), None), position(1), no_evidence, never_again)


def test_an_expired_position_is_refused_with_the_last_batch_that_the_topic_shows() -> None:
    for number in (0, 2):
        phrases = f"is at batch {number}", f"start_at({number})", "use a new name and a new checkpoint"
        refuses(batch(number), None, "up to batch 17: the position expired", *phrases, evidence=lambda: 17)


def test_a_position_that_another_query_commits_between_two_looks_has_not_expired() -> None:
    """The loser of two queries of one name was told so, and to call `start_at`, which moves the other's position."""
    refusal = refuses(batch(0), None, "two queries have one name", evidence=lambda: 0, again=position(1, OTHER))
    assert "expired" not in str(refusal)
    assert is_new(batch(1), None, lambda: 0, lambda: position(1)), "an answer of a coordinator that knew nothing yet"
    assert not is_new(batch(0), None, lambda: 0, lambda: position(1))


def test_an_old_checkpoint_under_a_sink_that_kafka_does_not_know_is_refused() -> None:
    """Renamed, or its topic was made again: brokers drop the offsets of a topic with it."""
    refuses(batch(1), None, "is at batch 1,")
    place = "is at batch 2, Kafka has no position of it (group 'revenue', topic 'out', partition 0)"
    refuses(batch(2), None, place, "the sink was renamed, its topic was deleted and created again")


def test_a_batch_whose_error_foreach_batch_caught_is_refused_as_missing() -> None:
    """`start_at`, the way out that the text names, leaves its rows out."""
    for number, committed_position in ((1, None), (2, position(1))):
        why = "or foreachBatch caught its error, so that the rows of that batch are missing"
        refuses(batch(number), committed_position, why)


def test_a_deleted_checkpoint_is_refused_and_so_are_two_queries_of_one_name() -> None:
    """Both show as another query's id; the numbers of their batches may even match."""
    for number in (0, 1, 2):
        place = f"the checkpoint of query {OTHER} is at batch {number}"
        why = "two queries have one name, or the checkpoint was deleted"
        refuses(batch(number, query=OTHER), position(2), place, f"was written by query {QUERY}", why)
    refuses(batch(1, topic_id="new"), position(1), f"the topic with id {TOPIC_ID}, and the topic has id new now")


def test_a_checkpoint_restored_from_an_old_copy_or_a_position_that_was_moved_back_is_refused() -> None:
    why = "an older copy of the checkpoint was restored; restore the checkpoint that belongs to batch 3"
    older = refuses(batch(0), position(3), "is at batch 0, Kafka's position is batch 3", why)
    assert not isinstance(older, PositionBehind), "asking again would not help"
    why = "the position was moved back, or the sink was not called for each batch"
    behind = refuses(batch(2), position(1), "Kafka's position is batch 1", why)
    assert isinstance(behind, PositionBehind), "a coordinator may tell an old one, so it is asked again"


def test_a_batch_that_is_out_but_covered_other_offsets_is_refused() -> None:
    """The checkpoint was rolled back and planned anew: rows would be lost, or written twice behind it."""
    other = fingerprint('[{"in":{"0":11}}]')
    again = Batch("revenue", "out", 0, PositionMetadata(QUERY, other, TOPIC_ID))
    refuses(again, position(1), "batch 0 that is out covered other source offsets than the checkpoint says")
    rolled = Batch("revenue", "out", 1, metadata(1), other)
    refuses(rolled, position(1), "batch 0 that is out covered other source offsets")


def test_a_position_set_by_hand_is_believed() -> None:
    assert is_new(batch(2), Committed(2, BY_HAND), no_evidence, never_again)
    assert not is_new(batch(1), Committed(2, BY_HAND), no_evidence, never_again)
    refuses(batch(0), Committed(2, BY_HAND), "Kafka's position is batch 2")


@pytest.mark.parametrize("metadata", ["", "x", "{}", "[]", '{"query":"a"}', "null", "7"])
def test_an_offset_of_another_program_is_refused(metadata: str) -> None:
    why = f"was committed by another program (not the metadata of a sink: {metadata!r})"
    refuses(batch(2), Committed(2, metadata), why)


def test_batch_jobs_write_growing_ids_once() -> None:
    job = Batch("revenue", "out", 20261123, PositionMetadata(None, "", TOPIC_ID))
    done = Committed(20261124, str(job.metadata))
    assert is_new(job, None, no_evidence, never_again)
    assert not is_new(job, done, no_evidence, never_again)
    for before in (20260101, 20261123):
        assert is_new(job, Committed(before, str(job.metadata)), no_evidence, never_again)
    why = "write() was called with batch 20261122, Kafka's position is batch 20261124"
    refuses(Batch("revenue", "out", 20261122, job.metadata), done, why)


def test_a_batch_job_under_the_name_of_a_query_is_refused_and_the_other_way_round() -> None:
    job = Batch("revenue", "out", 1, PositionMetadata(None, "", TOPIC_ID))
    refuses(job, position(1), f"was written by query {QUERY}")
    refuses(batch(1), Committed(1, str(job.metadata)), "was written by write()")


@given(st.none() | st.text(), st.text(), st.text())
def test_metadata_is_read_back_as_it_was_written(query: str | None, offsets: str, topic_id: str) -> None:
    written = PositionMetadata(query, offsets, topic_id)
    assert PositionMetadata.parse(str(written)) == written


def test_stray_bytes_behind_the_metadata_are_not_another_programs() -> None:
    """
    Librdkafka's issue 4649; seen in an integration test: a sink refused its own position.

    With bytes that are no text, a sink took its position for one that was set by hand.
    """
    metadata = PositionMetadata("q", "0123", "id")
    assert PositionMetadata.parse(f"{metadata}alitP") == metadata

    class Answer:
        error, offset, partition = None, 3, 0

        @property
        def metadata(self) -> str:
            return (str(metadata).encode() + b"\x07\xfe\xff").decode()

    reader: Any = SimpleNamespace(committed=lambda _partitions, timeout: [Answer()])  # noqa: ARG005 - as a consumer has it
    (position,) = committed(reader, "out", [0], Deadline(5)).values()
    assert position is not None
    assert (position.offset, PositionMetadata.parse(position.metadata)) == (3, metadata)


def test_metadata_and_fingerprints_are_those_of_positions_that_were_committed_already() -> None:
    """Another form would refuse every sink that is upgraded."""
    written = '{"query":"q","offsets":"33e6d73fee82904c","topic":"id"}'
    assert str(PositionMetadata("q", fingerprint("ä"), "id")) == written
