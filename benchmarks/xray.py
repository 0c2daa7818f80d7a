"""Measure the X-ray of a long log: batch headers, generated in memory, are parsed, folded and drawn."""

from __future__ import annotations

import argparse
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from environment import save

from brew.kafka.kafka_python import DefaultRecordBatch, parse_batches
from brew.offsets import LogOffsets
from operations.xray import render, timeline
from operations.xray.model import RunBuilder, Strip
from operations.xray.timeline import Xray

_HEADER = DefaultRecordBatch.HEADER_STRUCT
_TRANSACTIONAL, _CONTROL, _T0 = 0x10, 0x20, 1_780_000_000_000


def header(base: int, records: int, epoch: int, attributes: int, time_ms: int, body: bytes = b"") -> bytes:
    """Return a batch of format 2 whose records are never read."""
    length = _HEADER.size - 12 + len(body)
    writer = (7, epoch, 0)
    fixed: bytes = _HEADER.pack(base, length, 0, 2, 0, attributes, records - 1, time_ms, time_ms, *writer, records)
    return fixed + body


def marker(base: int, epoch: int, *, commit: bool, time_ms: int) -> bytes:
    """Return a control batch, whose key holds version 0 and whether it commits."""
    record = b"\x00\x00\x00\x08" + struct.pack(">hh", 0, commit) + b"\x0c" + bytes(6) + b"\x00"
    return header(base, 1, epoch, _TRANSACTIONAL | _CONTROL, time_ms, bytes([len(record) << 1]) + record)


def log(offsets: int, per_batch: int, batches: int) -> Iterator[bytes]:
    """Yield transactions of ``batches`` batches, one in ten aborted by a fence, in 16 MB pieces like fetches."""
    base, epoch, time_ms, part = 0, 0, _T0, bytearray()
    while base < offsets:
        for _ in range(batches):
            part += header(base, per_batch, epoch, _TRANSACTIONAL, time_ms)
            base += per_batch
            time_ms += 1
        part += marker(base, epoch, commit=epoch % 10 > 0, time_ms=time_ms)
        base, epoch = base + 1, (epoch + 1) % 30_000
        if len(part) > 1 << 24:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--offsets", type=int, default=10_000_000, help="minimum length of the log (default: 10000000)")
    asked.add_argument("--per-batch", type=int, default=100, help="number of records per batch (default: 100)")
    asked.add_argument("--batches", type=int, default=10, help="number of batches per transaction (default: 10)")
    asked.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to, as JSON")
    given = asked.parse_args()
    parts = list(log(given.offsets, given.per_batch, given.batches))
    end = given.offsets * 2
    began = time.perf_counter()
    fold, count = RunBuilder(0, end, given.offsets // render.MOST_COLUMNS), 0
    for part in parts:
        for batch in parse_batches(part):
            fold.add(batch)
            count += 1
    runs = fold.finish()
    end = runs[-1].end
    strip = Strip("output", 0, LogOffsets(0, end, end), 0, end, runs)
    folded = time.perf_counter()
    timeline.assign_write_times(runs, _T0 + 10_000_000)
    line = timeline.timeline([strip], {}, [], "input", _T0 + 10_000_000)
    timed = time.perf_counter()
    xray = Xray((strip,), line, {"output": "output"}, "group", "memory", _T0)
    sizes = len(render.page(xray)), len(render.svg_document(xray))
    drawn = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if given.json:
        about = {"per_batch": given.per_batch, "batches_of_a_transaction": given.batches, "runs": len(runs)}
        times = {"fold_s": folded - began, "times_s": timed - folded, "draw_s": drawn - timed}
        drawing = {"page_bytes": sizes[0], "picture_bytes": sizes[1], "most_mib": round(memory)}
        save(given.json, {"offsets": end, **about, **{n: round(took, 2) for n, took in times.items()}, **drawing})
    print(
        f"{end:,} offsets, {count:,} batches, {len(runs):,} runs: folded in {folded - began:.2f} s, times in "
        f"{timed - folded:.2f} s, page and picture in {drawn - timed:.2f} s; page {sizes[0] / 1000:,.0f} kB, "
        f"picture {sizes[1] / 1000:,.0f} kB, {memory:,.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
