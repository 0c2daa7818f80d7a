"""All checks of a run, in the order in which people read them; pure: what the cluster said in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pipeline.plan import Fact, check, position_metadata
from pipeline.preflight import brokers, clocks, rights
from pipeline.preflight.clocks import Chain
from pipeline.preflight.finding import ROLES, Finding, Severity
from pipeline.preflight.storage import storage
from pipeline.settings import PipelineSettings, Reader
from protocol.batches import OFFSETS_TOPIC
from protocol.cluster import TRANSACTIONS_TOPIC, ClusterFacts, TopicFacts, Unknown
from protocol.deadline import delivery_ms
from protocol.errors import Refused
from protocol.names import READ_COMMITTED

_OUTPUT_ROOM = 16_384
_MOST_COPIES = 3
_REQUEST_MS = 30_000  # librdkafka's default
_MAX_BYTES = "max.message.bytes"
_MADE_WITH = {  # settings of the brokers by which they make their own logs at first use
    "transactions": ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    "offsets": ("offsets.topic.replication.factor", "min.insync.replicas"),
}
_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_BROKERS = frozenset(
    {
        clocks.MAX_TRANSACTION_MS,
        clocks.OFFSETS_RETENTION_MIN,
        brokers.VERIFICATION,
        _MIN_ISR,
        _UNCLEAN,
        *(setting for settings in _MADE_WITH.values() for setting in settings),
    }
)
"""What the checks ask brokers for."""


def roles(settings: PipelineSettings) -> dict[str, str]:
    """Role -> topic, in the order of `ROLES`."""
    topics = (settings.input, settings.output, settings.dead_letter, TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
    return dict(zip(ROLES, topics, strict=True))


def judge(settings: PipelineSettings, facts: ClusterFacts, message_max_bytes: int) -> list[Finding]:
    """Every check that needs no look at the position; ``message_max_bytes`` is what our own writer takes."""
    found: list[Finding] = []
    known: dict[str, TopicFacts] = {}
    count = facts.brokers if isinstance(facts.brokers, int) else None
    for role, name in roles(settings).items():
        told = facts.topics.get(name)
        topic = _as_it_will_be(role, name, facts) if told is None else told
        if isinstance(topic, Unknown):
            gone = role == "input" and told is None
            found.append(_untold(role, name, topic.reason, Severity.UNSAFE if gone else Severity.UNKNOWN))
            continue
        found += storage(role, topic, count)
        if told is not None and role in ROLES[:3]:
            known[role] = topic
            found.append(rights.access(role, topic))
    found += _sizes(settings, known, message_max_bytes)
    found += clocks.chain(chain_of(settings, facts))
    direct = settings.reader is Reader.DIRECT
    amount = settings.direct.transaction_bytes if direct else None
    found.append(clocks.size(settings.max_records_per_transaction, amount, int(settings.transaction_timeout_s * 1000)))
    found.append(clocks.retention(facts.number(clocks.OFFSETS_RETENTION_MIN)))
    found.append(brokers.verification(facts))
    found.append(brokers.alike(facts, _BROKERS))
    found.append(_isolation())
    found += rights.group(settings.group, facts.group)
    return found


def positions(facts: Iterable[Fact], group: str) -> Iterator[Finding]:
    """Whether the group's position still means what it meant; a run refuses by itself where it does not."""
    seen = list(facts)
    moved = "kafka-consumer-groups --reset-offsets"
    for fact in seen:
        try:
            check(fact, group)
        except Refused as error:
            kind, _, why = str(error).partition(": ")
            at = "none" if fact.committed is None else str(fact.committed.offset)
            recreated = kind == "topic-recreated"
            need = f"topic id {fact.topic_id}" if recreated else f"{fact.log.first} to {fact.log.end}"
            name = "topic-identity" if recreated else "position"
            yield Finding(name, f"{at} in partition {fact.partition}", need, moved, why, Severity.UNSAFE)
            return
    begun = [fact for fact in seen if fact.committed is not None]
    text = f"{len(begun)} of {len(seen)} partitions"
    yield Finding("position", text, "within the log", moved, "no record was lost before it was read", Severity.OK)
    named = [f for f in begun if f.committed is not None and f.committed.metadata == position_metadata(f.topic_id)]
    known = len(named) == len(begun)
    why = "a topic that is deleted and made again is seen"
    if not known:
        why = "a position set by hand carries no topic id: until the next commit a topic made again is not seen"
    value = f"{len(named)} of {len(begun)} positions"
    severity = Severity.OK if known else Severity.UNKNOWN
    yield Finding("topic-identity", value, "the topic's id beside each position", moved, why, severity)


def _as_it_will_be(role: str, name: str, facts: ClusterFacts) -> TopicFacts | Unknown:
    """A topic that is not there yet, with what it will be made with."""
    if role == "input":
        return Unknown("there is no such topic; make it (`make topic-create-all`), or name another (--input)")
    if role in _MADE_WITH:
        copies, needed = (facts.number(setting) for setting in _MADE_WITH[role])
    else:
        count = facts.brokers if isinstance(facts.brokers, int) else None
        copies, needed = None if count is None else min(_MOST_COPIES, count), facts.number(_MIN_ISR)
    if copies is None or isinstance(facts.config, Unknown):
        return Unknown("it is made at first use, and the brokers do not tell with what")
    config = {
        _MIN_ISR: "?" if needed is None else str(needed),
        _UNCLEAN: "true" if "true" in facts.texts(_UNCLEAN) else "false",
        "cleanup.policy": "delete",
    }
    return TopicFacts(name, "", 0, copies, copies, config)


def _untold(role: str, name: str, reason: str, severity: Severity) -> Finding:
    return Finding(f"{role}-replication", "?", "3", f"replicas of {name}", reason, severity)


def chain_of(settings: PipelineSettings, facts: ClusterFacts) -> Chain:
    """The time-outs of these settings, and the brokers' maximum."""
    transaction_ms = int(settings.transaction_timeout_s * 1000)
    request_ms = int(settings.connection.properties.get("request.timeout.ms", _REQUEST_MS))
    return Chain(
        request_ms, delivery_ms(settings.transaction_timeout_s), transaction_ms, facts.number(clocks.MAX_TRANSACTION_MS)
    )


def _sizes(settings: PipelineSettings, known: Mapping[str, TopicFacts], most: int) -> Iterator[Finding]:
    source, output, dead = (known.get(role) for role in ROLES[:3])
    largest = None if source is None else source.number(_MAX_BYTES)
    if largest is None:
        return
    wanted = min(largest, settings.limits.max_bytes)
    if output is not None:
        room = _OUTPUT_ROOM
        why = (f"enrichment and headers take up to {room} bytes more", "orders that only just fit are rejected instead")
        yield _size("output", output, wanted + room, why)
    if dead is not None:
        why = ("a rejected record fits with its bytes", "the value of a larger record is left out of its dead letter")
        yield _size("dead-letter", dead, largest, why)
    ok = largest <= most
    yield Finding(
        "producer-message-size",
        f"{most} bytes",
        f"at least {largest} bytes",
        f"{_MAX_BYTES} of {settings.input}",
        "our writer takes whatever the input holds" if ok else "our writer refuses records that the input takes",
        Severity.OK if ok else Severity.WARNING,
    )
    if output is not None and source is not None:
        same = output.partitions == source.partitions
        yield Finding(
            "output-partitions",
            str(output.partitions),
            str(source.partitions),
            f"partitions of {output.name}",
            "a crash in one input partition holds back one output partition only"
            if same
            else "records go by their key: a crash in one input partition can hold back all of the output",
            Severity.OK if same else Severity.WARNING,
        )


def _size(role: str, topic: TopicFacts, need: int, why: tuple[str, str]) -> Finding:
    found = topic.number(_MAX_BYTES)
    severity = Severity.UNKNOWN if found is None else Severity.OK if found >= need else Severity.WARNING
    told = "the brokers do not tell; grant DescribeConfigs on the topic" if found is None else why[found < need]
    value = "?" if found is None else f"{found} bytes"
    setting = f"{_MAX_BYTES} of {topic.name}"
    return Finding(f"{role}-message-size", value, f"at least {need} bytes", setting, told, severity)


def _isolation() -> Finding:
    """Told for completeness: every reader of ours is made with it, and no setting changes that."""
    why = "aborted orders are never read; no setting of ours changes that (--client-config refuses the key)"
    return Finding("isolation-level", READ_COMMITTED, READ_COMMITTED, "isolation.level", why, Severity.OK)
