"""Which topics the brokers don't let a transaction write to: the client's error does not say, its log does."""

from __future__ import annotations

import logging
import re

# rdkafka_txnmgr.c, as the brokers answered AddPartitionsToTxn; the partitions beside it were `not attempted`.
_REFUSED = re.compile(r'Failed to add partition "([\w.-]+)" \[\d+\] to transaction: .*[Tt]opic authorization failed')


class Refusals:
    """The topics of one transaction; `logger` is for its producer, who tells them once it is polled."""

    def __init__(self) -> None:
        self._topics: set[str] = set()

    def logger(self, above: logging.Logger) -> logging.Logger:
        """A logger that notes what it is told, and hands it to ``above``."""
        topics = self._topics  # no cycle through `self`: one of these is made for each transaction

        def note(record: logging.LogRecord) -> bool:
            found = _REFUSED.search(record.getMessage())
            if found is not None:
                topics.add(found[1])
            return True

        made = logging.Logger(above.name)  # noqa: LOG001 - one of the registry's would stay there for good
        made.parent = above
        made.addFilter(note)
        return made

    def step(self, step: str) -> str:
        """``step`` with the topics that were refused, as in `commit (no Write on topic a, b)`."""
        return f"{step} (no Write on topic {', '.join(sorted(self._topics))})" if self._topics else step
