"""A query through the sink as a separate program, to be killed: `main` with its arguments as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from brew.names import CrashPoint
from brew.sink.batch import SinkCrash

from .brokers import Broker
from .names import Names
from .pipeline import Stage
from .sinks import SinkStage


def main(arguments: str) -> None:
    """Drain the input with the stateful query, or die at the given point."""
    given = json.loads(arguments)
    stage = SinkStage(Stage(Broker(given["bootstrap"]), Names(given["stem"])), Path(given["folder"]), given["writers"])
    crash = SinkCrash(CrashPoint(given["point"]), given["batch"])
    stage.run(stage.counted(most=given["most"]), stage.sink(_crash=crash), "update")
    print("ended", flush=True)
