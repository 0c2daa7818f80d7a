"""One order's way, and the answer to "where is it?" and "why twice?"; pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.operate.judge.fate import Fate, View, Written
from pipeline.operate.judge.order import Order
from pipeline.operate.judge.ranges import Span
from protocol.position import SourcePosition


class Answer(enum.StrEnum):
    """Where an order is; the last three break the promise."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    WAITING = "waiting"
    IN_FLIGHT = "in-flight"
    NOT_READ = "not-read"
    NOT_VISIBLE = "not-visible"
    NOT_FOUND = "not-found"
    TWICE = "twice"
    LOST = "lost"
    GHOST = "ghost"


BROKEN = frozenset({Answer.TWICE, Answer.LOST, Answer.GHOST})
_STANDING = frozenset({Fate.COMMITTED, Fate.PLAIN})


@dataclass(frozen=True, slots=True)
class Copy:
    """
    One physical record that came of an order.

    ``span``: the input range of its transaction, where that is known. ``reason``, ``message``: of a dead letter.
    """

    role: str
    topic: str
    partition: int
    offset: int
    written: Written
    view: View
    transactional_id: str | None = None
    span: Span | None = None
    reason: str | None = None
    message: str = ""

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Story:
    """
    An input record and all that came of it; ``complete``: no part of the output logs was left out.

    ``position`` is the group's committed offset in that partition; ``source`` and ``order`` are None where retention
    took the record. ``replays``: the input records that its dead letters were written back as.
    """

    at: SourcePosition
    source: Copy | None
    copies: tuple[Copy, ...]
    position: int | None
    complete: bool = True
    order: Order | None = None
    replays: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return str(self.at)

    @property
    def seen(self) -> bool:
        """True when the input record is there and nobody aborted it."""
        return self.source is not None and self.source.written.fate is not Fate.ABORTED

    @property
    def letters(self) -> list[Copy]:
        """The dead letters of it that stand."""
        return [one for one in self.copies if one.reason is not None and one.written.fate in _STANDING]

    @property
    def done(self) -> bool:
        """True when the group stands behind the order."""
        return self.position is not None and self.position > self.at.offset

    def group_view(self) -> str:
        """The group's offset against this one."""
        if self.position is None:
            return "no committed offset: not read yet"
        if self.done:
            return f"done: the group stands at {self.position}"
        if any(one.written.fate is Fate.OPEN for one in self.copies):
            return f"in flight: the group stands at {self.position}, and a transaction is open"
        return f"not read yet: the group stands at {self.position}"


def linked(stories: Iterable[Story]) -> list[Story]:
    """The same by place, each with the input records among them that its dead letters were written back as."""
    told = sorted(stories, key=lambda one: one.at)
    back: defaultdict[str, list[str]] = defaultdict(list)
    for one in told:
        if one.seen and one.order is not None and one.order.replay_of is not None:
            back[str(one.order.replay_of)].append(one.place)
    return [replace(one, replays=tuple(at for letter in one.letters for at in back[letter.place])) for one in told]


def answer(story: Story) -> tuple[Answer, str]:
    """The answer and one sentence for it."""
    standing = [one for one in story.copies if one.written.fate in _STANDING]
    aborted = sum(one.written.fate is Fate.ABORTED for one in story.copies)
    if story.source is not None and story.source.written.fate is Fate.ABORTED:
        if standing:
            return Answer.GHOST, "the input record was aborted, and yet it was delivered"
        return Answer.NOT_VISIBLE, "the input record itself was aborted: nobody is to see it"
    if len(standing) > 1:
        return Answer.TWICE, _why_twice(standing)
    if standing:
        return _delivered(story, standing[0], aborted)
    return _nowhere(story, aborted)


def _why_twice(standing: list[Copy]) -> str:
    """How many copies stand, what wrote them, and what that points to."""
    plain = [one for one in standing if one.written.fate is Fate.PLAIN]
    within = [one for one in standing if one.written.fate is Fate.COMMITTED]
    places = " and ".join(one.place for one in standing)
    writers = sorted({one.transactional_id or f"producer {one.written.producer_id}" for one in within})
    if not within:
        return f"{len(plain)} copies ({places}), all written in no transaction at all: by another program"
    if plain:
        return (
            f"{len(standing)} copies ({places}), {len(within)} committed by {' and '.join(writers)} and {len(plain)} "
            "written in no transaction at all: another program writes to this topic"
        )
    count = _transactions(within)
    text = f"{len(within)} copies were committed ({places}), in {count} transaction{'s' * (count != 1)}"
    if len(writers) > 1:
        return f"{text} of {' and '.join(writers)}: two groups, or two programs, write to this topic"
    if count == 1:
        return f"{text} of {writers[0]}: its writer produced the record more than once"
    return (
        f"{text} of {writers[0]}: the group's position was moved back by hand, or a run was told to start over "
        "(--on-missing-position start-over)"
    )


def _transactions(copies: list[Copy]) -> int:
    """A transaction has one marker in each partition; a producer may write several transactions in one epoch."""
    markers: defaultdict[tuple[int, int], defaultdict[tuple[str, int], set[int | None]]]
    markers = defaultdict(lambda: defaultdict(set))
    for one in copies:
        writer = (one.written.producer_id, one.written.producer_epoch)
        markers[writer][one.topic, one.partition].add(one.written.marker_offset)
    return sum(max(len(found) for found in places.values()) for places in markers.values())


def _delivered(story: Story, copy: Copy, aborted: int) -> tuple[Answer, str]:
    more = ""
    if aborted:
        plural = "ies" if aborted > 1 else "y"
        more = f"; {aborted} aborted cop{plural} beside it: read_uncommitted readers see {aborted + 1}"
    if not copy.view.visible:
        return Answer.WAITING, f"committed, but readers wait for an older open transaction{more}"
    if copy.reason is not None:
        why = f"{copy.reason}: {copy.message}" if copy.message else copy.reason
        back = "".join(f"; written back as {one}" for one in story.replays)
        return Answer.REJECTED, f"{why}; dead letter {copy.place}{back}{more}"
    return Answer.DELIVERED, f"delivered once, to {copy.topic}[{copy.partition}] offset {copy.offset}{more}"


def _nowhere(story: Story, aborted: int) -> tuple[Answer, str]:
    source = story.source
    tried = f", {aborted} attempt{'s' * (aborted != 1)} aborted" if aborted else ""
    if any(one.written.fate is Fate.OPEN for one in story.copies):
        return Answer.IN_FLIGHT, f"written, and its transaction is still open{tried}"
    if source is not None and not source.view.visible:
        return Answer.NOT_VISIBLE, f"not visible on the input: {source.view.rule}"
    if not story.done:
        return Answer.NOT_READ, f"nothing committed yet{tried}; the next run reads it again"
    if source is None or not story.complete:
        why = "the input record is gone" if source is None else "a part of the output logs is gone or was left out"
        return Answer.NOT_FOUND, f"the group stands behind it, no copy was found, and {why}"
    return Answer.LOST, "the group stands behind it, and no committed copy exists: somebody moved the position forward"
