"""Follow dead letters that were written back: from a replay to the record that it was, and from that to its replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pipeline.operate.judge.order import Order
from pipeline.operate.judge.story import Story, linked
from pipeline.operate.trace import Tracer, earliest
from protocol.errors import Refused
from protocol.kafka.scan import LogRecord
from protocol.position import SourcePosition


def family(tracer: Tracer, asked: Iterable[SourcePosition]) -> list[Story]:
    """What became of each of these, and of the records that they were, or have become, by a replay; by place."""
    stories = tracer.stories(_with_originals(tracer, asked))
    looked: set[str] = set()
    while letters := {letter.place for one in stories for letter in one.letters} - looked:
        looked |= letters
        found = _replays(tracer, stories, letters) - {one.at for one in stories}
        stories += tracer.stories(sorted(found)) if found else []
    return linked(stories)


def _with_originals(tracer: Tracer, asked: Iterable[SourcePosition]) -> list[SourcePosition]:
    found = dict.fromkeys(asked)
    new = deque(found)
    while new:
        origin = _original(tracer, tracer.source(new.popleft()))
        if origin is not None and origin not in found:
            found[origin] = None
            new.append(origin)
    return list(found)


def _original(tracer: Tracer, record: LogRecord | None) -> SourcePosition | None:
    """The input record whose dead letter this one was."""
    letter = None if record is None else Order.of(None, record.headers()).replay_of
    if letter is None or letter.topic != tracer.places.dead_letter:
        return None
    try:
        origin = tracer.origin(letter.topic, letter.partition, letter.offset)
    except Refused as error:
        tracer.not_told.append(f"the record that was written back from {letter}: {error}")
        return None
    return origin if origin.topic == tracer.places.input else None


def _replays(tracer: Tracer, stories: Iterable[Story], letters: set[str]) -> set[SourcePosition]:
    """The input records that were written back from these dead letters; a replay keeps the key, and is newer."""
    sources = [tracer.source(one.at) for one in stories if one.letters]
    keys = {one.key() for one in sources if one is not None} if None not in sources else None

    def fits(record: LogRecord) -> bool:
        if keys is not None and record.key() not in keys:
            return False
        return str(Order.of(None, record.headers()).replay_of) in letters

    return set(tracer.matching(fits, earliest(sources))[0])
