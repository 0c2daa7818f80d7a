"""A thread of its own for the length of a block."""

from __future__ import annotations

import threading
from typing import Self


class ScopedThread:
    """`work` runs beside the block until it sees ``_stop``; once it has ended, `after` follows."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.work, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def after(self) -> None:
        """What is left to do, in the caller's thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Also before the block's end."""
        self._stop.set()
        self._thread.join()
        self.after()
