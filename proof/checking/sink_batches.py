"""
Check that a `read_committed` reader only ever sees complete batches of a sink; pure, chunk by chunk.

A chunk is what became visible in one partition between two reads of its last stable offset. Brokers write commit
markers to each partition separately, so atomicity is checked within a partition, the only place where it always holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NO_BATCH = -1
"""The batch of rows without the sink's headers, such as those of Spark's own sink; only their rows are compared."""


class SeenRow(NamedTuple):
    """The total of ``key`` after ``batch``; rows that are written once have a key each, and a total of 1."""

    batch: int
    key: bytes
    total: int


@dataclass
class BatchHistory:
    """All rows that became visible, and the batches that became visible in parts."""

    torn: list[str] = field(default_factory=list)
    rows: Counter[SeenRow] = field(default_factory=Counter)
    _last: dict[int, int] = field(default_factory=dict)

    def observe(self, partition: int, rows: Iterable[SeenRow]) -> None:
        """Add one chunk; a batch that an earlier chunk of the partition already contained is torn."""
        before = self._last.get(partition, NO_BATCH)
        for row in rows:
            self.rows[row] += 1
            if row.batch == NO_BATCH:
                continue
            if row.batch <= before:
                self.torn.append(f"batch {row.batch} in partition {partition} behind batch {before} of an earlier look")
            self._last[partition] = max(row.batch, self._last.get(partition, NO_BATCH))

    def findings(self, counts: Mapping[bytes, int], *, no_batch_empty: bool = True) -> list[dict[str, str]]:
        """Return all violations; ``counts``: inputs by key; ``no_batch_empty``: each batch of the query has rows."""
        found = [{"name": "torn-batch", "evidence": text} for text in self.torn]
        times, batches, last = Counter[tuple[bytes, int]](), set[int](), dict[bytes, int]()
        for row, count in sorted(self.rows.items()):
            times[row.key, row.total] += count
            batches.add(row.batch)
            if row.total < last.get(row.key, 0):
                text = f"{row.key!r} fell from {last[row.key]} to {row.total} in batch {row.batch}"
                found.append({"name": "state-drift", "evidence": text})
            last[row.key] = max(row.total, last.get(row.key, 0))
        found += [
            {"name": "duplicate-output", "evidence": f"{key!r} with total {total} is there {count} times"}
            for (key, total), count in times.items()
            if count > 1
        ]
        missing = set(range(max(batches, default=NO_BATCH) + 1)) - batches if no_batch_empty else set()
        found += [{"name": "lost-output", "evidence": f"batch {batch} has no visible row"} for batch in sorted(missing)]
        found += [
            {"name": "lost-output", "evidence": f"{key!r} stands at {last.get(key, 0)} of {counts[key]}"}
            for key in sorted(counts)
            if last.get(key, 0) < counts[key]
        ]
        return found + [
            {"name": "state-drift", "evidence": f"{key!r} stands at {last[key]} of {counts.get(key, 0)}"}
            for key in sorted(last)
            if last[key] > counts.get(key, 0)
        ]
