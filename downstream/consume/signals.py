"""How consuming programs end on SIGTERM and SIGINT."""

from __future__ import annotations

import os
import signal
import threading

_GRACE_S = 9.0


def stop_on_signals(stop: threading.Event) -> None:
    """
    SIGTERM and SIGINT end the loop after the batch that runs; a second one, or 9 s, end the process as it is.

    Ending at once is safe for every handler: what is not committed is read again.
    """

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        timer = threading.Timer(_GRACE_S, os._exit, [128 + number])
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
