"""Partition survey: the offsets of all partitions, and which of them may be processed; refuses unsafe states."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from brew.claims.heartbeater import ALL_PARTITIONS
from brew.deadline import Deadline
from brew.driver import missing_offsets
from brew.driver.run_context import Interval, RunContext
from brew.errors import BrewError, DeadlineExceeded, Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, consumer, is_cut_off, mapped
from brew.kafka.cluster import Groups
from brew.kafka.offsets import committed, log_offsets
from brew.kafka.topics import Topic, TopicSpec
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, check, position_metadata
from brew.preflight import checks, enforce
from brew.range_transaction import Targets
from brew.settings import PipelineSettings

_STABLE_S = 2.0


class OffsetsClient:
    """An admin client and consumers for offsets, kept for the run; for one thread."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.admin, self.groups = admin(settings.connection), Groups(settings.connection)
        self._open()

    def _open(self) -> None:
        connection, group = self._settings.connection, self._settings.group
        # Does not wait for pending offsets: the result is never ahead, and a dead producer can't block it.
        self._reader = consumer(connection, group, READ_UNCOMMITTED)
        self._stable_reader = consumer(connection, group, READ_COMMITTED)

    def input_topic(self, deadline: Deadline) -> Topic:
        topic = self.described([self._settings.input], deadline).get(self._settings.input)
        if topic is None:
            raise Refused(
                f"input topic {self._settings.input!r} is not on {self._settings.connection.bootstrap}; "
                "create it (`brew topics`, or `make topic-create-all` in a checkout), or name another with "
                "INPUT_TOPIC (--input)"
            )
        return topic

    def with_leader(self, source: Topic, deadline: Deadline) -> list[int]:
        """Return the partitions that have a leader, or all if none has."""
        leaderless = cluster_admin.leaderless(self.admin, source.name, deadline)
        return [p for p in range(source.partitions) if p not in leaderless] or list(range(source.partitions))

    def described(self, names: list[str], deadline: Deadline) -> dict[str, Topic]:
        """Return those of these topics that exist."""
        with mapped("survey"):
            return topics.describe(self.admin, names, deadline)

    def output_topics(self, source: Topic, deadline: Deadline) -> dict[str, Topic]:
        """Return the output topics and the dead-letter topic; missing ones are created like the input."""
        names = [*self._settings.outputs, self._settings.dead_letter]
        existing = self.described(names, deadline)
        if len(existing) == len(names):
            return existing
        with mapped("survey"):
            config = cluster_admin.roomier_limit(self.admin, source.name, deadline)
            missing = [TopicSpec(name, source.partitions, config) for name in names if name not in existing]
            topics.create(self.admin, missing, deadline)
            return topics.describe_all(self.admin, names, deadline)

    def facts(
        self, source: Topic, partitions: Iterable[int], deadline: Deadline, last_positions: Mapping[int, int]
    ) -> list[PartitionFacts]:
        """
        Return the facts of these partitions; positions are read first, so that they never exceed the log's end. For one
        behind what this driver saw committed (``last_positions``) the stable offset is requested: a commit's marker
        comes a moment later, and a stale position would read rows twice. If that is behind, too, a replaced coordinator
        may have answered, and new clients are used.
        """
        chosen = list(partitions)
        if not chosen:
            return []
        positions = committed(self._reader, source.name, chosen, deadline)

        def behind() -> list[int]:
            return [
                p
                for p in chosen
                if p in last_positions
                and ((committed_offset := positions[p]) is None or committed_offset.offset < last_positions[p])
            ]

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
        """Replace all clients after a failed request, if one of them has lost the brokers for good."""
        connection, topic = self._settings.connection, self._settings.input
        if any(is_cut_off(client, connection, topic) for client in (self.admin, self._reader, self._stable_reader)):
            self._close_readers()
            self.admin = admin(connection)
            self._open()

    def close(self) -> None:
        self._close_readers()
        self.groups.close()

    def _close_readers(self) -> None:
        self._reader.close()
        self._stable_reader.close()


_SURVEY_S, _TRANSACTIONS_S = 30.0, 5.0
_OUTPUT_WAIT_S, _ABORTED_S = 30.0, 15.0
_BLOCKED_NOTE_S = 5.0
_OUTPUTS_S = 5.0


def output_wait_s(settings: PipelineSettings) -> float:
    """
    Return after how many seconds an operator has to end a transaction that hides output and is in no idle partition.
    One of this group ends before: by its driver, or aborted by the brokers a moment after its time-out.
    """
    return max(_OUTPUT_WAIT_S, settings.transaction_timeout_s + _ABORTED_S)


def missing_topics(names: Sequence[str]) -> str:
    """Return the words for output topics that were deleted, everywhere the same."""
    *first, last = map(repr, names)
    if not first:
        return f"output topic {last} does not exist any more"
    return f"output topics {', '.join(first)} and {last} do not exist any more"


class PartitionSurvey:
    """
    Reads and checks the state of the partitions. ``last_positions``: partition -> the last position that this run's
    transactions saw or committed. ``owned``: the partitions that this driver may work on.
    """

    def __init__(self, shared: RunContext) -> None:
        self._shared, self._settings = shared, shared.preflight.settings
        self._offsets = OffsetsClient(shared.preflight.settings)
        self._topics = shared.preflight.topics
        self._may_start: set[int] = set()
        self._output_wait: missing_offsets.OutputWait | None = None
        self._next_note = 0.0
        self._outputs_due = Interval(_OUTPUTS_S)
        self._missing: list[str] = []
        self._noted: list[str] = []
        self._leaderless: list[int] = []
        self._noted_leaderless: list[int] = []
        self._idle = missing_offsets.IdleOffsets(shared.preflight.transaction, self._settings.input)
        self.last_positions: dict[int, int] = {}
        self.owned: Container[int] = ALL_PARTITIONS

    def read(self, pick: Callable[[Topic], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        """
        Return the facts of the partitions that ``pick`` selects without those held back, and whether they are complete.

        Raises:
            Refused: going on would lose or duplicate records, or the group has members.
            KafkaFailure, DeadlineExceeded: the brokers did not answer.
        """
        settings, deadline = self._settings, Deadline(_SURVEY_S)
        # Members would commit their own positions, even if they join later. One lane checks for all.
        if self._shared.member_check_due.due():
            group = self._offsets.groups.now(settings.group, deadline)
            enforce([checks.members(settings.group, group)], settings.allow)
        source = self._offsets.input_topic(deadline)
        if source.partitions != self._topics[source.name].partitions:
            self._topics = {**self._offsets.output_topics(source, deadline), source.name: source}
            self._shared.ownership.set_partitions(range(source.partitions))
        elif any(topic.partitions != source.partitions for topic in self._topics.values()):
            # Once it has as many partitions as the input, records keep their partition (`targets`).
            self._topics = {**self._topics, **self._offsets.described(list(self._topics), deadline)}
        if self._outputs_due.due():
            self._report_missing_outputs()
        busy = set(self._shared.running)
        picked = list(pick(source))
        readable = picked if self._shared.preflight.goals is not None else self._with_leader(source, picked, deadline)
        facts = self._offsets.facts(source, readable, deadline, self.last_positions)
        for fact in facts:
            check(fact, settings.group)
            if fact.committed is not None:
                self._may_start.discard(fact.partition)
                self._report_moved_back(fact.partition, fact.committed.offset)
        # Another driver that owned a partition meanwhile may have committed in it.
        self._may_start = {p for p in self._may_start if p in self.owned}
        waiting = [f for f in facts if f.committed is None and f.partition in self.owned]
        # Running attempts fence on their own; a fence from here would abort one of them.
        unknown = [f for f in waiting if f.partition not in self._may_start | busy]
        if unknown:
            with_position = [f for f in facts if f.committed is not None]
            # Partitions that were added to the output during the run may also hold output.
            self._topics = {**self._offsets.output_topics(source, deadline), source.name: source}
            self._resolve(unknown, [f for f in with_position if f.partition in self.owned and f.partition not in busy])
            held_back = {f.partition for f in unknown if f.log.end > f.log.first} - self._may_start
            facts = [f for f in facts if f.partition not in held_back]
        else:
            self._output_wait = None
        self._renew_idle(facts)
        self._shared.progress.survey(facts, self.owned)
        return facts, len(facts) == len(picked)

    def _with_leader(self, source: Topic, picked: Collection[int], deadline: Deadline) -> list[int]:
        """Leave out partitions without a leader, so that a following run goes on in the others; report them."""
        led = self._offsets.with_leader(source, deadline)
        leaderless = [p for p in picked if p not in led]
        lasting = [p for p in leaderless if p in self._leaderless]  # twice in a row: an election takes a moment
        self._shared.progress.leaderless(lasting, picked)
        if lasting and lasting != self._noted_leaderless:
            problem = cluster_admin.no_leader(source.name, lasting)
            self._shared.view.note(f"{problem}; the run goes on in the others")
        self._leaderless, self._noted_leaderless = leaderless, lasting
        return [p for p in picked if p in led]

    def _renew_idle(self, facts: Iterable[PartitionFacts]) -> None:
        if self._shared.preflight.goals is not None or self._shared.replaced.is_set() or self._shared.stop.is_set():
            return
        idle = [f for f in facts if f.committed is not None and not f.lag and f.partition in self.owned]
        if problem := self._idle.renew_one({fact.partition: fact.position for fact in idle}):
            self._shared.view.note(problem)

    def renew_clients(self) -> None:
        """Replace clients that have lost the brokers, after a failed survey."""
        self._offsets.replace_if_cut_off()
        if self._output_wait is not None:  # no transaction ends while brokers are away
            self._output_wait.deadline = Deadline(output_wait_s(self._settings))

    def _resolve(self, unknown: Iterable[PartitionFacts], idle: Iterable[PartitionFacts]) -> None:
        """Find out which of ``unknown`` may start; retry for a while if an open transaction hides output."""
        output_wait = self._output_wait or missing_offsets.OutputWait(Deadline(output_wait_s(self._settings)))
        try:
            allowed = missing_offsets.resolve(self._settings, unknown, self._topics, idle, output_wait)
        except missing_offsets.HiddenOutputError as hidden:
            if output_wait.deadline.expired():
                raise Refused(f"offsets-vanished: {hidden}; end it, then run again") from hidden
            self._output_wait = output_wait
        else:
            self._output_wait = None
            self._may_start |= allowed
            for partition in allowed:  # starts over: the input may have been recreated
                self.last_positions.pop(partition, None)

    def first_attempt(self, fact: PartitionFacts) -> bool:
        """
        Return True if an attempt may start without a committed offset; call it once per attempt. The permission is for
        this attempt only: it may commit whatever its outcome, and offsets may vanish later.
        """
        self._may_start.discard(fact.partition)
        if fact.committed is None:  # `_resolve` checked a log with records; in an empty one, all that come are new
            self.last_positions.pop(fact.partition, None)
        return fact.committed is None

    def _report_moved_back(self, partition: int, offset: int) -> None:
        """Report a committed offset that was reset to an earlier one; the run continues from there."""
        if offset < self.last_positions.get(partition, 0):
            self._shared.view.note(
                f"offset-gap: partition {partition} was committed up to {self.last_positions[partition]}, the group "
                f"now stands at {offset}: an outsider moved the position back; going on from there"
            )
            self.last_positions[partition] = offset

    def apply_outcome(self, outcome: Outcome) -> None:
        """Record the position that a transaction saw or committed; a later survey may return an older one."""
        if outcome.status is Status.COMMITTED:
            self.last_positions[outcome.partition] = outcome.until
        elif outcome.status in {Status.AHEAD, Status.ALREADY_DONE}:
            self.last_positions[outcome.partition] = outcome.position
        elif outcome.status is Status.OFFSET_GAP:
            self.last_positions.pop(outcome.partition, None)
            self._shared.view.note(
                f"offset-gap: partition {outcome.partition} was planned from {outcome.start}, the group stands at "
                f"{outcome.position}: an outsider moved the position; planning again from there"
            )

    def targets(self, fact: PartitionFacts) -> Targets:
        """Return the output topics and partitions for the records of this partition."""
        settings = self._settings

        def partition_in(name: str) -> int:
            """Return the same partition if the counts are equal: order is kept, and a crash holds back only one LSO."""
            same = self._topics[name].partitions == self._topics[settings.input].partitions
            return fact.partition if same else -1

        return Targets(
            settings.output,
            settings.dead_letter,
            partition_in(settings.output),
            partition_in(settings.dead_letter),
            position_metadata(fact.topic_id),
            self._shared.preflight.dead_letter_max_bytes,
            {name: partition_in(name) for name in settings.also_output},
        )

    def missing_outputs(self) -> list[str]:
        """Return the output and dead-letter topics that have been deleted; none if the brokers do not answer."""
        names = [*self._settings.outputs, self._settings.dead_letter]
        with contextlib.suppress(BrewError):
            existing = self._offsets.described(names, Deadline(_TRANSACTIONS_S))
            self._topics = {**self._topics, **existing}  # one that was recreated may have fewer partitions
            return [name for name in names if name not in existing]
        return []

    def _report_missing_outputs(self) -> None:
        """Report output topics that have been deleted, long before transactions fail for --patience."""
        seen = self.missing_outputs()
        missing = [name for name in seen if name in self._missing]  # twice in a row: a broker may hear late of a topic
        self._missing = seen
        self._shared.progress.missing(missing_topics(missing) if missing else "")
        if missing and missing != self._noted:
            self._shared.view.note(
                f"{missing_topics(missing)}; create what is missing, or the run gives up when it has to write"
            )
        self._noted = missing

    def report_blocking_transactions(self, partitions: Iterable[int]) -> None:
        """Report the upstream transactions that hold back these partitions, every few seconds, if they can be found."""
        settings, blocked, now = self._settings, list(partitions), time.monotonic()
        if now < self._next_note:
            return
        self._next_note = now + _BLOCKED_NOTE_S
        # Importing it takes a third of the start of a run without Spark, and it is rarely needed.
        from brew.kafka import kafka_python  # noqa: PLC0415

        try:
            open_transactions = kafka_python.open_transactions(
                settings.connection, settings.input, blocked, Deadline(_TRANSACTIONS_S)
            )
        except Exception as error:  # noqa: BLE001 - brokers before 3.0 can't answer; the run continues
            self._shared.view.note(f"partitions {blocked} are blocked by an unknown transaction: {error}")
            return
        for transaction in open_transactions:
            age = "" if transaction.age_s is None else f", open for {transaction.age_s:.0f} s"
            owner = "a transaction whose name takes Describe on transactional ids"
            if transaction.transactional_id:
                owner = f"transactional id {transaction.transactional_id!r}"
            self._shared.view.note(
                f"{settings.input}[{transaction.partition}] is blocked at offset {transaction.first_offset} by {owner} "
                f"(producer {transaction.producer_id}, epoch {transaction.producer_epoch}{age}); going on when it ends"
            )

    def close(self) -> None:
        self._offsets.close()
