"""
Query a cluster: brokers, topics, settings, groups, features, rights on transactional ids, clocks; watch for outages.

Group coordinators are queried only through `Groups` and `brew.kafka.group_requests`: librdkafka's admin client can
crash the process on such a request. Functions that need kafka-python import it when they are called.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from brew.acl import Denial, denial_in
from brew.cluster import ClusterFacts, GroupFacts, TopicFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError
from brew.kafka.clients import admin, attempt_s

if TYPE_CHECKING:
    from brew.kafka.kafka_python import KafkaAdminClient

_T = TypeVar("_T")
_ATTEMPT_S = 3.0
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART}
_MAX_REASON = 160
_METADATA = "__cluster_metadata"
_now = time.time
# The watch for outages: pause after an answer and without one; time for one check; silence until it is reported.
_WATCH_INTERVAL_S, _PAUSE_S = 2.0, 0.5
_LOOK_S, _SILENT_S = 1.0, 3.0
_RENEW_S, _JOIN_S = 10.0, 2.0


class Groups:
    """Requests to coordinators, one at a time by a connection that is opened on first use and after a failure."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._admin: KafkaAdminClient | None = None

    def now(self, group: str, deadline: Deadline) -> GroupFacts | Unknown:
        """Return a group's state and members, in one attempt, or the reason if no coordinator answered."""
        try:
            return self.describe(group, deadline)
        except BrewError as error:
            return Unknown(str(error)[:_MAX_REASON])

    def describe(self, group: str, deadline: Deadline) -> GroupFacts:
        """Describe a group, like `now`; raises `BrewError` if no broker answered, or the coordinator did not."""
        # Imports kafka-python, which takes 0.15 s: only when it is needed.
        from brew.kafka import group_requests, kafka_python  # noqa: PLC0415

        attempt = deadline.part(_ATTEMPT_S)
        with self._lock:
            try:
                if self._admin is None:
                    self._admin = kafka_python.open_admin(self._connection, attempt, _ATTEMPT_S)
                return group_requests.describe_group(self._admin, group, attempt)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """Close the connection. Idempotent; a later request opens another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            from brew.kafka.group_requests import end  # noqa: PLC0415 - as above

            end(admin)


def group_state(connection: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    """Return the group's state by the broker's name (`empty` if it only holds offsets), and its number of members."""
    with closing(Groups(connection)) as groups:
        facts = retry_until(lambda: groups.describe(group, deadline), f"describe group {group}", deadline)
    return facts.state, len(facts.members)


class ClusterQueries:
    """Requests in the background until `answers`; one not authorized or supported becomes `Unknown`, never an error."""

    def __init__(
        self, client: AdminClient, groups: Groups, topics: Iterable[str], group: str, deadline: Deadline
    ) -> None:
        self._client, self._groups, self._group, self._deadline = client, groups, group, deadline
        names = sorted(set(topics))
        self._timeout = attempt_s(deadline)
        options: dict[str, Any] = {"request_timeout": self._timeout, "include_authorized_operations": True}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        self._cluster = client.describe_cluster(request_timeout=self._timeout)
        self._topics = client.describe_topics(TopicCollection(names), **options)
        answers = client.describe_configs(resources, request_timeout=self._timeout)
        self._configs = {resource.name: future for resource, future in answers.items()}

    def answers(self) -> ClusterFacts:
        """Return all answers, waiting at most one request's time-out."""
        group = self._groups.now(self._group, self._deadline)  # the other requests run meanwhile
        nodes = _result_of(self._cluster, lambda cluster: list(cluster.nodes))
        settings = nodes if isinstance(nodes, Unknown) else _broker_configs(self._client, nodes, self._deadline)
        return ClusterFacts(
            nodes if isinstance(nodes, Unknown) else len(nodes),
            settings,
            group,
            {name: self._topic(name, future) for name, future in self._topics.items()},
        )

    def _topic(self, name: str, future: Future[Any]) -> TopicFacts | Unknown | None:
        def facts(description: Any) -> TopicFacts:
            return TopicFacts(
                name,
                str(description.topic_id),
                len(description.partitions),
                min((len(partition.replicas) for partition in description.partitions), default=0),
                min((len(partition.isr) for partition in description.partitions), default=0),
                _result_of(self._configs[name], _config),
                _operations(description),
            )

        return _result_of(future, facts, dict.fromkeys(_NO_TOPIC))


def broker_settings(client: AdminClient, deadline: Deadline) -> Mapping[str, str] | Unknown:
    nodes = _result_of(
        client.describe_cluster(request_timeout=attempt_s(deadline)), lambda cluster: list(cluster.nodes)
    )
    configs = nodes if isinstance(nodes, Unknown) else _broker_configs(client, nodes[:1], deadline)
    return configs if isinstance(configs, Unknown) else next(iter(configs.values()))


def _broker_configs(
    client: AdminClient, nodes: list[Any], deadline: Deadline
) -> Mapping[int, Mapping[str, str]] | Unknown:
    """Return each broker's settings, requested in parallel (dynamic ones may differ); `Unknown` if none answered."""
    resources = {node.id: ConfigResource(ResourceType.BROKER, str(node.id)) for node in nodes}
    timeout = attempt_s(deadline)
    futures = {
        broker: client.describe_configs([resource], request_timeout=timeout)[resource]
        for broker, resource in resources.items()
    }
    answers = {broker: _result_of(future, _config) for broker, future in futures.items()}
    configs = {broker: config for broker, config in answers.items() if not isinstance(config, Unknown)}
    unknown = [config for config in answers.values() if isinstance(config, Unknown)]
    return configs or (unknown[0] if unknown else Unknown("no broker is known"))


def _result_of(
    future: Future[Any], convert: Callable[[Any], _T], answers_by_code: Mapping[int, _T] | None = None
) -> _T | Unknown:
    """Return the converted result, or the answer that ``answers_by_code`` has for an error code; else `Unknown`."""
    try:
        return convert(future.result())
    except KafkaException as error:
        cause = error.args[0]
        if answers_by_code is not None and cause.code() in answers_by_code:
            return answers_by_code[cause.code()]
        return Unknown(f"{cause.str()} ({cause.name()})"[:_MAX_REASON])


def _config(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _operations(description: Any) -> frozenset[str] | None:
    operations = description.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)


def feature_level(connection: Connection, feature: str, deadline: Deadline) -> int | Unknown:
    """Return the finalized level of a feature; 0 if the brokers do not know it."""
    from brew.kafka.kafka_python import ask, kafka_python_admin  # noqa: PLC0415 - as above

    try:
        with kafka_python_admin(connection, deadline) as admin:
            features = ask(admin, deadline, "describe features", admin._async_describe_features)  # noqa: SLF001
    except BrewError as error:
        return Unknown(str(error))
    return int(features.get(feature, {}).get("finalized", (0, 0))[1])


def may_describe(connection: Connection, transactional_id: str, deadline: Deadline) -> bool | Unknown:
    """Check for Describe on the id by requesting its state (KIP-664); Write implies it, so is missing without it."""
    from brew.kafka.kafka_python import NoSuchId, ask, kafka_python_admin  # noqa: PLC0415 - as above

    try:
        with kafka_python_admin(connection, deadline) as admin:
            call = admin._async_describe_transactions  # noqa: SLF001 - as in brew.kafka.kafka_python
            ask(admin, deadline, "describe transactions", call, [transactional_id])
    except NoSuchId:
        return True
    except BrewError as error:
        return False if denial_in(str(error)) is Denial.RIGHT else Unknown(str(error))
    return True


def controller_ahead_s(connection: Connection, deadline: Deadline) -> float | Unknown:
    """
    Return a lower bound of how far the controller's clock is ahead of this machine's; negative if it is behind. The
    leader of the metadata log reports the current time as its own last fetch. 0 if that time lies between request and
    response.
    """
    from brew.kafka.kafka_python import ask, kafka_python_admin  # noqa: PLC0415 - as above

    try:
        with kafka_python_admin(connection, deadline) as admin:
            before = _now()
            log = ask(admin, deadline, "describe the metadata quorum", _metadata_log, admin)
            after = _now()
    except BrewError as error:
        return Unknown(str(error))
    times = {voter.replica_id: voter.last_fetch_timestamp or -1 for voter in log.current_voters}
    controller_ms = times.get(log.leader_id, -1)
    return (
        ahead_s(controller_ms, before, after)
        if controller_ms > 0
        else Unknown("this controller does not say when it answers")
    )


def ahead_s(controller_ms: int, before: float, after: float) -> float:
    """Return the lead of a controller's clock, from its time read between two local times (seconds since the epoch)."""
    controller = controller_ms / 1000
    return round(controller - after if controller > after else min(0.0, controller + 0.001 - before), 3)


async def _metadata_log(admin: KafkaAdminClient) -> Any:
    """Request the state of the metadata log; the library's own call fails on brokers before 3.9 (no error messages)."""
    from kafka.errors import for_code  # noqa: PLC0415 - as above
    from kafka.protocol.admin import DescribeQuorumRequest  # noqa: PLC0415 - as above

    partition = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(
        topics=[DescribeQuorumRequest.TopicData(topic_name=_METADATA, partitions=[partition])]
    )
    response = await admin._manager.send(request)  # noqa: SLF001
    log = None if response.error_code else response.topics[0].partitions[0]
    if log is None or log.error_code:
        raise for_code(response.error_code if log is None else log.error_code)(f"describe {_METADATA}")
    return log


class Outage:
    """
    Tracks whether brokers answer, and formats a message for each change. ``consequence``: a clause that says what the
    program does meanwhile. ``give_up_s``: the program gives up after this many seconds without an answer; None: it
    waits until it is stopped.
    """

    def __init__(self, bootstrap: str, consequence: str, give_up_s: float | None) -> None:
        self._bootstrap, self._consequence, self._give_up_s = bootstrap, consequence, give_up_s
        self._answered_at: float | None = None
        self._reported = False

    def answered(self, now: float) -> str | None:
        """Record an answer at ``now`` (monotonic seconds); return the message to report, if any."""
        since, self._answered_at = self._answered_at, now
        if not self._reported or since is None:
            return None
        self._reported = False
        return f"brokers-back: {self._bootstrap} answers again; it was away for {now - since:.0f} s"

    def silent(self, now: float, clock: datetime | None = None) -> str | None:
        """Record silence at ``now`` (``clock``: its time of day); return the message, None before the first answer."""
        if self._reported or self._answered_at is None:
            return None
        self._reported = True
        silent_s = now - self._answered_at
        text = f"brokers-away: {self._bootstrap} has not answered for {silent_s:.0f} s; {self._consequence}"
        if self._give_up_s is None:
            return f"{text}, until it answers or this program is stopped"
        until = (clock or datetime.now(UTC)) + timedelta(seconds=max(0.0, self._give_up_s - silent_s))
        return f"{text}, at least until {until:%H:%M:%S} UTC ({self._give_up_s:g} s)"


@contextmanager
def broker_watch(
    connection: Connection, topic: str, consequence: str, give_up_s: float | None, report: Callable[[str], None]
) -> Iterator[None]:
    """
    Report outages of all brokers while the block runs, from a background thread; see `Outage` for ``consequence``.
    ``topic``: the topic whose metadata is requested; any topic will do.
    """
    outage, stop = Outage(connection.bootstrap, consequence, give_up_s), threading.Event()
    thread = threading.Thread(
        target=_watch, args=(connection, topic, outage, stop, report), name="broker-watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(
    connection: Connection, topic: str, outage: Outage, stop: threading.Event, report: Callable[[str], None]
) -> None:
    # A metadata request must not recreate a topic that was deleted.
    made = functools.partial(admin, connection, **{"allow.auto.create.topics": False})
    client, answered_at = made(), time.monotonic()
    made_at = answered_at
    while not stop.is_set():
        try:
            client.list_topics(topic, timeout=_LOOK_S)
        except KafkaException:
            answered, now = False, time.monotonic()
            text = outage.silent(now) if now - answered_at >= _SILENT_S else None
            if now - max(answered_at, made_at) >= _RENEW_S:
                # A client that has lost the brokers for good never answers again (librdkafka issue 5301).
                client, made_at = made(), now
        else:
            answered, answered_at = True, time.monotonic()
            text = outage.answered(answered_at)
        if text is not None and not stop.is_set():
            report(text)
        stop.wait(_WATCH_INTERVAL_S if answered else _PAUSE_S)
