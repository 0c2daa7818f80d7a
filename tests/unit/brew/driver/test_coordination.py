"""Several drivers: stand-by and sharing, turn by turn."""

from __future__ import annotations

import signal
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import MagicMock, Mock

import pytest
from harness.claims import MemoryLog, Shared
from harness.pipeline import DrainView, until

from brew.claims.heartbeater import ALL_PARTITIONS, ClaimedOwnership, IsIdle, Ownership, StandBy, listed
from brew.claims.member import Holding, Membership, read_to_end
from brew.claims.messages import WHOLE_TOPIC
from brew.deadline import Deadline
from brew.driver import coordination, run
from brew.driver.limits import GiveUpPolicy
from brew.driver.run_context import PreflightResult, RunContext
from brew.errors import DeadlineExceeded, Fatal, Refused, UsageError
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.settings import PipelineSettings
from brew.signals import handlers_kept, stop_on_signals
from pipeline.__main__ import run_command, settings_of
from pipeline.submit import same_options


def parsed(*options: str) -> PipelineSettings:
    return settings_of(run_command.make_context("run", ["--master", "none", *options]).params)


def stand_by_settings(*options: str) -> PipelineSettings:
    return parsed("--stand-by", *options)


@dataclass
class FakeLeadership:
    """A leadership that the test gives and takes; ``log`` is what was done with it, and around it."""

    log: list[str] = field(default_factory=list)
    held: bool = True
    owner: str | None = None
    last_error: str | None = None
    failure: Exception | None = None
    paused: bool = False

    def __enter__(self) -> Self:
        self.log.append("opened")
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def wait(self, stop: threading.Event, meanwhile: Callable[[], None] = lambda: None) -> bool:
        while not stop.is_set() and not self.held:
            meanwhile()
            threading.Event().wait(0.005)
        return not stop.is_set()

    def holds(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.held

    def leave(self) -> None:
        self.log.append("left")
        self.owner, self.paused = None, False


@dataclass
class FakeWorkers:
    """A worker that runs until its run is stopped, or not even then; and the Spark workers that it runs on."""

    log: list[str]
    stubborn: bool = False
    shared: RunContext | None = None
    began: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        self.shared.running[0] = OffsetRange("in", 0, 0, 1)
        self.began.set()
        if self.error is not None:
            raise self.error
        self.shared.stop.wait()
        if self.stubborn:
            threading.Event().wait(30)

    def interrupt(self) -> None:
        self.log.append("interrupted")

    def close(self) -> None:
        self.log.append("closed")


@dataclass
class Scene:
    driver: coordination.Driver
    leadership: FakeLeadership
    workers: FakeWorkers
    view: DrainView


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A driver whose workers are `FakeWorkers`."""
    settings = stand_by_settings()
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    leadership, view = FakeLeadership(), DrainView()
    workers = FakeWorkers(leadership.log)
    monkeypatch.setattr(run, "_FENCE_S", 0.05)

    def create_workers(shared: RunContext) -> tuple[Any, Sequence[Any]]:
        workers.shared = shared
        return workers, [workers]

    monkeypatch.setattr(coordination, "create_workers", create_workers)
    preflight = PreflightResult({}, None, settings, 1, transaction, 0)
    driver = coordination.Driver(preflight, None, threading.Event(), view.progress, view, "me")
    return Scene(driver, leadership, workers, view)


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers


@pytest.mark.parametrize(
    ("how", "done"),
    [("lost", False), ("paused", False), ("gave up", False), ("gave up by a bug", False), ("told to stop", True)],
)
def test_a_driver_gives_up_leadership_before_it_closes_what_worked(scene: Scene, how: str, done: bool) -> None:
    """The next one may begin meanwhile. One that lost leadership, or no longer knows, waits for another turn."""
    thread, answers = in_background(lambda: scene.driver.work(scene.leadership))
    assert scene.workers.began.wait(5)
    if how == "lost":
        scene.leadership.owner, scene.leadership.held = "other", False
    elif how == "paused":
        scene.leadership.owner, scene.leadership.held, scene.leadership.paused = "me", False, True
    elif how == "gave up":
        scene.leadership.failure = Refused("made again")
    elif how == "gave up by a bug":
        scene.leadership.failure = KeyError((0, 17))
    else:
        scene.driver.stop.set()
    thread.join(5)
    assert (answers, scene.leadership.log) == ([done], ["left", "closed"])
    why = {"lost": "gave way to other", "paused": "was paused (`brew claims release`)"}
    assert how not in why or scene.view.notes[-1] == f"me {why[how]}, and stands by"


@pytest.mark.parametrize("replaced", [True, False])
def test_only_who_was_not_replaced_fences(scene: Scene, monkeypatch: pytest.MonkeyPatch, *, replaced: bool) -> None:
    """A fence of one that was replaced would abort the transactions of the one who works."""
    fenced: list[str] = []
    fence = SimpleNamespace(fence=lambda _deadline: fenced.append("fenced"), close=lambda: None)
    monkeypatch.setattr(run, "KafkaTransaction", lambda *_: fence)
    monkeypatch.setattr(run, "_FINISH_S", 0.05)
    scene.workers.stubborn = True
    thread, _ = in_background(lambda: scene.driver.work(scene.leadership))
    assert scene.workers.began.wait(5)
    if replaced:
        scene.leadership.held = False
    else:
        scene.driver.stop.set()
    thread.join(5)
    assert "interrupted" in scene.leadership.log
    assert fenced == ([] if replaced else ["fenced"])


def test_a_driver_that_lost_its_leadership_does_not_take_it_back_from_one_of_its_name(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers with one --client-id, as from one brew.toml, took turns for ever: each opening resumed."""
    shared, opened = Shared(), []

    class Opened(StandBy):
        def __enter__(self) -> Self:
            opened.append(super().__enter__())
            return self

    monkeypatch.setattr(coordination, "StandBy", Opened)
    monkeypatch.setattr(coordination, "ClaimsLog", lambda *_: MemoryLog(shared))
    monkeypatch.setattr(coordination, "check", lambda _settings: scene.driver.preflight)
    settings, stop = stand_by_settings("--client-id", "me"), scene.driver.stop
    thread, _ = in_background(lambda: coordination.run(settings, stop, scene.view.progress, scene.view))
    assert scene.workers.began.wait(5)
    with StandBy(lambda: MemoryLog(shared), group=settings.group, topic=settings.input, client_id="me") as other:
        token = other.token
        until(lambda: len(opened) == 2, "the next turn")
        stop.set()
        owners = read_to_end(MemoryLog(shared), Deadline(5)).tables[0].owners
        assert owners[settings.group, settings.input, WHOLE_TOPIC].token == token
    thread.join(5)
    assert any("another driver has its --client-id" in note for note in scene.view.notes)


def test_what_the_work_raises_gives_up_leadership(scene: Scene) -> None:
    """A refusal of one driver is no reason for the others to wait for two intervals."""
    scene.workers.error = Refused("input-lost")
    with pytest.raises(Refused, match="input-lost"):
        scene.driver.work(scene.leadership)
    assert scene.leadership.log == ["left", "closed"]


def test_a_crash_on_purpose_does_not_give_up_leadership(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        scene.leadership.log.append("dead")
        raise GeneratorExit  # no driver catches it

    def crash() -> None:
        scene.workers.shared.crashed.append(Outcome(0, 0, 1, Status.CRASHED))
        scene.workers.shared.stop.set()

    monkeypatch.setattr(coordination, "crash_on_purpose", die)
    monkeypatch.setattr(scene.workers, "run", crash)
    with pytest.raises(GeneratorExit):
        scene.driver.work(scene.leadership)
    assert scene.leadership.log[0] == "dead"


@pytest.mark.parametrize("raised", [CancelledError(), SystemExit(0), ValueError("a bug")])
def test_a_run_whose_thread_has_ended_is_not_drained(scene: Scene, raised: BaseException) -> None:
    """What is no `Exception` ended the thread alone: the run ended with 0, and left its records."""
    scene.workers.error = raised
    with pytest.raises((RuntimeError, ValueError), match=r"a thread ended by|a bug"):
        scene.driver.work(scene.leadership)


def test_who_waits_tells_once_who_works_and_that_it_is_warm(scene: Scene) -> None:
    """And again when the one who works changes; once it is warm, a take-over needs no time of Spark's."""
    warmth: Any = Mock(warm=False)
    scene.driver.warm_spark = warmth
    scene.leadership.held, scene.leadership.owner = False, "first"
    thread, answers = in_background(lambda: scene.driver.wait(scene.leadership))
    until(lambda: scene.view.notes == ["me stands by, first works"], "the first note")
    scene.leadership.owner = "second"
    until(lambda: len(scene.view.notes) == 2, "the second note")
    warmth.warm = True
    until(lambda: len(scene.view.notes) == 3, "the third note")
    scene.leadership.held = True
    thread.join(5)
    assert (answers, warmth.leave.call_count) == ([True], 1)
    assert scene.view.notes[1:] == ["me stands by, second works", "me is warm", "me works, after second"]


def test_who_waits_names_nobody_while_nobody_works(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the group was paused, probes went on to say that the last one worked."""
    details: list[str] = []
    monkeypatch.setattr(scene.driver.progress, "phase", lambda _phase, detail="": details.append(detail))
    scene.leadership.held, scene.leadership.owner = False, "first"
    thread, _ = in_background(lambda: scene.driver.wait(scene.leadership))
    until(lambda: details[-1:] == ["first works"], "the one who works")
    scene.leadership.owner = None
    until(lambda: details[-1:] == [""], "nobody's name")
    scene.driver.stop.set()
    thread.join(5)


def test_who_waits_and_could_not_take_over_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lost its right to the claims topic waited for ever, without a word. A moment's failure is no news."""
    monkeypatch.setattr(coordination, "_FAILING_S", 1.0)  # ten times the moment
    scene.leadership.held = False
    thread, _ = in_background(lambda: scene.driver.wait(scene.leadership))
    for error in ("a moment", None, "no Write on the claims topic"):
        scene.leadership.last_error = error
        time.sleep(0.1)
    expected = "me can't take over, trying again: no Write on the claims topic"
    until(lambda: len(scene.view.notes) > 1, "the note, and its repetition")
    scene.driver.stop.set()
    thread.join(5)
    assert set(scene.view.notes) == {expected}


def test_turns_are_taken_until_the_work_is_done() -> None:
    leadership, turns = FakeLeadership(), iter([False, False, True])
    patience, stop = GiveUpPolicy(stand_by_settings()), threading.Event()
    coordination.alternate(lambda: leadership, lambda _: True, lambda _: next(turns), stop, patience, DrainView())
    assert leadership.log == ["opened", "left"] * 3


def test_a_claims_topic_out_of_reach_is_tried_again_for_as_long_as_patience_lasts() -> None:
    """Errors of the work itself are not mistaken for that."""
    leadership, view, tries = FakeLeadership(), DrainView(), iter([DeadlineExceeded("no answer"), None])

    def open_leadership() -> FakeLeadership:
        if error := next(tries):
            raise error
        return leadership

    patience, stop = GiveUpPolicy(stand_by_settings()), threading.Event()
    coordination.alternate(open_leadership, lambda _: True, lambda _: True, stop, patience, view)
    assert "out of reach" in view.notes[0]
    assert (leadership.log, patience.failures) == (["opened", "left"], 0)
    fails = Mock(side_effect=DeadlineExceeded("the work's own"))
    with pytest.raises(DeadlineExceeded, match="the work's own"):
        coordination.alternate(lambda: leadership, lambda _: True, fails, stop, patience, view)


@pytest.mark.parametrize("mode", ["stand_by", "share"])
def test_the_options_reach_the_settings_and_spark_submit(mode: str) -> None:
    given = ["--master", "none", f"--{mode.replace('_', '-')}", "--claim-interval", "1.5"]
    context = run_command.make_context("run", [*given, "--client-id", "driver-1", "--claims", "c"])
    settings = settings_of(context.params)
    submitted = same_options(settings, run_command.params, context.params)
    chosen = getattr(settings, mode)
    assert (chosen.interval_s, chosen.client_id, chosen.name, chosen.claims) == (1.5, "driver-1", "driver-1", "c")
    expected = {"stand_by": None, "share": None}
    for words, wanted in ((submitted, expected | {mode: chosen}), ([], expected)):
        assert {one: getattr(parsed(*words), one) for one in expected} == wanted
    with pytest.raises(UsageError, match=r"--stand-by.*--share"):
        parsed("--share", "--stand-by")


@pytest.mark.parametrize(
    ("option", "value"), [("--claim-interval", "0.01"), ("--client-id", "x" * 256), ("--claims", "a b")]
)
def test_bad_values_are_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(UsageError, match=option):
        stand_by_settings(option, value)


@pytest.mark.parametrize(
    ("option", "run_mode"), [("--stand-by", coordination.run), ("--share", coordination.run_sharing)]
)
def test_a_direct_lease_is_no_longer_than_that_of_leadership(
    option: str, run_mode: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a driver that sleeps would else go on beside those of the next one."""
    monkeypatch.setattr(coordination, "check", checked := Mock(side_effect=Refused("that is enough")))
    with pytest.raises(Refused, match="that is enough"):
        run_mode(parsed(option, "--claim-interval", "2"), threading.Event(), Mock(), DrainView())
    assert checked.call_args.args[0].direct.lease_s == 4.0


class FakeHeartbeater:
    """Holds what the test says."""

    def __init__(self) -> None:
        self.membership = Membership("me", "g", "orders", tuple(range(8)))
        self.holdings: dict[int, Holding] = {}
        self.wanted: frozenset[int] = frozenset()
        self.given: list[int] = []
        self.failure: Refused | None = None
        self.last_error: str | None = None

    def holds(self, **tokens: int) -> None:
        self.holdings = {int(name[1:]): Holding(token, -1, 0.0) for name, token in tokens.items()}

    def held(self) -> dict[int, Holding]:
        if self.failure is not None:
            raise self.failure
        return dict(self.holdings)

    def to_release(self) -> frozenset[int]:
        return self.wanted

    def release_partitions(self, done: Mapping[int, Holding]) -> None:
        self.given += done
        self.holdings = {p: one for p, one in self.holdings.items() if p not in done}


Owned = tuple[FakeHeartbeater, ClaimedOwnership, list[str]]


@pytest.fixture
def owned_partitions() -> Owned:
    notes: list[str] = []
    heartbeater: Any = FakeHeartbeater()
    return heartbeater, ClaimedOwnership(heartbeater, notes.append), notes


def idle(_partition: int) -> bool:
    return True


def busy(_partition: int) -> bool:
    return False


def inside(partitions: Container[int]) -> list[int]:
    return [partition for partition in range(8) if partition in partitions]


def test_a_driver_works_on_what_it_holds_and_tells_each_change_once(owned_partitions: Owned) -> None:
    """What others are due is begun no more, and given back once it is idle; lost and claimed anew is another one."""
    heartbeater, owned, notes = owned_partitions
    assert inside(owned.refresh(idle)) == []
    heartbeater.holds(p0=1, p1=2, p2=3, p6=4)
    assert inside(owned.refresh(idle)) == inside(owned.refresh(idle)) == [0, 1, 2, 6]
    heartbeater.holds(p0=1, p1=2)
    assert inside(owned.refresh(idle)) == [0, 1]
    assert notes == ["me works on 4 of 8 partitions: 0-2, 6", "me works on 2 of 8 partitions: 0-1; lost 2, 6"]
    heartbeater.wanted = frozenset({1})
    assert (inside(owned.refresh(busy)), heartbeater.given) == ([0], [])
    assert (inside(owned.refresh(idle)), heartbeater.given) == ([0], [1])
    assert notes[-1] == "me works on 1 of 8 partitions: 0; gave back 1"
    heartbeater.holds(p0=9)
    assert inside(owned.refresh(idle)) == [0]
    assert notes[-1].endswith("lost 0")
    heartbeater.last_error = "append: no answer"
    heartbeater.holds()
    assert inside(owned.current_partitions()) == [], "what was lost is not fenced at the end"
    assert inside(owned.refresh(idle)) == []
    assert notes[-1].endswith("lost 0 (append: no answer)")


def test_a_keeper_that_gave_up_ends_the_work(owned_partitions: Owned) -> None:
    """`turn` raises; what is asked on the way out does not."""
    heartbeater, owned, _ = owned_partitions
    heartbeater.failure = Refused("made again")
    with pytest.raises(Refused, match="made again"):
        owned.refresh(idle)
    assert inside(owned.current_partitions()) == []


def test_a_driver_alone_works_on_everything() -> None:
    never: IsIdle = busy
    assert 123 in Ownership().refresh(never)
    assert Ownership().current_partitions() is ALL_PARTITIONS


def test_numbers_are_listed_in_runs() -> None:
    assert (listed([]), listed([3]), listed([5, 1, 2, 0, 7, 8])) == ("", "3", "0-2, 5, 7-8")


def test_who_waits_for_others_gives_up_only_when_they_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    patience = GiveUpPolicy(parsed("--blocked-patience", "10"))
    for position in range(5):
        clock[0] += 9
        patience.blocked((), {1: position})
    clock[0] += 11
    with pytest.raises(Refused, match=r"partitions \[1\] of brew.orders.v1 belong to other drivers"):
        patience.blocked((), {1: 4})


def test_lanes_turn_at_once(owned_partitions: Owned) -> None:
    heartbeater, owned, notes = owned_partitions
    heartbeater.holds(p0=1, p1=2)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: owned.refresh(busy), range(200)))
    assert notes == ["me works on 2 of 8 partitions: 0-1"]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_driver_that_shares_claims_once_spark_runs_and_leaves_before_spark_ends(
    monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    """What it owns while it can't work stands still. One that crashes on purpose releases nothing."""
    steps, view, settings = list[str](), DrainView(), parsed("--share")
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    topics = {settings.input: Topic(settings.input, "id", 4, 1)}
    preflight = PreflightResult(topics, None, settings, 1, transaction, 0)
    heartbeater, runner = MagicMock(), Mock(close=lambda: steps.append("Spark ends"))
    heartbeater.__enter__.side_effect = lambda: steps.append("joins") or heartbeater
    heartbeater.__exit__.side_effect = lambda *_: steps.append("leaves")

    def create_workers(*_: object) -> tuple[Any, list[Any]]:
        steps.append("Spark runs")
        return runner, []

    def work(shared: RunContext, *_: object) -> None:
        steps.append("works")
        shared.crashed += [Outcome(0, 0, 1, Status.CRASHED)] * crashes

    def die(*_: object) -> None:
        steps.append("dead")
        raise GeneratorExit

    for name, fake in (("check", lambda _: preflight), ("Heartbeater", opened := Mock(return_value=heartbeater))):
        monkeypatch.setattr(coordination, name, fake)
    monkeypatch.setattr(coordination, "create_workers", create_workers)
    monkeypatch.setattr(coordination, "run_loops", work)
    monkeypatch.setattr(coordination, "crash_on_purpose", die)
    with pytest.raises(GeneratorExit) if crashes else nullcontext():
        coordination.run_sharing(settings, threading.Event(), view.progress, view)
    assert steps[:4] == ["Spark runs", "joins", "works", "dead" if crashes else "leaves"]
    assert steps[-1] == "Spark ends"
    assert opened.call_args.args[1].partitions == (0, 1, 2, 3)


def test_a_claims_topic_that_one_broker_does_not_know_yet_is_asked_for_again() -> None:
    """Two drivers that start at once on three brokers: one of them has just made it."""
    heartbeater, view, patience = MagicMock(), DrainView(), GiveUpPolicy(parsed("--share"))
    heartbeater.__enter__.side_effect = [Fatal("bounds of the claims topic: unknown topic"), heartbeater]
    with ExitStack() as turn:
        assert coordination.joined(turn, lambda: heartbeater, threading.Event(), patience, view) is heartbeater
    assert heartbeater.__enter__.call_count == heartbeater.__exit__.call_count == 2
    assert view.notes[0].startswith("the claims topic is out of reach, trying again: bounds")


def test_a_stop_ends_the_wait_for_a_claims_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds after SIGTERM a process is killed."""
    monkeypatch.setattr(GiveUpPolicy, "failed", lambda *_: 60.0)
    view, down, stop = DrainView(), Mock(side_effect=DeadlineExceeded("no answer")), threading.Event()
    patience = GiveUpPolicy(parsed("--share"))
    thread, answers = in_background(lambda: coordination.alternate(down, Mock(), Mock(), stop, patience, view))
    until(lambda: len(view.notes) == 1, "it waits")
    stop.set()
    thread.join(5)
    assert answers == [None]


def test_a_signal_ends_the_attempt_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes up to 45 s without brokers, and the main thread, which makes it, heard of SIGTERM only at its end."""

    def join(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it goes on")

    leadership, patience, stop = FakeLeadership(), GiveUpPolicy(stand_by_settings()), threading.Event()
    monkeypatch.setattr(FakeLeadership, "__enter__", join)
    with handlers_kept():
        stop_on_signals(stop)
        coordination.alternate(lambda: leadership, Mock(), Mock(), stop, patience, DrainView())
    assert leadership.log == ["left"], "what it may have begun is ended"
