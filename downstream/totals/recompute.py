"""Compute the totals again from the orders, and compare them with changelog, state and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import AdminClient, admin, reach
from brew.kafka.log_reader import scan
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.topics import Topic
from brew.names import READ_COMMITTED, quantity
from brew.offsets import LogOffsets
from downstream.totals.stages import add
from downstream.totals.state_store import CHECKPOINT_KEY, RocksStore, parse_checkpoint, settled
from downstream.totals.topics import Position, Topics, TotalsSettings, found, position
from downstream.totals.total import Total, deltas

_REACH_S = 12.0
_ASK_S = 30.0
_SHOWN = 10
Totals = dict[bytes, Total]


@dataclass(frozen=True, slots=True)
class Difference:
    """One total that is not the same in two places; None where it is missing."""

    where: str
    key: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.where}: {self.key} is {self.found or 'missing'}, wanted {self.wanted or 'none'}"


@dataclass
class Comparison:
    """Result of the comparison, with the first differences of each kind; amounts as `orders sum discount unpriced`."""

    orders: int = 0
    totals: int = 0
    pending: int = 0
    differences: int = 0
    first: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return self.differences == 0

    def compare(self, where: str, wanted: Mapping[bytes, bytes], actual: Mapping[bytes, bytes]) -> None:
        """Hold two sets of totals against each other, key by key."""
        wrong = [key for key in wanted.keys() | actual.keys() if wanted.get(key) != actual.get(key)]
        self.differences += len(wrong)
        for key in sorted(wrong)[:_SHOWN]:
            name = key.decode("utf-8", "backslashreplace")
            self.first.append(Difference(where, name, _text(wanted.get(key)), _text(actual.get(key))))

    def document(self) -> dict[str, object]:
        return {
            "equal": self.equal,
            "orders": self.orders,
            "totals": self.totals,
            "pending_deltas": self.pending,
            "differences": self.differences,
            "first": [{"where": d.where, "key": d.key, "wanted": d.wanted, "found": d.found} for d in self.first],
            "notes": self.notes,
        }

    def text(self) -> str:
        verdict = "equal" if self.equal else quantity(self.differences, "difference")
        head = f"{verdict}: {quantity(self.totals, 'total')} of {quantity(self.orders, 'order')}"
        waiting = [f"{self.pending} deltas are not added yet"] if self.pending else []
        return "\n".join([head, *waiting, *map(str, self.first), *self.notes])


@dataclass(frozen=True, slots=True)
class _StageOffsets:
    """Committed positions and end offsets of one stage, by partition."""

    positions: Mapping[int, Position]
    logs: Mapping[int, LogOffsets]


def recompute(settings: TotalsSettings, home: Path | None) -> Comparison:
    """
    Compare; ``home`` holds a RocksDB state per partition, None if there is none to look at.

    Orders below the committed offset are summed afresh. The same has to come out of the changelog and the deltas that
    are not added yet together; the state has to be what the changelog says, and so have the results.

    Raises:
        Refused: nothing was counted yet, retention took orders that were, or a totals program is at work.
    """
    reach(settings.connection, Deadline(_REACH_S))
    client = admin(settings.connection)
    topics = found(client, settings, Deadline(_ASK_S))
    if topics is None:
        raise Refused(f"nothing was counted in group {settings.group!r} yet: run `downstream totals` first")
    settled(client, settings.deltas, range(topics.deltas.partitions), Deadline(_ASK_S))
    before = _stage_offsets(settings, client, topics.input), _stage_offsets(settings, client, topics.deltas)
    orders, sums = before
    comparison = Comparison()
    by_partition, standings = _changelog(settings, client, topics)
    changelog = {key: value for values in by_partition.values() for key, value in values.items()}
    comparison.totals = len(changelog)
    _compare_with_orders(settings, orders, sums, changelog, comparison)
    comparison.compare("results", _documents(changelog), _results(settings, client, topics))
    for partition, until in standings.items():
        if sums.positions[partition].offset != until:
            comparison.differences += 1
            place = f"{settings.changelog}[{partition}]"
            comparison.first.append(
                Difference("changelog", place, str(sums.positions[partition].offset), f"{until} (deltas below it)")
            )
    if home is not None:
        _compare_states(topics, home, by_partition, standings, comparison)
    after = _stage_offsets(settings, client, topics.input), _stage_offsets(settings, client, topics.deltas)
    if [stage.positions for stage in before] != [stage.positions for stage in after]:
        raise Refused(f"group {settings.group!r} counts while it is looked at; end that program, then compare")
    return comparison


def _stage_offsets(settings: TotalsSettings, client: AdminClient, topic: Topic) -> _StageOffsets:
    partitions = range(topic.partitions)
    logs = log_offsets(client, topic.name, partitions, Deadline(_ASK_S))
    whose = (settings.connection, settings.group, topic.name)
    known = committed_by(*whose, partitions, READ_COMMITTED, Deadline(_ASK_S))
    positions = {p: position(f"{topic.name}[{p}]", topic.topic_id, known[p], logs[p]) for p in partitions}
    return _StageOffsets(positions, logs)


def _values(
    settings: TotalsSettings, topic: str, ranges: Mapping[int, tuple[int, int]]
) -> Iterator[list[tuple[bytes | None, bytes | None]]]:
    for batch in scan(settings.connection, topic, ranges, READ_COMMITTED, group=settings.group):
        yield [(record.key(), record.value()) for record in batch]


def _compare_with_orders(
    settings: TotalsSettings,
    orders: _StageOffsets,
    sums: _StageOffsets,
    changelog: Mapping[bytes, bytes],
    comparison: Comparison,
) -> None:
    ranges = {}
    for p, counted_to in orders.positions.items():
        if counted_to.began < orders.logs[p].first:
            raise Refused(
                f"range-lost: {settings.input}[{p}] begins at {orders.logs[p].first} and was counted from "
                f"{counted_to.began} on; what retention took can't be computed again"
            )
        ranges[p] = counted_to.began, counted_to.offset
    wanted: Totals = {}
    for batch in _values(settings, settings.input, ranges):
        comparison.orders += len(batch)
        add(wanted, deltas(value for _, value in batch))
    counted = {key: Total.decode(value) for key, value in changelog.items()}
    waiting = {p: (position.offset, sums.logs[p].last_stable) for p, position in sums.positions.items()}
    for batch in _values(settings, settings.deltas, waiting):
        comparison.pending += len(batch)
        for key, value in batch:
            add(counted, {key or b"": Total.decode(value or b"")})
    comparison.compare("recomputation", _encoded(wanted), _encoded(counted))


def _encoded(totals: Totals) -> dict[bytes, bytes]:
    return {key: total.encode() for key, total in totals.items()}


def _documents(changelog: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {key: Total.decode(value).document(key) for key, value in changelog.items()}


def _ends(client: AdminClient, topic: Topic) -> dict[int, tuple[int, int]]:
    logs = settled(client, topic.name, range(topic.partitions), Deadline(_ASK_S))
    return {p: (log.first, log.last_stable) for p, log in logs.items()}


def _changelog(
    settings: TotalsSettings, client: AdminClient, topics: Topics
) -> tuple[dict[int, dict[bytes, bytes]], dict[int, int]]:
    """Per partition the latest value of every key, and how far the deltas are in."""
    ends = _ends(client, topics.changelog)
    values: dict[int, dict[bytes, bytes]] = {p: {} for p in ends}
    standings: dict[int, int] = {}
    for batch in scan(settings.connection, settings.changelog, ends, READ_COMMITTED, group=settings.group):
        for record in batch:
            key, value = record.key(), record.value()
            if key == CHECKPOINT_KEY and value is not None:
                standings[record.partition()] = parse_checkpoint(value)[0]
            elif key is not None:
                _set(values[record.partition()], key, value)
    return values, standings


def _results(settings: TotalsSettings, client: AdminClient, topics: Topics) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = {}
    for batch in _values(settings, settings.output, _ends(client, topics.output)):
        for key, value in batch:
            _set(values, key or b"", value)
    return values


def _set(values: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _compare_states(
    topics: Topics,
    home: Path,
    changelog: Mapping[int, Mapping[bytes, bytes]],
    standings: Mapping[int, int],
    comparison: Comparison,
) -> None:
    """Compare the states that were closed cleanly at the changelog's position; note why others are left out."""
    for p, wanted in changelog.items():
        place = home / str(p)
        if not RocksStore.trusted(place, topics.changelog.topic_id):
            comparison.notes.append(f"state {place}: none that was closed in good order; it will be restored")
            continue
        store = RocksStore(place, topics.changelog.topic_id)
        try:
            until = -1 if store.checkpoint is None else store.checkpoint.until
            if until == standings.get(p, -1):
                comparison.compare(f"state {place}", wanted, dict(store.items()))
            else:
                comparison.notes.append(f"state {place}: stands at {until}; it will be restored from there")
        finally:
            store.close()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
