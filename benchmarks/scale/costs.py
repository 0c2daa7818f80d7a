"""What a run costs the brokers and the executors, from the measured numbers and how often it commits; pure."""

from __future__ import annotations

from dataclasses import dataclass

from scale.numbers import Numbers
from scale.scenario import Scenario
from scale.simulate import Report
from scale.world import TRANSACTION_PARTITIONS

_TIME_WAIT_S = 60.0
"""How long Linux keeps the address of a connection that this side closed."""
PORTS = 28_232
"""Linux's default of outgoing ports to one address of one broker (`net.ipv4.ip_local_port_range`)."""
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Costs:
    """
    ``connections`` at one moment: those of the tails, and with as many transactions open as turns allow. Connections,
    requests and transactions per second are those of the whole cluster; bytes count on one replica.
    """

    connections_held: float
    connections_most: float
    connections_per_broker: float
    connects_per_s: float
    ports_in_time_wait: float
    requests_per_s: dict[str, float]
    transactions_per_s: float
    per_coordinator_partition: float
    group_coordinator_share: float
    group_coordinator_most_per_s: float
    transaction_log_mib_per_s: float
    transaction_log_gib_per_day: float
    offsets_log_mib_per_s: float
    markers_per_s: float
    marker_share: float
    executor_mib: float
    executor_mib_most: float
    executor_threads: float


def costs(scenario: Scenario, numbers: Numbers, report: Report) -> Costs:
    """As measured numbers multiply; the rate of transactions is the report's."""
    per_s, brokers = report.transactions_per_s, scenario.brokers
    held = scenario.partitions * numbers.tail.at(brokers)
    most = held + scenario.open_at_once * numbers.transaction.at(brokers)
    connects = per_s * numbers.transaction.at(brokers)
    group_s = 1e-6 * numbers.coordinator_us
    transaction_log = per_s * numbers.logs.transaction_state
    output = report.records_per_transaction * (scenario.record_bytes + numbers.logs.record_overhead)
    here = scenario.partitions / scenario.executors
    slots = scenario.slots / scenario.executors
    memory, in_hand = numbers.memory, scenario.open_at_once / scenario.executors * _in_hand(scenario)
    base = slots * memory.process_mib
    return Costs(
        held,
        most,
        most / brokers,
        connects,
        connects / scenario.executors / brokers * _TIME_WAIT_S,
        {name: per_s * count for name, count in numbers.requests.items()},
        per_s,
        per_s / TRANSACTION_PARTITIONS,
        per_s / scenario.groups * group_s,
        scenario.groups / group_s,
        transaction_log / 2**20,
        transaction_log * _DAY_S / 2**30,
        per_s * numbers.logs.consumer_offsets / 2**20,
        per_s,
        numbers.logs.marker / (output + numbers.logs.marker),
        base + here * memory.partition_mib,
        base + (slots * scenario.read_ahead_bytes + in_hand) / 2**20,
        here * memory.partition_threads,
    )


def _in_hand(scenario: Scenario) -> int:
    """Bytes of one transaction in the worst case: its input as Python objects, its output in the producer's queue."""
    return 3 * min(scenario.transaction_bytes, scenario.max_records * (scenario.record_bytes + 64))
