"""Probes over HTTP: codes, bodies, metrics, a port that is taken; and what programs leave for the live view."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from harness.recorded import stored_names
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, UsageError
from brew.names import STEPS
from brew.observability import local
from brew.observability.counters import BUCKETS_S, Ended, Ending
from brew.observability.health import Bounds
from brew.observability.local import announced, announced_urls, folder, remember_verdict, verdict_file
from brew.observability.recorder import Recorder, Subject
from brew.observability.server import Probes, Producers, respond, serving
from brew.observability.settings import HOST, PORT, ProbeSettings, probe_settings
from brew.observability.status import LastTransaction, Phase, Topics, from_json
from operations.ui.sources import ProofSource
from pipeline.__main__ import _probes_of, run_command, settings_of

ANY_PORT = ProbeSettings(port=0)
NOTHING_GIVEN = dict.fromkeys(("probe_port", "polling_ttl", "consuming_ttl")) | {"no_probes": False, "probe_host": HOST}


@pytest.fixture
def recorder() -> Recorder:
    subject = Subject("pipeline", "g", Topics("orders", "out", "dlq"), "localhost:1", "direct")
    recorder = Recorder(subject, Bounds(300, 300, 180))
    recorder.phase(Phase.WORKING)
    recorder.surveyed(("orders", 0), 0, 10, 12)
    recorder.skipped(3)
    recorder.leaderless([])
    steps = dict.fromkeys(STEPS, 0.004)
    for ending in Ending:
        end = Ended("orders", 0, ending, 0, 10, 10, {"not-json": 2}, 0.5, steps, 0.0, "g:orders:0", "why")
        recorder.ended(replace(end, malformed_profiles=0))
    return recorder


def samples(recorder: Recorder) -> list[Sample]:
    """All samples that are told, read with the library that scrapers share."""
    text = respond("/metrics", recorder).body.decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture
def probes(recorder: Recorder) -> Iterator[Probes]:
    server = Probes(ANY_PORT, recorder)
    yield server
    server.close()


def ask(probes: Probes, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(probes.url.removeprefix("http://"), timeout=5)
    connection.request(method, path)
    reply = connection.getresponse()
    return reply.status, reply.headers["Content-Type"], reply.read()


def test_each_page_answers(probes: Probes) -> None:
    for path in ("/livez", "/readyz", "/startupz", "/livez?verbose"):
        code, kind, body = ask(probes, path)
        assert (code, kind) == (200, "application/json"), path
        assert json.loads(body)["ok"] is True
    assert from_json(ask(probes, "/status")[2]).group == "g"
    assert ask(probes, "/metrics")[1].startswith("text/plain")
    assert ask(probes, "/livez", "HEAD")[0::2] == (200, b"")
    code, _, body = ask(probes, "/health")
    assert (code, json.loads(body)["pages"]) == (404, ["/livez", "/readyz", "/startupz", "/metrics", "/status"])


def test_an_ill_program_answers_503_with_the_reason(recorder: Recorder, probes: Probes) -> None:
    recorder.fatal("input-lost: orders[0]")
    code, _, body = ask(probes, "/livez")
    document = json.loads(body)
    assert (code, document["ok"], document["reason"]) == (503, False, "unrecoverable: input-lost: orders[0]")
    unhealthy = {"topic": "orders", "partition": 0, "state": "unrecoverable", "reason": "input-lost: orders[0]"}
    assert document["unhealthy"] == [unhealthy]
    assert (ask(probes, "/readyz")[0], ask(probes, "/startupz")[0]) == (503, 200)
    fresh = Recorder(Subject("downstream ledger", "g", Topics("orders"), "localhost:1"), Bounds(1, 1, 1))
    assert [respond(page, fresh).code for page in ("/startupz", "/readyz", "/livez")] == [503, 503, 200]


def test_metrics_are_what_was_counted(recorder: Recorder) -> None:
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples(recorder)}
    place = (("partition", "0"), ("topic", "orders"))
    for ending in Ending:
        assert values["brew_txn_total", ("outcome", ending.value), *place] == 1
    assert values["brew_records_total", *place] == 10
    assert values["brew_dlq_total", ("reason", "not-json")] == 2
    assert (values["brew_fenced_total",], values["brew_live",], values["brew_ready",]) == (1, 1, 1)
    assert (values["brew_lso_lag", *place], values["brew_consumer_position", *place]) == (2, 10)
    assert (values["brew_consumer_lag", *place], values["brew_consumer_lag_seconds", *place]) == (0, 0)
    for step in STEPS:
        assert values["brew_txn_phase_seconds_count", ("phase", step)] == 5
        assert values["brew_txn_phase_seconds_bucket", ("le", "0.005"), ("phase", step)] == 5
        assert values["brew_txn_phase_seconds_bucket", ("le", "0.002"), ("phase", step)] == 0
    assert values["brew_txn_seconds_sum",] == pytest.approx(2.5)
    assert (values["brew_duplicates_total",], values["brew_txn_open",]) == (3, 0)
    buckets = [one.value for one in samples(recorder) if one.name == "brew_txn_seconds_bucket"]
    assert buckets == sorted(buckets), "they are cumulative, or quantiles come out as nonsense"
    assert len(buckets) == len(BUCKETS_S) + 1


def test_a_partitions_series_begin_at_zero_and_each_step_that_was_reported_has_one(recorder: Recorder) -> None:
    """Prometheus sees no increase if a series begins with its first count: the first abort raised no alarm."""
    recorder.surveyed(("orders", 1), 0, 10, 10)
    recorder.ended(Ended("orders", 0, Ending.ABORTED, 10, 20, steps={"fence": 0.004, "abort": 0.004}))
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples(recorder)}
    place = (("partition", "1"), ("topic", "orders"))
    assert [values["brew_txn_total", ("outcome", ending.value), *place] for ending in Ending] == [0] * len(Ending)
    assert values["brew_records_total", *place] == 0
    assert values["brew_txn_phase_seconds_count", ("phase", "abort")] == 1


def test_open_transactions_are_those_that_were_begun_and_not_ended(recorder: Recorder) -> None:
    def open_transactions() -> float:
        return next(one.value for one in samples(recorder) if one.name == "brew_txn_open")

    recorder.surveyed(("orders", 0), 10, 30, 30)
    recorder.surveyed(("orders", 1), 0, 10, 10)
    assert open_transactions() == 0
    recorder.begun(("orders", 0))
    recorder.begun(("orders", 1))
    assert open_transactions() == 2
    recorder.ended(Ended("orders", 0, Ending.ABORTED, 10, 20))
    assert open_transactions() == 1
    recorder.begun(("orders", 1))
    assert open_transactions() == 1, "its id has one open transaction at most"
    recorder.released([("orders", 1)])
    assert open_transactions() == 0


def test_every_metric_that_is_described_is_told_and_no_other(recorder: Recorder) -> None:
    exported = {one.name: set(one.labels) - {"le"} for one in samples(recorder) if one.name.startswith("brew")}
    described = {name: set(labels) - {"le"} for name, labels in stored_names().items()}
    assert exported == described


def test_answers_are_quick_with_many_partitions(recorder: Recorder) -> None:
    """A kubelet gives a second; counted in time at work, since a busy machine is no fault of ours."""
    for partition in range(1000):
        recorder.surveyed(("orders", partition), 0, 10, 10)
    began = time.thread_time()
    assert respond("/livez", recorder).code == 200
    assert time.thread_time() - began < 0.5


def test_a_bug_in_an_answer_is_an_error_and_no_silence(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "status", lambda _self: 1 / 0)
    code, _, body = ask(probes, "/livez")
    assert (code, json.loads(body)["reason"]) == (500, "ZeroDivisionError: division by zero")


def test_one_who_connects_and_says_nothing_holds_up_nobody(probes: Probes) -> None:
    host, port = probes.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    assert ask(probes, "/livez")[0] == 200
    for one in silent:
        one.close()


def test_the_server_leaves_with_its_thread_and_port(recorder: Recorder) -> None:
    server = Probes(ANY_PORT, recorder)
    port = int(server.url.rpartition(":")[2])
    server.close()
    assert [one.name for one in threading.enumerate() if one.name == "probes"] == []
    again = Probes(ProbeSettings(port=port, asked=True), recorder)
    again.close()


# The port.


def test_a_port_that_is_taken_is_left_to_its_owner_and_refused_where_it_was_asked_for(recorder: Recorder) -> None:
    """Two runs on one machine must not stop each other; whoever asks there would hear of somebody else's health."""
    with socket.create_server((HOST, 0)) as owner:
        taken = owner.getsockname()[1]
        server = Probes(ProbeSettings(port=taken), recorder)
        assert server.taken
        assert ask(server, "/readyz")[0] == 200
        server.close()
        with pytest.raises(UsageError, match=f"{taken}.*--probe-port.*--no-probes"):
            Probes(ProbeSettings(port=taken, asked=True), recorder)


def test_an_address_of_another_machine_is_refused_where_a_port_was_asked_for(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """And else told: nothing that nobody asked for stops a program (networks without a loopback address do exist)."""
    with pytest.raises(UsageError, match="--probe-host"), serving(ProbeSettings("192.0.2.1", 0, asked=True), recorder):
        raise AssertionError
    with serving(ProbeSettings("192.0.2.1"), recorder):
        assert "no probes at 192.0.2.1" in caplog.text


def test_who_follows_answers_and_who_drains_does_not_unless_asked() -> None:
    assert probe_settings(NOTHING_GIVEN, follow=False, longest_work_s=1) is None
    assert probe_settings(NOTHING_GIVEN, follow=True, longest_work_s=1) == ProbeSettings("127.0.0.1", PORT)
    settings = probe_settings({**NOTHING_GIVEN, "probe_port": 8080}, follow=False, longest_work_s=1)
    assert settings == ProbeSettings("127.0.0.1", 8080, asked=True)
    assert probe_settings({**NOTHING_GIVEN, "no_probes": True, "probe_port": 1}, follow=True, longest_work_s=1) is None


@pytest.mark.parametrize(("longest", "ttl"), [(120, 300), (240, 300), (241, 301), (1800, 1860)])
def test_the_default_time_makes_room_for_the_longest_work(longest: float, ttl: float) -> None:
    settings = probe_settings(NOTHING_GIVEN, follow=True, longest_work_s=longest)
    assert settings == ProbeSettings(polling_ttl_s=ttl, consuming_ttl_s=ttl)


@pytest.mark.parametrize(
    ("words", "ttl"),
    [
        (["--poll-interval", "400"], 300),
        (["--poll-interval", "400", "--reader", "connector"], 460),
        (["--tiers", "profiles", "--profiles-timeout", "600"], 780),
    ],
)
def test_a_run_that_pauses_or_loads_profiles_for_long_is_not_stuck(words: list[str], ttl: float) -> None:
    """`/livez` failed after 300 s, so Kubernetes restarted it before it had loaded."""
    option = run_command.make_context("run", ["--follow", *words]).params
    probes = _probes_of(option, settings_of(option))
    assert probes == ProbeSettings(polling_ttl_s=ttl, consuming_ttl_s=ttl)


@pytest.mark.parametrize("setting", ["polling_ttl", "consuming_ttl"])
def test_a_time_shorter_than_the_longest_work_is_refused(setting: str) -> None:
    assert probe_settings({**NOTHING_GIVEN, setting: 120.0}, follow=True, longest_work_s=120) is not None
    with pytest.raises(UsageError, match=f"--{setting.replace('_', '-')} is 119.9: .*120 s"):
        probe_settings({**NOTHING_GIVEN, setting: 119.9}, follow=True, longest_work_s=120)
    with pytest.raises(UsageError, match="--polling-ttl is 0"):
        ProbeSettings(polling_ttl_s=0)
    with pytest.raises(UsageError, match=r"PROBE_HOST \(--probe-host\) is empty; name an address"):
        ProbeSettings(host="")  # a socket would take it for all addresses of the machine


def test_malformed_profiles_and_duplicates_are_told_where_they_are_looked_for() -> None:
    """As many as the latest attempt's table holds; 0 would say that it had looked."""
    recorder = Recorder.unobserved()
    assert b"brew_duplicates_total 0.0" not in respond("/metrics", recorder).body
    assert b"\nbrew_profiles_malformed " not in respond("/metrics", recorder).body
    for count in (3, 2):
        end = Ended("in", 0, Ending.COMMITTED, 0, 1, 1, {}, 0.1, {}, None, None, "", malformed_profiles=count)
        recorder.ended(end)
        assert f"\nbrew_profiles_malformed {count}.0".encode() in respond("/metrics", recorder).body
        assert recorder.status().totals.malformed_profiles == count


# Producer ids and epochs in /status.


@dataclass
class Brokers:
    """Know the holders of some ids, or do not answer."""

    holders: dict[str, tuple[int, int]] = field(default_factory=dict)
    silent: bool = False
    requests: list[Sequence[str]] = field(default_factory=list)
    now: float = 100.0

    def describe(self, names: Sequence[str], deadline: Deadline) -> Mapping[str, tuple[int, int]]:
        self.requests.append(names)
        assert 0 < deadline.remaining_s() <= 2
        if self.silent:
            raise DeadlineExceeded("describe transactions: 2 s are over")
        return {name: self.holders[name] for name in names if name in self.holders}


@dataclass
class Scene:
    brokers: Brokers
    recorder: Recorder
    producers: Producers

    def last(self, partition: int, page: str = "/status?producers") -> LastTransaction:
        reply = respond(page, self.recorder, self.producers)
        assert reply.code == 200
        transaction = from_json(reply.body).partitions[partition].last_transaction
        assert transaction is not None
        return transaction


@pytest.fixture
def scene() -> Scene:
    brokers = Brokers({"g:orders:0": (7, 3)})
    recorder = Recorder(Subject("pipeline", "g", Topics("orders"), "localhost:1"), Bounds(300, 300, 180))
    for partition in (0, 1):
        name = f"g:orders:{partition}"
        recorder.ended(Ended("orders", partition, Ending.COMMITTED, 0, 5, transactional_id=name))
    return Scene(brokers, recorder, Producers(brokers.describe, lambda: brokers.now))


def test_who_asks_for_producers_gets_them_and_nobody_else_waits_for_brokers(scene: Scene) -> None:
    plain = scene.last(0, "/status")
    assert (plain.producer_id, plain.epoch) == (None, None)
    assert "/status?producers" in (plain.producer_unknown or "")
    for page in ("/livez", "/readyz", "/metrics", "/status?other=producers"):
        respond(page, scene.recorder, scene.producers)
    assert scene.brokers.requests == []
    transaction = scene.last(0)
    assert (transaction.producer_id, transaction.epoch, transaction.producer_unknown) == (7, 3, None)
    assert scene.brokers.requests == [["g:orders:0", "g:orders:1"]]


def test_an_id_that_no_coordinator_knows_or_tells_is_null_with_its_reason(scene: Scene) -> None:
    """The rest of the document is there."""
    transaction = scene.last(1, "/status?producers=1")
    assert (transaction.producer_id, transaction.epoch) == (None, None)
    assert "does not know the id" in (transaction.producer_unknown or "")
    scene.brokers.silent = True
    scene.brokers.now += 1
    transaction = scene.last(0)
    assert (transaction.producer_id, transaction.epoch, transaction.records) == (None, None, 0)
    assert transaction.producer_unknown == "the brokers did not report it: describe transactions: 2 s are over"


@pytest.mark.parametrize("silent", [True, False])
def test_an_answer_is_kept_for_a_second_and_a_failure_too(scene: Scene, silent: bool) -> None:
    """However often somebody asks: brokers that are in trouble are not asked more often."""
    scene.brokers.silent = silent
    for _ in range(3):
        scene.last(0)
    scene.brokers.now += 0.999
    scene.last(0)
    assert len(scene.brokers.requests) == 1
    scene.brokers.now += 0.001
    scene.brokers.silent, scene.brokers.holders = False, {"g:orders:0": (7, 4)}
    assert scene.last(0).epoch == 4
    assert len(scene.brokers.requests) == 2


def test_an_id_that_is_newer_than_the_kept_answer_was_not_asked_for(scene: Scene) -> None:
    """It was said that the coordinator does not know it, or that a right is missing."""
    scene.brokers.holders["g:orders:2"] = (8, 1)
    scene.last(0)
    scene.recorder.ended(Ended("orders", 2, Ending.COMMITTED, 0, 5, transactional_id="g:orders:2"))
    transaction = scene.last(2)
    assert (transaction.producer_id, len(scene.brokers.requests)) == (None, 1)
    assert transaction.producer_unknown == "the brokers are asked once a second, and this id is newer; ask again"
    scene.brokers.now += 1
    assert scene.last(2).producer_id == 8


def test_a_program_without_transactions_asks_nobody() -> None:
    brokers = Brokers()
    recorder = Recorder(Subject("downstream ledger", "g", Topics("out"), "localhost:1"), Bounds(300, 300, 180))
    recorder.surveyed(("out", 0), 0, 10, 10)
    reply = respond("/status?producers", recorder, Producers(brokers.describe))
    assert (json.loads(reply.body)["partitions"][0]["last_transaction"], brokers.requests) == (None, [])


TOPICS = ("in", "out", "dead")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_run_is_found_while_it_lasts() -> None:
    with announced("http://127.0.0.1:4711"):
        assert announced_urls() == ["http://127.0.0.1:4711/status"]
    assert announced_urls() == []
    assert list(folder().iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_who_looks() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = folder() / f"status-{int(done.stdout)}.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"url": "http://127.0.0.1:1/status"}')
    (folder() / f"status-{os.getpid()}.json").write_text("broken")
    assert announced_urls() == []
    assert not left.exists()


def test_a_run_of_another_user_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with announced("http://127.0.0.1:4711"):
        monkeypatch.setattr(local.os, "kill", Mock(side_effect=PermissionError))
        assert announced_urls() == ["http://127.0.0.1:4711/status"]


def test_the_last_verdict_is_found_by_who_looks_at_the_same() -> None:
    """Another group, cluster or topic has none; localhost is this machine."""
    source = ProofSource(verdict_file("127.0.0.1:9092", "g", TOPICS), optional=True)
    assert source.ask(Deadline(1)) is None
    document = {"verdict": "proven", "inputs": 3, "outputs": 3, "dead_letters": 0}
    remember_verdict("localhost:9092", "g", TOPICS, document)
    proof = source.ask(Deadline(1))
    assert (proof.mark, proof.lines[0]) == ("proven", "3 inputs = 3 outputs + 0 dead letters")
    assert ProofSource(verdict_file("127.0.0.1:9092", "other", TOPICS), optional=True).ask(Deadline(1)) is None


def test_what_is_kept_for_others_is_the_users_alone_and_found_however_servers_are_named() -> None:
    """A verdict names topics, and a run's address tells where its probes are."""
    remember_verdict(" b:1,a:1", "g", TOPICS, {})
    (file,) = folder().iterdir()
    assert file == verdict_file("a:1, b:1", "g", TOPICS)
    assert [path.stat().st_mode & 0o777 for path in (file, folder())] == [0o600, 0o700]


def test_old_verdicts_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MOST_VERDICTS", 3)
    for number in range(6):
        remember_verdict("k:1", f"g{number}", TOPICS, {})
        os.utime(verdict_file("k:1", f"g{number}", TOPICS), (number, number))
    remember_verdict("k:1", "last", TOPICS, {})
    assert len(list(folder().iterdir())) == 3
    assert verdict_file("k:1", "last", TOPICS).exists()


def test_who_cannot_write_there_goes_on_without(cache: Path) -> None:
    (cache / "brew").write_text("a file where a folder should be")
    with announced("http://127.0.0.1:1"):
        assert announced_urls() == []
    remember_verdict("k:1", "g", TOPICS, {})
