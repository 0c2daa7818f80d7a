"""The crew without Spark (`--master none`): one holder in a thread of this process."""

from __future__ import annotations

import threading

from pipeline.direct.holder import hold
from pipeline.direct.office import Office
from pipeline.direct.terms import Terms
from pipeline.profiles import held


class LoneCrew:
    """One slot; a crash on purpose of a worker kills this process."""

    def __init__(self, office: Office, terms: Terms) -> None:
        self.office = office
        self._terms = terms
        self._thread: threading.Thread | None = None
        self._dismissed = threading.Event()
        self._error: Exception | None = None

    def slots(self) -> int:
        return 1

    def open(self, count: int) -> None:
        if count and self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="slot-0", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._dismissed.is_set():
            try:
                hold(self._terms, 0)
            except Exception as error:  # noqa: BLE001 - told by `check`, in the thread that can end the run
                self._error = error
                return

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def dismiss(self) -> None:
        self._dismissed.set()

    def interrupt(self) -> None:
        self.dismiss()
        self.office.close()

    def close(self) -> None:
        self.interrupt()
        if self._thread is not None:
            self._thread.join()
        held.let_go()
