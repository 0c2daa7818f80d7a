"""Where the partitions stand, and which of them may be worked on; refuse where going on would guess."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from brew.cluster import GroupFacts, Unknown
from brew.deadline import Deadline
from brew.driver import missing_offsets
from brew.driver.ownership import ALL_PARTITIONS
from brew.driver.progress import ProgressView
from brew.driver.run_context import Interval, RunContext
from brew.errors import DeadlineExceeded, Refused
from brew.kafka import topics
from brew.kafka.clients import admin, consumer, is_cut_off, mapped
from brew.kafka.groups import Groups
from brew.kafka.offsets import committed, log_offsets
from brew.kafka.topics import Topic, TopicSpec
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, check, position_metadata
from brew.preflight import checks
from brew.preflight.finding import enforce
from brew.range_transaction import Targets
from brew.settings import PipelineSettings

_SLACK_BYTES = 65_536
_STABLE_S = 2.0


class OffsetsClient:
    """One admin client and one reader of positions, kept for the run; used by one thread."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.admin, self.groups = admin(settings.connection), Groups(settings.connection)
        self._open()

    def _open(self) -> None:
        connection, group = self._settings.connection, self._settings.group
        # Not waiting for pending offsets: a hint never runs ahead of the truth, and a dead producer can't block it.
        self._reader = consumer(connection, group, READ_UNCOMMITTED)
        self._stable_reader = consumer(connection, group, READ_COMMITTED)

    def input_topic(self, deadline: Deadline) -> Topic:
        with mapped("survey"):
            found = topics.describe(self.admin, [self._settings.input], deadline).get(self._settings.input)
        if found is None:
            raise Refused(
                f"input topic {self._settings.input!r} is not on {self._settings.connection.bootstrap}; "
                "make it (`make topic-create-all`), or name another with INPUT_TOPIC (--input)"
            )
        return found

    def output_topics(self, source: Topic, deadline: Deadline) -> dict[str, Topic]:
        """The output topics and the dead-letter topic, made like the input where they are missing."""
        wanted = [*self._settings.outputs, self._settings.dead_letter]
        with mapped("survey"):
            found = topics.describe(self.admin, wanted, deadline)
            if len(found) < len(wanted):
                # Enrichment and headers make records larger than their source.
                limit = topics.max_message_bytes(self.admin, source.name, deadline) + _SLACK_BYTES
                config = {topics.MAX_MESSAGE_BYTES: str(limit)}
                missing = [TopicSpec(name, source.partitions, config) for name in wanted if name not in found]
                topics.create(self.admin, missing, deadline)
                found = topics.describe_all(self.admin, wanted, deadline)
        return found

    def facts(
        self, source: Topic, partitions: Iterable[int], deadline: Deadline, known: Mapping[int, int]
    ) -> list[PartitionFacts]:
        """
        The facts of these partitions; the position first, so that it never exceeds the log read after it.

        Where the hint is behind what this driver itself saw committed (``known``), the stable position is asked for:
        a commit's marker in the offsets topic follows a moment later, and a plan from behind would read rows twice.
        A position that is behind even so may be told by a coordinator that no longer is one: other clients ask then.
        """
        chosen = list(partitions)
        if not chosen:
            return []
        positions = committed(self._reader, source.name, chosen, deadline)

        def behind() -> list[int]:
            return [p for p in chosen if p in known and ((at := positions[p]) is None or at.offset < known[p])]

        if behind():
            with contextlib.suppress(DeadlineExceeded):
                positions |= committed(self._stable_reader, source.name, behind(), Deadline(_STABLE_S))
        if behind():
            self._close_readers()
            self._open()
            positions |= committed(self._reader, source.name, behind(), deadline)
        logs = log_offsets(self.admin, source.name, chosen, deadline)
        return [PartitionFacts(source.name, p, source.topic_id, positions[p], logs[p]) for p in chosen]

    def replace_if_cut_off(self) -> None:
        """After a question that failed: clients that have lost the brokers for good are replaced, all of them."""
        connection, topic = self._settings.connection, self._settings.input
        if any(is_cut_off(one, connection, topic) for one in (self.admin, self._reader, self._stable_reader)):
            self._close_readers()
            self.admin = admin(connection)
            self._open()

    def close(self) -> None:
        self._close_readers()
        self.groups.close()

    def _close_readers(self) -> None:
        self._reader.close()
        self._stable_reader.close()


DescribeGroup = Callable[[], GroupFacts | Unknown]


class GroupMembershipCheck:
    """
    Members commit positions of their own; the checks before a run see only those who were there first.

    The lanes of a run share ``every``: whoever looks first after a few seconds asks, and its refusal ends them all.
    """

    def __init__(self, settings: PipelineSettings, every: Interval) -> None:
        self._settings, self._every = settings, every

    def look(self, ask: DescribeGroup) -> None:
        """
        Ask every few seconds; brokers that do not tell are asked again.

        Raises:
            Refused: there are members, and nobody allowed that.
        """
        if self._every.due():
            enforce([checks.members(self._settings.group, ask())], self._settings.allow)


_ASK_S = 5.0


def report_blocking_transactions(settings: PipelineSettings, partitions: Sequence[int], view: ProgressView) -> None:
    """One note per open transaction; telling is a courtesy, so a broker that can't answer stops nothing."""
    # A third of the start of a run without Spark, and hardly ever needed.
    from brew.kafka import kafka_python  # noqa: PLC0415

    try:
        found = kafka_python.open_transactions(settings.connection, settings.input, partitions, Deadline(_ASK_S))
    except Exception as error:  # noqa: BLE001 - brokers before 3.0 can't answer; the run goes on
        view.tell(f"partitions {list(partitions)} are blocked; by whom is not known: {error}")
        return
    for transaction in found:
        age = "" if transaction.age_s is None else f", open for {transaction.age_s:.0f} s"
        named = transaction.transactional_id
        who = f"transactional id {named!r}" if named else "a transaction whose name takes Describe on transactional ids"
        view.tell(
            f"{settings.input}[{transaction.partition}] is blocked at offset {transaction.first_offset} by "
            f"{who} (producer {transaction.producer_id}, "
            f"epoch {transaction.producer_epoch}{age}); going on when it ends"
        )


_SURVEY_S = 30.0
_SETTLE_S = 30.0
"""Then a transaction that hides output, and is nobody's whose partitions we were given, has to be ended by people."""
_BLOCKED_NOTE_S = 5.0


class PartitionSurvey:
    """
    The brokers' answers, checked; ``known`` is where this run's transactions saw the group (partition -> offset),
    ``ours`` which partitions it may touch, other drivers do the rest.
    """

    def __init__(self, shared: RunContext) -> None:
        self._shared, self._settings = shared, shared.settings
        self._offsets = OffsetsClient(shared.settings)
        self._membership = GroupMembershipCheck(shared.settings, shared.member_check_due)
        self._topics = shared.targets
        self._may_start: set[int] = set()
        self._settling: missing_offsets.OutputWait | None = None
        self._next_note = 0.0
        self.known: dict[int, int] = {}
        self.ours: Container[int] = ALL_PARTITIONS

    def look(self, mine: Callable[[Topic], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        """
        The facts of the partitions ``mine`` picks, and whether these are all of them: some may have to be asked again.

        Raises:
            Refused: going on would lose or double records, or somebody has joined the group.
            KafkaFailure, DeadlineExceeded: the brokers did not say.
        """
        settings, deadline = self._settings, Deadline(_SURVEY_S)
        self._membership.look(lambda: self._offsets.groups.now(settings.group, deadline))
        source = self._offsets.input_topic(deadline)
        if source.partitions != self._topics[source.name].partitions:
            self._topics = {**self._offsets.output_topics(source, deadline), source.name: source}
            self._shared.ownership.set_partitions(range(source.partitions))
        busy = set(self._shared.running)
        facts = self._offsets.facts(source, mine(source), deadline, self.known)
        asked = len(facts)
        for fact in facts:
            check(fact, settings.group)
            if fact.committed is not None:
                self._may_start.discard(fact.partition)
                self._report_moved_back(fact.partition, fact.committed.offset)
        # Whoever has a partition meanwhile may commit in it.
        self._may_start = {p for p in self._may_start if p in self.ours}
        waiting = [f for f in facts if f.committed is None and f.partition in self.ours]
        # Where this run works its own attempts fence; a fence from here would end one of them.
        unknown = [f for f in waiting if f.partition not in self._may_start | busy]
        if unknown:
            known = [f for f in facts if f.committed is not None]
            # Partitions that the output was given since the run began may hold what came out.
            self._topics = {**self._offsets.output_topics(source, deadline), source.name: source}
            self._resolve(unknown, [f for f in known if f.partition in self.ours and f.partition not in busy])
            hold = {f.partition for f in unknown if f.log.end > f.log.first} - self._may_start
            facts = [f for f in facts if f.partition not in hold]
        else:
            self._settling = None
        self._shared.board.survey(facts, self.ours)
        return facts, len(facts) == asked

    def renew_clients(self) -> None:
        """After a look that failed."""
        self._offsets.replace_if_cut_off()

    def _resolve(self, unknown: Iterable[PartitionFacts], idle: Iterable[PartitionFacts]) -> None:
        """Learn which of ``unknown`` may start; what an open transaction hides is looked for again, for a while."""
        settling = self._settling or missing_offsets.OutputWait(Deadline(_SETTLE_S))
        try:
            allowed = missing_offsets.resolve(self._settings, unknown, self._topics, idle, settling)
        except missing_offsets.HiddenOutputError as hidden:
            if settling.deadline.expired():
                raise Refused(f"offsets-vanished: {hidden}; end it, then run again") from hidden
            self._settling = settling
        else:
            self._settling = None
            self._may_start |= allowed
            for partition in allowed:  # begins anew: the input may be another one by now
                self.known.pop(partition, None)

    def first_attempt(self, fact: PartitionFacts) -> bool:
        """
        True where an attempt may begin without a committed offset; asked once for each attempt.

        The permission covers this attempt alone: whatever becomes of it, it may have committed, and offsets may vanish.
        """
        self._may_start.discard(fact.partition)
        return fact.committed is None

    def _report_moved_back(self, partition: int, offset: int) -> None:
        """One truth: a position that somebody moved back is where this run goes on, and it says so."""
        if offset < self.known.get(partition, 0):
            self._shared.view.tell(
                f"offset-gap: partition {partition} was committed up to {self.known[partition]}, the group now stands "
                f"at {offset}: an outsider moved the position back; going on from there"
            )
            self.known[partition] = offset

    def apply_outcome(self, outcome: Outcome) -> None:
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

    def targets(self, fact: PartitionFacts) -> Targets:
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
            {name: partition_in(name) for name in settings.also_output},
        )

    def report_blocking_transactions(self, partitions: Iterable[int]) -> None:
        """A note every few seconds about the upstream transactions that hold these partitions back."""
        now = time.monotonic()
        if now >= self._next_note:
            self._next_note = now + _BLOCKED_NOTE_S
            report_blocking_transactions(self._settings, list(partitions), self._shared.view)

    def close(self) -> None:
        self._offsets.close()
