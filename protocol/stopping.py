"""How a program that works on until it is told to stop takes SIGTERM and SIGINT."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time


def stop_on_signals(stop: threading.Event, grace_s: float | None = None) -> None:
    """
    SIGTERM and SIGINT set ``stop``: the program ends what it does. A second one ends the process as it is.

    ``grace_s``: so does a first one, after that many seconds, where what is not committed may be left at any point.

    The event is set in a thread of its own: a handler runs between two lines of the main thread, which may hold
    the event's lock just then (it looks at it all the time), and would wait for itself for ever. The thread is a
    bare one, since `threading` takes a lock to start its own.
    """
    asked = False

    def obey(number: int) -> None:
        stop.set()
        if grace_s is not None:
            time.sleep(grace_s)
            os._exit(128 + number)

    def handle(number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        _thread.start_new_thread(obey, (number,))

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
