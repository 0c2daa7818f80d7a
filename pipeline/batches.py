"""How many records Spark hands a Python worker at a time: by what they weighed last, or by Spark's own bounds; pure."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from pipeline.outcome import GOOD, Outcome

_NAMES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
LIGHT = dict(zip(_NAMES, ("2000", str(2**31 - 1)), strict=True))
"""
So few records that their bytes need no bound, and 2^31 - 1 is Spark's word for none: to keep one, it weighs a batch
anew after each row, more than a quarter of a task's CPU time (decision 0006).
"""
LIGHT_BYTES = 4096
"""Of a record, on average: then 2,000 of them are 8 MiB."""


class Weights:
    """What a record of each partition weighed in its last range; asked and told by several lanes at once."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        """``conf``: Spark settings of the caller's own; who bounds batches there is not overruled."""
        self._asked_for = any(name in conf for name in _NAMES)
        self._bytes: dict[int, float] = {}
        self._lock = threading.Lock()

    def light(self, partitions: Iterable[int]) -> bool:
        """Whether all of these were read before, and had small records when they were."""
        with self._lock:
            return not self._asked_for and all(self._bytes.get(one, LIGHT_BYTES) < LIGHT_BYTES for one in partitions)

    def heed(self, outcomes: Iterable[Outcome]) -> None:
        """After an attempt that failed nothing is known: it may have been the memory."""
        with self._lock:
            for one in outcomes:
                records = one.enriched + one.rejected
                if one.status not in GOOD:
                    self._bytes.pop(one.partition, None)
                elif records:
                    self._bytes[one.partition] = one.read_bytes / records
