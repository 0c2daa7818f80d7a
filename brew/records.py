"""Headers of dead letters, and of records that were replayed from them."""

from __future__ import annotations

# The names follow Kafka's own dead-letter headers (KIP-1034); `reason` is ours.
ERROR_REASON = "__streams.errors.reason"
ERROR_EXCEPTION = "__streams.errors.exception"
ERROR_MESSAGE = "__streams.errors.message"
ERROR_TOPIC = "__streams.errors.topic"
ERROR_PARTITION = "__streams.errors.partition"
ERROR_OFFSET = "__streams.errors.offset"
ERROR_OMITTED = "__streams.errors.omitted-bytes"
ERROR_OMITTED_HEADERS = "__streams.errors.omitted-headers"

# Headers of a record that was replayed from the dead-letter topic.
REPLAYED_FROM = "replayed.from"
REPLAYED_COUNT = "replayed.count"
REPLAYED_TIMESTAMP = "replayed.timestamp"
REPLAY_GROUP = ".dlq-replay"
"""Suffix of the pipeline's group: the group whose offsets and transactional ids replays use."""
MARKS_TOPIC = ".replayed"
"""Suffix of the dead-letter topic's name: the compacted topic that records which dead letters were replayed."""
