"""Scenarios of the default reader: odd records, a failure, offsets that vanish within a lease, a lease that expires."""

from __future__ import annotations

import itertools
import time

from brew.errors import Abortable, Refused
from brew.kafka.transaction import KafkaTransaction
from brew.readers.direct.lease_server import LeaseServer
from mutants.scene import Scene

_DIRECT = ("--reader", "direct")
_LEASE_S = 1.0


def direct_payloads(scene: Scene) -> None:
    """Only the default reader: null and empty keys and values, headers that are null, empty or repeated."""
    scene.create(1)
    order = b'{"customer_id":"c-1"}'
    headers = [("trace", b"1"), ("trace", None), ("trace", b""), ("source.offset", b"7")]
    keys, values = (None, b"", b"gold-1", b"\xff"), (order, None, b"", b"\xfe")
    odd = [(0, key, value, some) for key in keys for value in values for some in (None, headers)]
    scene.stage.produce(scene.stage.names.input, *odd)
    scene.mutate()
    scene.drain(*_DIRECT)


def direct_failing_send_offsets(scene: Scene) -> None:
    """With the default reader, the first send-offsets raises, and the broker does not receive it."""
    scene.fail_once("send-offsets", Abortable("send-offsets: the coordinator went away"))
    scene.create(1, 20)
    scene.mutate()
    scene.drain(*_DIRECT)
    if not scene.stage.drained():
        scene.signs.append("not drained: the run has ended, and the group does not stand at the input's end")


def direct_vanished_behind_a_commit(scene: Scene) -> None:
    """After a lease's first commit, a second pipeline commits the rest, and then the group's offsets vanish."""
    scene.create(1, 20)
    scene.mutate()
    fences = itertools.count(1)

    def meanwhile() -> None:
        scene.drain()
        scene.forget()

    scene.once(KafkaTransaction, "fence", before=meanwhile, when=lambda *_: next(fences) == 2)
    try:
        scene.drain(*_DIRECT, "--max-records-per-transaction", "10")
    except Refused as error:
        if not str(error).startswith("offsets-vanished"):
            raise
        scene.drain("--on-missing-position", "restore")


def direct_lease_runs_out(scene: Scene) -> None:
    """A task gets no renewals and is paused past its lease; a second pipeline commits the range."""
    scene.create(1, 20)
    scene.change.set(LeaseServer, "_renew", lambda _: lambda _self: None)
    scene.mutate()

    def meanwhile() -> None:
        scene.drain()
        time.sleep(1.5 * _LEASE_S)  # real time must pass

    scene.once(KafkaTransaction, "send_offsets", before=meanwhile)
    scene.drain(*_DIRECT, "--lease", str(_LEASE_S))
