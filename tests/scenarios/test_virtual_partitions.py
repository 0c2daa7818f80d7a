"""`downstream call` against a slow service that fails: killed, started again, no call skipped, order per key kept."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.http_service import http_service
from harness.pipeline import Stage, until

from brew.deadline import Deadline
from brew.kafka.clients import consumer
from brew.kafka.offsets import committed
from brew.names import READ_COMMITTED
from brew.offsets import SourcePosition
from brew.records import ERROR_MESSAGE, ERROR_OFFSET

ORDERS, KEYS, PARTITIONS = 400, 20, 2
MOST = 60
FIXED = ("--partitions", "0,1")  # a dead member of a group would be waited for


@dataclass
class Service:
    """
    A real HTTP server: answers after ``pause_s``, 503 to every tenth request, 422 to poison; notes what it took.

    It refuses no order more than twice: one in 100,000 would be refused as often as a caller tries, and skipped.
    """

    pause_s: float = 0.003
    poison: frozenset[int] = frozenset()
    taken: list[tuple[str, int]] = field(default_factory=list)
    requests: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def answer(self, key: str, order: dict[str, Any]) -> int:
        time.sleep(self.pause_s)  # the slowness that is tested
        with self.lock:
            self.requests += 1
            if order["number"] in self.poison:
                return 422
            if self.requests % 10 == 0 and self.refused[order["number"]] < 2:
                self.refused[order["number"]] += 1
                return 503
            self.taken.append((key, order["number"]))
            return 200


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    with http_service(lambda headers, body: service.answer(headers["Idempotency-Key"], json.loads(body))) as url:
        service.url = f"{url}/orders"
        yield service


@dataclass(frozen=True)
class Calls:
    """What the service took, against what the topic holds."""

    service: Service

    def first_times(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for key, number in self.service.taken:
            numbers.setdefault(key, number)
        return numbers

    def skipped(self, wanted: set[int]) -> set[int]:
        return wanted - set(self.first_times().values())

    def disorder(self) -> list[tuple[int, int]]:
        """Pairs of orders of one key whose first calls came in the wrong order."""
        last: dict[int, int] = defaultdict(lambda: -1)
        pairs = []
        for number in self.first_times().values():
            if number < last[number % KEYS]:
                pairs.append((last[number % KEYS], number))
            last[number % KEYS] = number
        return pairs

    def taken_again(self, stored: list[dict[int, int]]) -> list[str]:
        """Places taken more often than once, and once more for each of these positions that they do not lie below."""
        calls = Counter(key for key, _ in self.service.taken)
        sources = {key: SourcePosition.parse(key) or SourcePosition("", 0, 0) for key in calls}
        allowed = {
            key: 1 + sum(source.offset >= positions[source.partition] for positions in stored)
            for key, source in sources.items()
        }
        return [key for key, times in calls.items() if times > allowed[key]]

    def repeats(self) -> int:
        return len(self.service.taken) - len(self.first_times())


def fill(stage: Stage) -> None:
    """Orders 0 to N-1; a key's orders lie in one partition, in order."""
    stage.create(1, output=PARTITIONS)
    orders = [(n % KEYS % PARTITIONS, b"k%d" % (n % KEYS), b'{"number":%d}' % n) for n in range(ORDERS)]
    stage.produce(stage.names.output, *orders)


def call(stage: Stage, service: Service, *options: str) -> list[str]:
    topic = ["--bootstrap", stage.broker.bootstrap, "--topic", stage.names.output, "--group", stage.names.group]
    quick = ["--back-off-s", "0.01", "--most-uncovered", str(MOST), "--dead-letter", stage.names.dead_letter]
    return ["downstream", "call", "--url", service.url, *topic, *quick, "--virtual-partitions", "8", "--json", *options]


def positions(stage: Stage) -> dict[int, int]:
    reader = consumer(stage.connection, stage.names.group, READ_COMMITTED)
    try:
        found = committed(reader, stage.names.output, range(PARTITIONS), Deadline(20))
    finally:
        reader.close()
    return {p: -1 if position is None else position.offset for p, position in found.items()}


@pytest.fixture
def stage(stage: Stage) -> Stage:
    fill(stage)
    return stage


ENDS = dict.fromkeys(range(PARTITIONS), ORDERS // PARTITIONS)


def test_a_killed_caller_repeats_calls_and_skips_none(stage: Stage) -> None:
    """SIGKILL twice, each behind a position of its own; all are taken, in order, none below a position again."""
    stored = [dict.fromkeys(range(PARTITIONS), 0)]
    with serving(Service(pause_s=0.1)) as service:
        calls = Calls(service)
        for _ in range(2):
            with stage.python(*call(stage, service, "--follow", *FIXED)) as program:
                until(
                    lambda: any(position > stored[-1][p] for p, position in positions(stage).items()),
                    "a position further on",
                )
                program.kill_tree()
            stored.append(positions(stage))
        with stage.python(*call(stage, service, *FIXED)) as program:
            done = program.wait(60)
        assert done.code == 0, done.text
        assert calls.skipped(set(range(ORDERS))) == set()
        assert calls.disorder() == []
        assert calls.taken_again(stored[1:]) == []
        assert calls.taken_again([ENDS, ENDS]) != [], "kills in the middle repeat something, and it is seen"
        assert service.refused, "the service did fail"
    assert positions(stage) == ENDS


def test_sigterm_stores_what_is_done(stage: Stage) -> None:
    """It ends with 0 in time, and the next run repeats nothing."""
    with serving(Service()) as service:
        with stage.python(*call(stage, service, "--follow")) as program:
            until(lambda: len(service.taken) > ORDERS // 4, "calls")
            program._process.send_signal(signal.SIGTERM)
            done = program.wait(20)
        assert (done.code, done.seconds < 20) == (0, True), done.text
        assert len(service.taken) < ORDERS
        with stage.python(*call(stage, service)) as program:
            assert program.wait(60).code == 0
        assert Calls(service).skipped(set(range(ORDERS))) == set()
        assert Calls(service).repeats() == 0
    assert positions(stage) == ENDS


def test_a_record_that_nobody_takes_becomes_a_dead_letter(stage: Stage) -> None:
    """A 422 is not tried again; the dead letter tells its place and why; all others are called."""
    with serving(Service(pause_s=0, poison=frozenset({7, 30}))) as service:
        with stage.python(*call(stage, service)) as program:
            done = program.wait(60)
        assert done.code == 0, done.text
        assert Calls(service).skipped(set(range(ORDERS))) == {7, 30}
        assert json.loads(done.out)["dead_letters"] == 2
    letters = stage.records(stage.names.dead_letter)
    assert sorted(record.value() or b"" for record in letters) == [b'{"number":30}', b'{"number":7}']
    for record in letters:
        headers = dict(record.headers() or [])
        source = SourcePosition.of(record.headers())
        assert source is not None
        assert (source.topic, b"%d" % source.offset) == (stage.names.output, headers[ERROR_OFFSET])
        assert b"failed 1 time; last error: NonRetriableError" in (headers[ERROR_MESSAGE] or b"")
    assert positions(stage) == ENDS


def test_stop_on_failure_stands_before_the_record(stage: Stage) -> None:
    """Exit 3 with its place; the position is not above it, and with the cause mended the next run takes it."""
    with serving(Service(pause_s=0, poison=frozenset({40}))) as service:
        with stage.python(*call(stage, service, "--on-failure", "stop")) as program:
            done = program.wait(60)
        assert done.code == 3
        assert "partition 0, offset 20: failed 1 time" in done.err
        assert positions(stage)[0] <= 20
        service.poison = frozenset()
        with stage.python(*call(stage, service)) as program:
            assert program.wait(60).code == 0
        assert Calls(service).skipped(set(range(ORDERS))) == set()
        assert Calls(service).disorder() == []


def test_the_looks_at_calls_see_what_is_wrong() -> None:
    """A skipped call, and two orders of one key the wrong way round."""
    service = Service(taken=[("a", 0), ("b", 40), ("c", 20), ("b", 40)])
    calls = Calls(service)
    assert calls.skipped({0, 20, 40, 60}) == {60}
    assert calls.disorder() == [(40, 20)]
    assert calls.repeats() == 1
