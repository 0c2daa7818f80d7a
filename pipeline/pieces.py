"""Cut a batch of rows into pieces that the client sends in one request each; pure."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.ports import Rows

# The client's batch holds 1,000,000 bytes on the wire, where a record grows by two fields, three headers and framing.
_BYTES, _GROWTH, _ROWS = 640 * 1024, 160, 2500


def pieces(rows: Rows) -> Iterator[Rows]:
    """
    As much at a time as one request takes, by the mean size of a value.

    Whoever queues a piece waits for its acknowledgement: while a batch is ready and the one before it is on its way,
    librdkafka's thread polls without pause (docs/decisions/0009), and a few such threads leave brokers on the same
    machine no processor to answer with.
    """
    count = len(rows.offsets)
    if not count:
        return
    most = piece_of(sum(map(len, filter(None, rows.values))) / count)
    if count <= most:
        yield rows
        return
    for start in range(0, count, most):
        yield rows.part(start, start + most)


def piece_of(mean_bytes: float) -> int:
    """How many records of that mean size a piece has."""
    return max(1, min(_ROWS, int(_BYTES / (mean_bytes + _GROWTH))))
