"""The simulator of larger clusters: conservation, closed forms, turns, losses; no server needed."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import pytest
import simpy
from made_up import NUMBERS, STEP, WAITING  # first: it says where the benchmarks are
from scale.costs import costs
from scale.direct import Holders
from scale.numbers import STEPS, Idle, StepCost
from scale.resources import Cores, Interpreter, Steps, Turns
from scale.scenario import Scenario
from scale.simulate import Report, simulate
from scale.world import World

from pipeline.settings import Reader

QUIET = {"network_ms": 0.0, "replication_ms": 0.0}
SMALL = Scenario(partitions=8, executors=2, cores=2, brokers=2, seconds=2.0, warm_up_s=0.5, max_records=2_000)


@pytest.mark.parametrize("reader", list(Reader))
@pytest.mark.parametrize("lose", [0, 1])
def test_a_drain_commits_every_record_once_also_when_an_executor_is_lost(reader: Reader, lose: int) -> None:
    """In = out, and a commit that left a gap or came twice would have raised."""
    scenario = replace(SMALL, reader=reader, backlog=30_000, warm_up_s=0.0, lose=lose, lose_at=0.1)
    report = simulate(scenario, NUMBERS)
    assert report.records_in == report.records_out == 8 * 30_000


@pytest.mark.parametrize("reader", list(Reader))
def test_what_arrives_steadily_is_committed_at_that_rate(reader: Reader) -> None:
    """What is not out yet is what the last transactions hold."""
    report = simulate(replace(SMALL, reader=reader, rate=4_000, seconds=6.0), NUMBERS)
    assert report.records_per_s == pytest.approx(4_000, rel=0.05)
    assert 0 <= report.records_in - report.records_out < 4_000
    assert report.p50_ms is not None
    assert report.p99_ms is not None
    assert 0 < report.p50_ms <= report.p99_ms


def test_one_partition_without_cpu_has_the_rate_of_the_formula() -> None:
    """Records of a transaction over its nine waits."""
    scenario = Scenario(partitions=1, executors=1, cores=1, brokers=1, max_records=500, **QUIET)
    report = simulate(scenario, WAITING)
    assert report.records_per_s == pytest.approx(500 / 0.018, rel=0.01)


def test_one_partition_on_one_slot_has_the_rate_of_the_formula() -> None:
    """Take, steps, Python, and then the slower of the client's threads and what one partition can be written."""
    scenario = Scenario(partitions=1, executors=1, cores=4, brokers=1, slots_per_executor=1, max_records=1_000, **QUIET)
    size = scenario.record_bytes
    records_s = 1_000 * (NUMBERS.take.seconds(size) + NUMBERS.produce.seconds(size))
    written_s = 1_000 * (size + NUMBERS.logs.record_overhead) / (NUMBERS.flush_mib_per_s * 2**20)
    records_s += max(written_s, 1_000 * NUMBERS.send.seconds(size))
    whole_s = records_s + len(STEPS) * STEP.wall_ms / 1000 + NUMBERS.coordinator_us / 1e6
    assert simulate(scenario, NUMBERS).records_per_s == pytest.approx(1_000 / whole_s, rel=0.01)


def test_round_trips_and_replicas_take_what_they_take() -> None:
    """Nine steps of two trips each, and six appends; the records' own request is one more of both."""
    numbers = replace(WAITING, steps=dict.fromkeys(STEPS, StepCost(2.0, 0.0, 0.0, 0.0, 2.0)))
    scenario = Scenario(
        partitions=1, executors=1, cores=1, brokers=1, max_records=500, network_ms=1.0, replication_ms=3.0
    )
    took = 500 / simulate(scenario, numbers).records_per_s
    assert took == pytest.approx(0.018 + 19 * 0.001 + 7 * 0.003, rel=0.02)


def test_a_reader_with_nothing_to_take_has_its_broker_keep_one_fetch_after_another() -> None:
    """Eight partitions with a record in ten seconds each, for ten seconds: two fetches a second each."""
    seldom = Scenario(partitions=8, executors=1, rate=0.8, seconds=10.0, warm_up_s=0.0)
    free, paid = (simulate(seldom, replace(WAITING, idle=Idle(us, 2 * us))).cpu_s for us in (0.0, 1000.0))
    assert paid - free == pytest.approx(8 * 10 * 2 * 0.003, rel=0.15)


def test_more_slots_are_never_slower_where_cpu_is_free() -> None:
    """And with CPU they help until there is one for each partition."""
    free = [simulate(replace(SMALL, executors=n, cores=1), WAITING).records_per_s for n in (1, 2, 4, 8)]
    assert all(later >= earlier * 0.999 for earlier, later in itertools.pairwise(free))
    paid = [simulate(replace(SMALL, executors=n, cores=1), NUMBERS).records_per_s for n in (1, 2, 4)]
    assert paid[0] < paid[1] < paid[2]


def test_equal_seeds_give_equal_reports() -> None:
    """Also where chance places arrivals and the executor that is lost."""
    scenario = replace(SMALL, rate=8_000, seconds=1.0, lose=1, lose_at=1.0, seed=7)
    assert simulate(scenario, NUMBERS) == simulate(scenario, NUMBERS)
    assert simulate(scenario, NUMBERS) != simulate(replace(scenario, seed=8), NUMBERS)


def test_a_silent_executor_costs_the_lease() -> None:
    """One that ends is heard of at once."""
    scenario = replace(SMALL, rate=8_000, lose=1, lose_at=1.0, lease_s=3.0)
    heard, silent = (simulate(replace(scenario, silent=silent), NUMBERS).recovered_ms for silent in (False, True))
    assert heard is not None
    assert silent is not None
    assert heard[1] < 1_000
    assert silent[0] == pytest.approx(heard[0] + 3_000, abs=300)


@pytest.mark.parametrize("turns", [1, 4])
def test_so_many_transactions_of_a_process_run_at_a_time(turns: int) -> None:
    """Where nothing needs a processor, the rate is theirs: records of a transaction over its nine waits, each."""
    scenario = Scenario(
        partitions=32, executors=1, cores=1, slots_per_executor=1, turns=turns, max_records=500, **QUIET
    )
    assert simulate(scenario, WAITING).records_per_s == pytest.approx(turns * 500 / 0.018, rel=0.03)


def test_one_partition_of_a_process_produces_while_others_fence_and_commit() -> None:
    """All turns are used, and no more."""
    scenario = Scenario(partitions=32, executors=1, cores=4, slots_per_executor=1, max_records=500, **QUIET)
    world = World(scenario, NUMBERS)
    Holders(world).start()
    world.env.run(until=0.5)
    assert world.slots[0].turns.most == 4
    assert world.slots[0].producing.most == 1


def test_a_turn_that_lasts_too_long_keeps_nobody() -> None:
    """Two of five second's work: the third begins after one second, and no more than two count at a time."""
    env = simpy.Environment()
    turns = Turns(env, at_once=2, longest_s=1.0)
    ended: list[float] = []

    def work(seconds: float) -> Steps:
        yield env.timeout(seconds)
        ended.append(env.now)

    for seconds in (5.0, 5.0, 0.5, 0.5):
        env.process(turns.one(work(seconds)))
    env.run()
    assert ended == [1.5, 1.5, 5.0, 5.0]
    assert turns.most == 4


def test_a_reader_that_was_interrupted_gives_its_turn_back() -> None:
    """Whether it worked or waited."""
    env = simpy.Environment()
    turns = Turns(env, at_once=1, longest_s=100.0)

    def work() -> Steps:
        with contextlib.suppress(simpy.Interrupt):
            yield from turns.one(forever())

    def forever() -> Steps:
        yield env.event()

    def short() -> Steps:
        yield env.timeout(1.0)

    working, waiting = env.process(work()), env.process(work())
    env.run(until=1.0)
    waiting.interrupt()
    working.interrupt()
    last = env.process(turns.one(short()))
    env.run(last)
    assert env.now == 2.0


def test_cores_are_shared_evenly() -> None:
    """Three jobs of one second on two cores take a second and a half; a short one among them leaves first."""
    env = simpy.Environment()
    cores = Cores(env, 2)
    ended: dict[str, float] = {}
    for name, seconds in {"a": 1.0, "b": 1.0, "short": 0.1}.items():
        cores.work(seconds).callbacks.append(lambda _event, name=name: ended.update({name: env.now}))
    env.run()
    assert ended == pytest.approx({"short": 0.15, "a": 1.05, "b": 1.05})
    assert cores.busy_s() == pytest.approx(2.1)


def test_an_interpreter_runs_one_thread_at_a_time_whatever_the_cores() -> None:
    """They take turns: both of two end near the end."""
    env = simpy.Environment()
    interpreter = Interpreter(env, Cores(env, 8))
    both = [env.process(interpreter.run(0.1)), env.process(interpreter.run(0.1))]
    env.run(both[0])
    assert env.now == pytest.approx(0.195)
    env.run(both[1])
    assert env.now == pytest.approx(0.2)


def test_costs_are_the_measured_numbers_times_the_rate() -> None:
    """A thousand partitions, six brokers, 500 transactions a second."""
    scenario = Scenario(partitions=1_000, executors=100, cores=4, slots_per_executor=1, brokers=6)
    report = Report(0, 1, 1e6, 500.0, 2_000.0, 4.0, 5.0, None, None, {"interpreter": 0.5}, None, 10.0, 1.0)
    found = costs(scenario, NUMBERS, report)
    assert found.connections_held == 1_000 * 7
    assert found.connections_most == 1_000 * 7 + 400 * 14
    assert found.connects_per_s == 500 * 14
    assert found.requests_per_s["Metadata"] == 2_000
    assert found.per_coordinator_partition == 10
    assert found.group_coordinator_share == pytest.approx(0.05)
    assert found.marker_share == pytest.approx(78 / (2_000 * 230 + 78))
    assert found.executor_mib == 60 + 10
    assert report.bottleneck == "waiting"
