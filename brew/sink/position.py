"""
Decide whether a batch must be written, from the checkpoint's and Kafka's state; pure.

The sink's position is the committed offset of the group named after the sink: the id of the next batch. Its metadata
says which query wrote it and from which source offsets, so that a foreign checkpoint is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from brew.errors import Refused
from brew.offsets import Committed


class PositionBehind(Refused):
    """
    Kafka's position is behind the checkpoint: it was moved back, or the answer is stale.

    A coordinator cut off from the other brokers returns stale offsets (docs/decisions/0012), so it is asked again.
    """


BY_HAND = '{"by":"start_at"}'
"""The metadata of a position that `start_at` set. Consumers and kafka-consumer-groups commit empty metadata."""
_FINGERPRINT = 16
_NOT_CALLED = (
    "the sink was not called for each batch (call it for empty ones, too), or foreachBatch caught its error, so that "
    "the rows of that batch are missing"
)
_START_OVER = "to start over on purpose, use a new name and a new checkpoint"


def fingerprint(source_offsets: str) -> str:
    """Return a short hash of a batch's source offsets, as they are in the checkpoint's offset log."""
    return hashlib.sha256(source_offsets.encode()).hexdigest()[:_FINGERPRINT]


@dataclass(frozen=True, slots=True)
class PositionMetadata:
    """The position's metadata: who wrote the last batch (``query``: None for a batch job), and from which offsets."""

    query: str | None
    offsets: str
    topic_id: str

    def __str__(self) -> str:
        return json.dumps({"query": self.query, "offsets": self.offsets, "topic": self.topic_id}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> PositionMetadata | None:
        """
        Parse the metadata; None for a position that `start_at` set.

        Raises:
            ValueError: another program wrote it.
        """
        try:
            # librdkafka may append stray bytes to the metadata that it returns (its issue 4649).
            found, _ = json.JSONDecoder().raw_decode(text)
            if found == json.loads(BY_HAND):
                return None
            query, offsets, topic_id = found["query"], found["offsets"], found["topic"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not the metadata of a sink: {text!r}") from error
        return cls(None if query is None else str(query), str(offsets), str(topic_id))


@dataclass(frozen=True, slots=True)
class Batch:
    """
    One batch, as the checkpoint describes it.

    ``metadata`` is committed with it. ``previous``: the fingerprint of the batch before, None if the checkpoint has
    none. A batch job has neither a checkpoint nor source offsets.
    """

    sink: str
    topic: str
    batch_id: int
    metadata: PositionMetadata
    previous: str | None = None

    @property
    def place(self) -> str:
        return f"group {self.sink!r}, topic {self.topic!r}, partition 0"

    @property
    def ours(self) -> str:
        """Our own position, for messages."""
        if self.metadata.query is None:
            return f"write() was called with batch {self.batch_id}"
        return f"the checkpoint of query {self.metadata.query} is at batch {self.batch_id}"


def is_new(
    batch: Batch,
    committed: Committed | None,
    evidence: Callable[[], int | None],
    locate: Callable[[], Committed | None],
) -> bool:
    """
    Return True if the batch must be written, False if it is already written.

    ``evidence``: returns this sink's highest batch among the last records of its topic, by their headers, or None.
    ``locate``: asks for the position again, since another query may commit between the two looks.

    Raises:
        Refused: checkpoint and Kafka do not belong together.
    """
    if committed is None:
        highest = evidence()
        committed = None if highest is None else locate()
        if committed is None:
            _check_first(batch, highest)
            return True
    metadata = _metadata_of(batch, committed)
    if metadata is not None:
        _check_owner(batch, committed, metadata)
    if batch.metadata.query is None:
        return _is_new_job(batch, committed)
    stands = committed.offset
    if stands == batch.batch_id:
        if metadata is not None and batch.previous is not None and batch.previous != metadata.offsets:
            raise Refused(_rolled_back(batch, committed, batch.batch_id - 1))
        return True
    if stands == batch.batch_id + 1:
        if metadata is not None and metadata.offsets != batch.metadata.offsets:
            raise Refused(_rolled_back(batch, committed, batch.batch_id))
        return False
    ahead = stands > batch.batch_id
    behind = f"the position was moved back, or {_NOT_CALLED}"
    relation = "an older copy of the checkpoint was restored" if ahead else behind
    raise (Refused if ahead else PositionBehind)(
        f"sink {batch.sink!r}: {batch.ours}, Kafka's position is batch {stands} ({batch.place}): {relation}; "
        f"restore the checkpoint that belongs to batch {stands}, or call start_at({batch.batch_id}) on the sink if you "
        f"know that the batches below {batch.batch_id} are out and none above; {_START_OVER}"
    )


def _check_first(batch: Batch, evidence: int | None) -> None:
    """Check that having no position is right: this is the first batch of a sink that has written nothing."""
    at = batch.batch_id
    ways = f"if batch {at} is the next one to write, call start_at({at}) on the sink; {_START_OVER}"
    if evidence is not None:
        raise Refused(
            f"sink {batch.sink!r}: {batch.ours}, Kafka has no position of it ({batch.place}), but the topic holds its "
            f"records up to batch {evidence}: the position expired (offsets.retention.minutes, 7 days by default) or "
            f"was deleted; {ways}"
        )
    if batch.metadata.query is not None and batch.batch_id > 0:
        raise Refused(
            f"sink {batch.sink!r}: {batch.ours}, Kafka has no position of it ({batch.place}) and no record of it: the "
            f"sink was renamed, its topic was deleted and created again, the checkpoint was used with another sink, or "
            f"{_NOT_CALLED}; give the sink its former name, or {ways}"
        )


def _metadata_of(batch: Batch, committed: Committed) -> PositionMetadata | None:
    try:
        return PositionMetadata.parse(committed.metadata)
    except ValueError as error:
        raise Refused(
            f"sink {batch.sink!r}: the offset {committed.offset} in {batch.place} was committed by another program "
            f"({error}), such as a consumer of that group; a sink needs a group of its own: give the other program "
            f"another one, then call start_at({batch.batch_id}) on the sink if the batches below it are out "
            "and none above; or give the sink another name"
        ) from error


def _check_owner(batch: Batch, committed: Committed, metadata: PositionMetadata) -> None:
    if metadata.topic_id != batch.metadata.topic_id:
        raise Refused(
            f"sink {batch.sink!r}: {batch.ours}, Kafka's position (batch {committed.offset}, {batch.place}) belongs "
            f"to the topic with id {metadata.topic_id}, and the topic has id {batch.metadata.topic_id} now: it was "
            f"created again, so earlier batches are gone; call start_at({batch.batch_id}) on the sink to go on without "
            f"them; {_START_OVER}"
        )
    if metadata.query == batch.metadata.query:
        return
    theirs = "write()" if metadata.query is None else f"query {metadata.query}"
    raise Refused(
        f"sink {batch.sink!r}: {batch.ours}, Kafka's position (batch {committed.offset}, {batch.place}) was written by "
        f"{theirs}: two queries have one name, or the checkpoint was deleted; give each query a name of its own, or "
        f"restore the checkpoint; {_START_OVER}"
    )


def _is_new_job(batch: Batch, committed: Committed) -> bool:
    if committed.offset > batch.batch_id + 1:
        raise Refused(
            f"sink {batch.sink!r}: {batch.ours}, Kafka's position is batch {committed.offset} ({batch.place}): ids "
            f"have to grow, and whether {batch.batch_id} was written can't be told any more; use an id from "
            f"{committed.offset} on, or a sink of another name"
        )
    return committed.offset <= batch.batch_id


def _rolled_back(batch: Batch, committed: Committed, covered: int) -> str:
    return (
        f"sink {batch.sink!r}: {batch.ours}, Kafka's position is batch {committed.offset} ({batch.place}), but batch "
        f"{covered} that is out covered other source offsets than the checkpoint says: the checkpoint was rolled back "
        f"and ran on; restore the checkpoint that belongs to the position; {_START_OVER}"
    )
