"""How a process comes to hold the table of profiles, and the settings of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from brew import attempt as attempting
from brew.attempt import AttemptSpec, Job
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, UsageError
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.orders import profile
from brew.outcome import Status
from brew.range_transaction import Targets
from brew.settings import Limits, PipelineSettings, ProfilesSettings
from pipeline import profiles
from pipeline.enrichment import OrderEnrichment
from pipeline.profiles import GlobalTable, Table, lookup
from pipeline.submit import same_options


class Record:
    def __init__(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.partition, self.offset = (lambda: 0), (lambda: offset)
        self.key, self.value = (lambda: key), (lambda: value)


class Source:
    """A topic of one partition in memory; ``slow`` never gets to its end."""

    def __init__(self, log: list[tuple[bytes, bytes | None]], *, slow: bool = False) -> None:
        self.topic, self.log, self.slow = "profiles", log, slow
        self.positions = {0: 0}
        self.asked, self.closed = 0, False
        self.reading = threading.Event()

    def ends(self, _deadline: Deadline) -> dict[int, int]:
        self.asked += 1
        return {0: len(self.log)}

    def read(self, until: Mapping[int, int], deadline: Deadline, stop: threading.Event) -> Iterator[list[Record]]:
        self.reading.set()
        while self.slow:
            if stop.wait(0.01):
                raise DeadlineExceeded("left because the run stops")
            deadline.check("read")
        while self.positions[0] < until[0]:
            at = self.positions[0]
            self.positions[0] = at + 1
            yield [Record(at, *self.log[at])]

    def close(self) -> None:
        self.closed = True


def holding(source: Source, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> GlobalTable:
    monkeypatch.setattr(profiles, "FullTopicReader", lambda *_: source)
    return GlobalTable(Connection("b:1"), "g", ProfilesSettings(load_timeout_s=timeout_s))


def answer(made: Table) -> tuple[str, bytes | None]:
    """The tier of customer c-1, and the place of the profile that says so."""
    resolve, evidence = lookup(made)
    return resolve(None, {"customer_id": "c-1"}), evidence()[1]


def test_each_call_has_read_what_was_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [(b"c-1", profile("c-1", "gold"))]
    ours = holding(Source(log), monkeypatch)
    assert answer(ours.ready(5)) == ("gold", b"0/0")
    log.append((b"c-1", profile("c-1", "silver")))
    assert answer(ours.ready(5)) == ("silver", b"0/1")


def test_a_load_that_takes_too_long_goes_on_where_it_stood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The deadline is the setting's, and the next attempt need not begin anew."""
    source = Source([(b"c-1", profile("c-1", "gold"))], slow=True)
    ours = holding(source, monkeypatch, 1.0)
    with pytest.raises(DeadlineExceeded, match="1 s"):
        ours.ready(60)
    source.slow = False
    assert len(ours.ready(60).entries) == 1
    assert not source.closed
    assert "1 customer of profiles held" in capsys.readouterr().err


def test_a_load_is_given_up_when_the_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM has ten seconds, a load may take minutes."""
    source = Source([], slow=True)
    ours = holding(source, monkeypatch, 60)
    found: list[str] = []

    def load() -> None:
        try:
            ours.ready(60)
        except DeadlineExceeded as error:
            found.append(str(error))

    thread = threading.Thread(target=load)
    thread.start()
    assert source.reading.wait(5)
    began = time.monotonic()
    ours.close()
    thread.join(5)
    assert found == ["left because the run stops"]
    assert time.monotonic() - began < 2
    assert source.closed


def test_a_topic_that_ends_before_what_was_read_is_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made again, and what is held may be of the old one."""
    log = [(b"c-1", profile("c-1", "gold")), (b"c-2", profile("c-2", "gold"))]
    source = Source(log)
    ours = holding(source, monkeypatch)
    ours.ready(5)
    log[:] = [(b"c-3", profile("c-3", "gold"))]
    with pytest.raises(Fatal, match="made again"):
        ours.ready(5)
    assert source.closed
    source.positions = {0: 0}
    assert list(ours.ready(5).entries) == ["c-3"]


def test_threads_that_wait_together_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions of a process share one table."""
    source = Source([(b"c-1", profile("c-1", "gold"))])
    ours = holding(source, monkeypatch)
    tables = []
    threads = [threading.Thread(target=lambda: tables.append(ours.ready(5))) for _ in range(8)]
    with ours._lock:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(5)
    assert len({id(one) for one in tables}) == 1
    assert source.asked < 8


@pytest.mark.parametrize("error", [DeadlineExceeded("read: no end within 1 s"), ValueError("a bug")])
def test_without_the_table_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The range is given back, and the other ranges go on; no producer was made, so nothing was fenced."""

    def not_ready(*_: object) -> Table:
        raise error

    monkeypatch.setattr(profiles, "ready", not_ready)
    monkeypatch.setattr(attempting, "KafkaTransaction", lambda *_: pytest.fail("a transaction was begun"))
    connection = Connection("b:1")
    offer = AttemptSpec(OffsetRange("in", 2, 0, 3), Targets("out", "dead", 2, 2))
    job = Job({2: offer}, TransactionSettings(connection, "g", 5), OrderEnrichment(Limits(), ProfilesSettings()))
    outcome = attempting.attempt(offer, iter(()), job)
    assert (outcome.status, outcome.partition, outcome.until) == (Status.FAILED, 2, 3)
    assert str(error) in outcome.detail


def settings(**more: Any) -> PipelineSettings:
    return PipelineSettings(Connection("b:1"), "in", "out", "dead", "g", **more)


@pytest.mark.parametrize(
    ("topic", "timeout_s", "says"),
    [("no topic", 9, "PROFILES_TOPIC"), ("out", 9, "a topic of their own"), ("profiles", 0, "--profiles-timeout is 0")],
)
def test_settings_of_profiles_that_can_not_be_are_refused(topic: str, timeout_s: float, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        settings(profiles=ProfilesSettings(topic, timeout_s))


def test_a_submitted_run_takes_its_tiers_from_the_same_place() -> None:
    words = same_options(settings(profiles=ProfilesSettings("my.profiles", 30)))
    said = dict(zip(words[::2], words[1::2], strict=False))
    assert (said["--tiers"], said["--profiles-topic"], said["--profiles-timeout"]) == ("profiles", "my.profiles", "30")
    assert "--tiers" not in same_options(settings())
