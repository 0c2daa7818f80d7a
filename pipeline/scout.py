"""Find out where the partitions stand, and which of them may be worked on; refuse where going on would guess."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable

from pipeline import missing
from pipeline.blocked import tell_who_blocks
from pipeline.outcome import Outcome, Status
from pipeline.ownership import EVERY
from pipeline.plan import Fact, check, position_metadata
from pipeline.ports import Targets
from pipeline.shared import Shared
from pipeline.strangers import Strangers
from pipeline.survey import Surveyor
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.topics import Topic

_SURVEY_S = 30.0
_SETTLE_S = 30.0
"""Then a transaction that hides output, and is nobody's whose partitions we were given, has to be ended by people."""
_BLOCKED_NOTE_S = 5.0


class Scout:
    """
    The brokers' answers, checked; ``known`` is where this run's transactions saw the group (partition -> offset),
    ``ours`` which partitions it may touch, other drivers do the rest.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared, self._settings = shared, shared.settings
        self._surveyor = Surveyor(shared.settings)
        self._strangers = Strangers(shared.settings, shared.members_due)
        self._topics = shared.targets
        self._may_start: set[int] = set()
        self._settling: missing.Settling | None = None
        self._next_note = 0.0
        self.known: dict[int, int] = {}
        self.ours: Container[int] = EVERY

    def look(self, mine: Callable[[Topic], Iterable[int]]) -> tuple[list[Fact], bool]:
        """
        The facts of the partitions ``mine`` picks, and whether these are all of them: some may have to be asked again.

        Raises:
            Refused: going on would lose or double records, or somebody has joined the group.
            KafkaFailure, DeadlineExceeded: the brokers did not say.
        """
        settings, deadline = self._settings, Deadline(_SURVEY_S)
        self._strangers.look(lambda: self._surveyor.groups.now(settings.group, deadline))
        source = self._surveyor.input_topic(deadline)
        if source.partitions != self._topics[source.name].partitions:
            self._topics = {**self._surveyor.output_topics(source, deadline), source.name: source}
            self._shared.ownership.cover(range(source.partitions))
        busy = set(self._shared.running)
        facts = self._surveyor.facts(source, mine(source), deadline, self.known)
        asked = len(facts)
        for fact in facts:
            check(fact, settings.group)
            if fact.committed is not None:
                self._may_start.discard(fact.partition)
                self._notice_step_back(fact.partition, fact.committed.offset)
        # Whoever has a partition meanwhile may commit in it.
        self._may_start = {p for p in self._may_start if p in self.ours}
        waiting = [f for f in facts if f.committed is None and f.partition in self.ours]
        # Where this run works its own attempts fence; a fence from here would end one of them.
        unknown = [f for f in waiting if f.partition not in self._may_start | busy]
        if unknown:
            known = [f for f in facts if f.committed is not None]
            # Partitions that the output was given since the run began may hold what came out.
            self._topics = {**self._surveyor.output_topics(source, deadline), source.name: source}
            self._resolve(unknown, [f for f in known if f.partition in self.ours and f.partition not in busy])
            hold = {f.partition for f in unknown if f.log.end > f.log.first} - self._may_start
            facts = [f for f in facts if f.partition not in hold]
        else:
            self._settling = None
        self._shared.board.survey(facts, self.ours)
        return facts, len(facts) == asked

    def _resolve(self, unknown: Iterable[Fact], idle: Iterable[Fact]) -> None:
        """Learn which of ``unknown`` may start; what an open transaction hides is looked for again, for a while."""
        settling = self._settling or missing.Settling(Deadline(_SETTLE_S))
        try:
            allowed = missing.resolve(self._settings, unknown, self._topics, idle, settling)
        except missing.HiddenError as hidden:
            if settling.deadline.expired():
                raise Refused(f"offsets-vanished: {hidden}; end it, then run again") from hidden
            self._settling = settling
        else:
            self._settling = None
            self._may_start |= allowed
            for partition in allowed:  # begins anew: the input may be another one by now
                self.known.pop(partition, None)

    def first_attempt(self, fact: Fact) -> bool:
        """
        True where an attempt may begin without a committed offset; asked once for each attempt.

        The permission covers this attempt alone: whatever becomes of it, it may have committed, and offsets may vanish.
        """
        self._may_start.discard(fact.partition)
        return fact.committed is None

    def _notice_step_back(self, partition: int, offset: int) -> None:
        """One truth: a position that somebody moved back is where this run goes on, and it says so."""
        if offset < self.known.get(partition, 0):
            self._shared.view.tell(
                f"offset-gap: partition {partition} was committed up to {self.known[partition]}, the group now stands "
                f"at {offset}: an outsider moved the position back; going on from there"
            )
            self.known[partition] = offset

    def heed(self, outcome: Outcome) -> None:
        """Take in where a transaction found the group, or put it: what a survey tells later may be older than that."""
        if outcome.status is Status.COMMITTED:
            self.known[outcome.partition] = outcome.until
        elif outcome.status in {Status.AHEAD, Status.ALREADY_DONE}:
            self.known[outcome.partition] = outcome.position
        elif outcome.status is Status.OFFSET_GAP:
            self._gap(outcome.partition, outcome.start, outcome.position)

    def _gap(self, partition: int, start: int, position: int) -> None:
        """A transaction found the position below where it was to start: forget what was known, and say so."""
        self.known.pop(partition, None)
        self._shared.view.tell(
            f"offset-gap: partition {partition} was planned from {start}, the group stands at {position}: "
            "an outsider moved the position; planning again from there"
        )

    def targets(self, fact: Fact) -> Targets:
        """Where the records of this partition go."""
        settings = self._settings

        def partition_in(name: str) -> int:
            """The same partition where the counts are equal: order stays, and a crash freezes one LSO only."""
            same = self._topics[name].partitions == self._topics[settings.input].partitions
            return fact.partition if same else -1

        return Targets(
            settings.output,
            settings.dead_letter,
            partition_in(settings.output),
            partition_in(settings.dead_letter),
            position_metadata(fact.topic_id),
            self._shared.dead_letter_max_bytes,
        )

    def tell_who_blocks(self, partitions: Iterable[int]) -> None:
        """A note every few seconds about the upstream transactions that hold these partitions back."""
        now = time.monotonic()
        if now >= self._next_note:
            self._next_note = now + _BLOCKED_NOTE_S
            tell_who_blocks(self._settings, list(partitions), self._shared.view)

    def close(self) -> None:
        self._surveyor.close()
