"""The delivery status of one order, derived from its copies in the logs; pure."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from brew.names import quantity
from brew.offsets import Headers, SourcePosition
from brew.records import REPLAYED_FROM
from operations.record_status import RecordState, RecordWriter, Span, Visibility

_MOST_BYTES = 1_000_000  # a run's default maximum; a larger value is not parsed for its id


@dataclass(frozen=True, slots=True)
class Order:
    """``order_id`` is None if the value has none; ``replay_of`` is the dead letter that it was replayed from."""

    order_id: str | None
    digest: bytes
    replay_of: SourcePosition | None = None

    @classmethod
    def of(cls, value: bytes | None, headers: Headers | None) -> Order:
        origin = dict(headers or ()).get(REPLAYED_FROM)
        replay_of = None if origin is None else SourcePosition.parse(origin.decode("utf-8", "replace"))
        return cls(order_id(value), hashlib.sha256(value or b"").digest(), replay_of)

    @property
    def identity(self) -> str | bytes:
        """Equal for the same order: its id, or its bytes if it has none."""
        return self.digest if self.order_id is None else self.order_id


def order_id(value: bytes | None) -> str | None:
    if value is None or len(value) > _MOST_BYTES:
        return None
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    identifier = order.get("order_id") if isinstance(order, dict) else None
    return str(identifier) if isinstance(identifier, str | int) and not isinstance(identifier, bool) else None


class DeliveryStatus(enum.StrEnum):
    """Where an order is; the last three violate the guarantee."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    DROPPED = "dropped"
    WAITING = "waiting"
    IN_FLIGHT = "in-flight"
    NOT_READ = "not-read"
    NOT_VISIBLE = "not-visible"
    NOT_FOUND = "not-found"
    TWICE = "twice"
    LOST = "lost"
    GHOST = "ghost"


BROKEN = frozenset({DeliveryStatus.TWICE, DeliveryStatus.LOST, DeliveryStatus.GHOST})
_STANDING = frozenset({RecordState.COMMITTED, RecordState.PLAIN})


@dataclass(frozen=True, slots=True)
class Copy:
    """One record made from an order; ``span``: its transaction's input range; ``index``: which of several outputs."""

    role: str
    topic: str
    partition: int
    offset: int
    written: RecordWriter
    view: Visibility
    transactional_id: str | None = None
    span: Span | None = None
    reason: str | None = None
    message: str = ""
    index: int = 0

    @property
    def location(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class OrderHistory:
    """
    An input record and all its copies; ``complete``: no copy can be missing by retention, compaction or a wrong topic.

    ``position``: the group's committed offset in that partition. ``source`` and ``order`` are None if retention deleted
    the record. ``dropped``: the run's function produces no output for it.
    """

    at: SourcePosition
    source: Copy | None
    copies: tuple[Copy, ...]
    position: int | None
    complete: bool = True
    order: Order | None = None
    replays: tuple[str, ...] = ()
    dropped: bool = False

    @property
    def location(self) -> str:
        return str(self.at)

    @property
    def replayed_from(self) -> SourcePosition | None:
        return None if self.order is None else self.order.replay_of

    @property
    def seen(self) -> bool:
        """True if the input record exists and was not aborted."""
        return self.source is not None and self.source.written.state is not RecordState.ABORTED

    @property
    def letters(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.reason is not None and copy.written.state in _STANDING]

    @property
    def done(self) -> bool:
        return self.position is not None and self.position > self.at.offset

    def group_view(self) -> str:
        if self.position is None:
            return "not processed yet: there is no committed offset"
        if self.done:
            return f"processed: the committed offset is {self.position}"
        if any(copy.written.state is RecordState.OPEN for copy in self.copies):
            return f"in flight: the committed offset is {self.position}, and a transaction is open"
        return f"not processed yet: the committed offset is {self.position}"


def link_replays(histories: Iterable[OrderHistory]) -> list[OrderHistory]:
    """Return the histories by position, each with those input records that its dead letters were replayed as."""
    ordered = sorted(histories, key=lambda history: history.at)
    back: defaultdict[str, list[str]] = defaultdict(list)
    for history in ordered:
        if history.seen and history.replayed_from is not None:
            back[str(history.replayed_from)].append(history.location)
    return [
        replace(
            history, replays=tuple(replayed_at for letter in history.letters for replayed_at in back[letter.location])
        )
        for history in ordered
    ]


def delivery_status(history: OrderHistory) -> tuple[DeliveryStatus, str]:
    standing = [copy for copy in history.copies if copy.written.state in _STANDING]
    aborted = sum(copy.written.state is RecordState.ABORTED for copy in history.copies)
    if history.source is not None and history.source.written.state is RecordState.ABORTED:
        if standing:
            return DeliveryStatus.GHOST, "the input record was aborted, but it was delivered"
        return DeliveryStatus.NOT_VISIBLE, "the input record itself was aborted, so it is not to be delivered"
    if repeated := _repeated(standing):
        return DeliveryStatus.TWICE, _why_twice(repeated)
    return _delivered(history, standing, aborted) if standing else _not_found(history)


def _repeated(standing: list[Copy]) -> list[Copy]:
    """Return copies of an output that has several; a rejected record has one dead letter, and no output."""
    if any(copy.reason is not None for copy in standing):
        return standing if len(standing) > 1 else []
    counts = Counter(copy.index for copy in standing)
    return [copy for copy in standing if counts[copy.index] > 1]


def _why_twice(standing: list[Copy]) -> str:
    plain = [copy for copy in standing if copy.written.state is RecordState.PLAIN]
    within = [copy for copy in standing if copy.written.state is RecordState.COMMITTED]
    locations = " and ".join(copy.location for copy in standing)
    writers = sorted({copy.transactional_id or f"producer {copy.written.producer_id}" for copy in within})
    if not within:
        return f"{len(plain)} copies ({locations}), all written outside of transactions: by another program"
    if plain:
        return (
            f"{len(standing)} copies ({locations}), {len(within)} committed by {' and '.join(writers)} and "
            f"{len(plain)} written outside of transactions: another program writes to this topic"
        )
    count = _transactions(within)
    text = f"{len(within)} copies were committed ({locations}), in {quantity(count, 'transaction')}"
    if len(writers) > 1:
        return f"{text} of {' and '.join(writers)}: two groups, or two programs, write to this topic"
    if count == 1:
        return f"{text} of {writers[0]}: its writer produced the record more than once"
    return (
        f"{text} of {writers[0]}: the committed offset was reset to an earlier one, or a run started over "
        "(--on-missing-position start-over)"
    )


def _transactions(copies: list[Copy]) -> int:
    """Count transactions by their markers, one per partition; a producer may write several in one epoch."""
    markers: defaultdict[tuple[int, int], defaultdict[tuple[str, int], set[int | None]]]
    markers = defaultdict(lambda: defaultdict(set))
    for copy in copies:
        writer = (copy.written.producer_id, copy.written.producer_epoch)
        markers[writer][copy.topic, copy.partition].add(copy.written.marker_offset)
    return sum(max(len(offsets) for offsets in partitions.values()) for partitions in markers.values())


def _delivered(history: OrderHistory, standing: list[Copy], aborted: int) -> tuple[DeliveryStatus, str]:
    more, copy = "", standing[0]
    if aborted:
        plural = "ies" if aborted > 1 else "y"
        more = f"; also {aborted} aborted cop{plural} (read_uncommitted readers see {aborted + len(standing)} copies)"
    if not all(output.view.visible for output in standing):
        return DeliveryStatus.WAITING, f"committed, but readers wait for an older open transaction{more}"
    if len(standing) > 1:
        locations = ", ".join(output.location for output in sorted(standing, key=lambda output: output.index))
        return DeliveryStatus.DELIVERED, f"delivered once, as {len(standing)} outputs: {locations}{more}"
    if copy.reason is not None:
        why = f"{copy.reason}: {copy.message}" if copy.message else copy.reason
        back = "".join(f"; replayed as {replay}" for replay in history.replays)
        return DeliveryStatus.REJECTED, f"{why}; dead letter {copy.location}{back}{more}"
    return DeliveryStatus.DELIVERED, f"delivered once, to {copy.topic}[{copy.partition}] offset {copy.offset}{more}"


def _not_found(history: OrderHistory) -> tuple[DeliveryStatus, str]:
    source = history.source
    aborted = sum(copy.written.state is RecordState.ABORTED and copy.index == 0 for copy in history.copies)
    tried = f", {quantity(aborted, 'attempt')} aborted" if aborted else ""
    if any(copy.written.state is RecordState.OPEN for copy in history.copies):
        return DeliveryStatus.IN_FLIGHT, f"written, and its transaction is still open{tried}"
    if source is not None and not source.view.visible:
        return DeliveryStatus.NOT_VISIBLE, f"not visible on the input: {source.view.rule}"
    if not history.done and source is None:
        why = "the input record was deleted before the group had committed an offset past it, and no copy was found"
        return DeliveryStatus.NOT_FOUND, f"{why}{tried}"
    if not history.done:
        return DeliveryStatus.NOT_READ, f"not committed yet{tried}; the next attempt processes it"
    if history.dropped:
        return DeliveryStatus.DROPPED, "the transformation drops it, and the committed offset is past it"
    if source is None or not history.complete:
        missing = "the output logs are incomplete (retention, compaction, or no such topic)"
        why = "the input record was deleted" if source is None else missing
        return DeliveryStatus.NOT_FOUND, f"the committed offset is past it, no copy was found, and {why}"
    why = (
        "the offset was reset to a later one, the transformation drops it (check with --transform), or it went to a "
        "topic that is not searched (--also-output)"
    )
    return DeliveryStatus.LOST, f"the committed offset is past it, and no committed copy exists: {why}"


class Verdict(enum.StrEnum):
    """How several records relate; the first one violates the guarantee."""

    DELIVERED_TWICE = "delivered-twice"
    WRITTEN_TWICE = "written-twice"
    REPLAYED = "replayed"
    DIFFERENT = "different"


def verdict(histories: Sequence[OrderHistory]) -> tuple[Verdict, str] | None:
    """Return the first rule that matches, and a sentence; None if there is nothing to compare."""
    if twice := [history for history in histories if delivery_status(history)[0] is DeliveryStatus.TWICE]:
        which = f"{twice[0].location} and {len(twice) - 1} more were" if len(twice) > 1 else f"{twice[0].location} was"
        return Verdict.DELIVERED_TWICE, f"{which} delivered more than once: {delivery_status(twice[0])[1]}"
    if len(histories) < 2:  # noqa: PLR2004 - a comparison needs two
        return None
    # What upstream wrote, and readers see, by order; replays are written by us, not by upstream.
    writings: defaultdict[str | bytes, list[OrderHistory]] = defaultdict(list)
    for history in histories:
        if history.seen and history.order is not None and history.replayed_from is None:
            writings[history.order.identity].append(history)
    for several in writings.values():
        if len(several) > 1:
            return Verdict.WRITTEN_TWICE, _written(several)
    if replays := [history for history in histories if history.seen and history.replayed_from is not None]:
        lines = (
            f"{replay.location} is the replay of dead letter {replay.replayed_from} ({delivery_status(replay)[0]})"
            for replay in replays
        )
        return Verdict.REPLAYED, f"no duplicate: {'; '.join(lines)}"
    return Verdict.DIFFERENT, f"{len(histories)} records; the visible ones are all different orders"


def _written(several: Sequence[OrderHistory]) -> str:
    orders = [history.order for history in several if history.order is not None]
    name = "a record" if orders[0].order_id is None else f"order {orders[0].order_id!r}"
    alike = "with the same bytes" if len({order.digest for order in orders}) == 1 else "with different values"
    answers = [delivery_status(history)[0] for history in several]
    locations = " and ".join(history.location for history in several)
    ours = answers[0].value if len(set(answers)) == 1 else ", ".join(answers)
    return (
        f"upstream wrote {name} {len(several)} times, {alike}, at {locations}; "
        f"the pipeline treats each as a separate order ({ours})"
    )
