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


def main(told: str) -> None:
    """Drain the input with the stateful query, or die at the given point."""
    said = json.loads(told)
    stage = SinkStage(Stage(Broker(said["bootstrap"]), Names(said["stem"])), Path(said["folder"]), said["writers"])
    crash = SinkCrash(CrashPoint(said["point"]), said["batch"])
    stage.run(stage.counted(most=said["most"]), stage.sink(_crash=crash), "update")
    print("ended", flush=True)
