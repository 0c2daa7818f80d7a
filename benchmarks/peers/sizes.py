"""Sizes and back-offs of the peers in Python: as those of the other contenders, but for clients that stay."""

from __future__ import annotations

_BACK_OFF = {"retry.backoff.ms": 2, "retry.backoff.max.ms": 20}

PRODUCER: dict[str, object] = {
    "transaction.timeout.ms": 60_000,
    "linger.ms": 5,
    "batch.size": 512 * 1024,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "compression.type": "none",
    **_BACK_OFF,
}

# Read ahead while Python works; `fetch.queue.backoff.ms` keeps a full queue from idling for a second.
CONSUMER: dict[str, object] = {
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 64 * 1024,
    **_BACK_OFF,
}
