"""What a program is at as a whole; apart, so that a program that nobody watches imports nothing of the watching."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """What a program is at as a whole."""

    STARTING = "starting"
    STANDING_BY = "standing-by"
    WORKING = "working"
    STOPPING = "stopping"
    STOPPED = "stopped"
