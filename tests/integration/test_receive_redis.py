"""Receivers that claim in Redis: what the script keeps, and what the claim beside the effect does not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
import redis as client
from harness import enriched
from harness.downstream import ReceiveStage, following, run
from harness.servers import Broker, Names, store
from harness.waiting import until

from brew.errors import Refused
from downstream.consume.handler import HandlerContext
from downstream.receive.receiver import Message
from downstream.receive.redis import Keys
from sandbox.store import Redis

MESSAGES = 60


@pytest.fixture
def stage(broker: Broker, redis: Redis, names: Names) -> ReceiveStage:
    """A topic with messages, aborted ones between them, and none received yet."""
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, MESSAGES)
    return ReceiveStage(broker.bootstrap, names.output, names.group, redis=redis.url)


@pytest.mark.parametrize("kind", ["in_redis", "in_script"])
def test_a_redelivered_message_does_nothing(stage: ReceiveStage, kind: str) -> None:
    """Both receivers know what they have done, as long as Redis does."""
    assert stage.receive(getattr(stage, kind)()).effects == MESSAGES
    assert stage.receive(getattr(stage, kind)(again=True)).effects == 0
    stage.proven(MESSAGES)


@pytest.mark.parametrize("kind", ["in_redis", "in_script"])
def test_a_recreated_topic_is_refused_while_its_claims_are_there(stage: ReceiveStage, kind: str) -> None:
    """As in PostgreSQL: the brokers forget the offsets, Redis does not forget the claims."""
    stage.receive(getattr(stage, kind)())
    enriched.recreate_topic(stage.bootstrap, stage.topic, stage.group)
    with pytest.raises(Refused, match=r"^topic-recreated: .* with another --group"):
        stage.receive(getattr(stage, kind)())


def test_an_effect_that_fails_gives_its_claim_back(stage: ReceiveStage) -> None:
    """The compensating delete: the next attempt finds no claim in its way, and does not wait for one to run out."""
    done: Counter[str] = Counter()

    def fail_once(message: Message) -> None:
        if len(done) == 5 and not done["failed"]:
            done["failed"] += 1
            raise ConnectionError("the other side is away")
        done[message.message_id] += 1

    with pytest.raises(ConnectionError):
        stage.receive(stage.in_redis(fail_once))
    stage.receive(stage.in_redis(fail_once))
    del done["failed"]
    assert (len(done), set(done.values())) == (MESSAGES, {1})


def test_a_claim_that_runs_out_under_a_slow_effect_is_not_taken_back_from_its_next_holder(stage: ReceiveStage) -> None:
    """The delete looks at the token: a failing effect that outlived its claim leaves another's claim alone."""
    session = client.Redis.from_url(stage.redis)
    keys = Keys(stage.group)

    def lose_claim_and_fail(message: Message) -> None:
        session.set(keys.claim(message.message_id), "another")
        raise ConnectionError("too late")

    with pytest.raises(ConnectionError):
        stage.receive(stage.in_redis(lose_claim_and_fail))
    assert len([key for key in session.scan_iter(keys.claim("*")) if session.get(key) == b"another"]) == 1
    session.close()


@pytest.mark.parametrize("moment", ["before-commit", "after-commit"])
def test_the_script_is_exact_when_its_holder_dies(stage: ReceiveStage, moment: str) -> None:
    """SIGKILL before or behind the script's call: either all of it took place or nothing."""
    static = ("--partitions", "0,1,2,3", "--batch", "20")
    assert run(stage.command("redis-script", *static, "--crash-point", moment)).returncode == -9
    stage.receive(stage.in_script())
    stage.proven(MESSAGES)


@pytest.mark.parametrize("changed", ["points", "effect"])
def test_a_key_that_someone_changed_costs_no_effect(stage: ReceiveStage, changed: str) -> None:
    """The script fails at the key, between claim and effect: the claim must not stay without its effect."""
    keys, session = Keys(stage.group), client.Redis.from_url(stage.redis)
    key = keys.points if changed == "points" else keys.effect(f"{enriched.SOURCE}/0/3")
    named = f"{key}, field c-00006" if changed == "points" else key

    def change() -> None:
        session.hset(key, "c-00006", "1.5") if changed == "points" else session.set(key, "many")

    change()
    with pytest.raises(Refused, match=rf"\(key {named}\); correct .* or the key that another program changed"):
        stage.receive(stage.in_script())
    session.hdel(key, "c-00006") if changed == "points" else session.delete(key)
    stage.receive(stage.in_script())
    stage.proven(MESSAGES)
    change()
    with pytest.raises(Refused, match=rf"key {named} holds b'.*', not a number"):
        stage.check()
    session.close()


def test_a_server_that_is_killed_has_kept_what_it_answered(stage: ReceiveStage, redis: Redis) -> None:
    """With its log on disk before each answer, SIGKILL and restart in the middle of the work change nothing."""
    half_done, killed = threading.Event(), threading.Event()
    receiver = stage.in_script()
    claim = receiver.claim

    def claim_after_kill(messages: Sequence[Message], context: HandlerContext) -> int:
        if receiver.received.effects >= MESSAGES // 2:
            half_done.set()
            assert killed.wait(30)
        return claim(messages, context)

    receiver.claim = claim_after_kill
    with following(stage.loop(batch=3), receiver) as running:
        assert half_done.wait(30)
        redis.kill()
        killed.set()
        redis.restart()
        running.done()
    stage.proven(MESSAGES)


def test_flushall_doubles_effects_elsewhere_and_none_in_redis(stage: ReceiveStage) -> None:
    """Claims gone, all read again: effects outside repeat, every one; those in Redis went with their claims."""
    outside: Counter[str] = Counter()

    def effect(message: Message) -> None:
        outside[message.message_id] += 1

    stage.receive(stage.in_redis(effect))
    client.Redis.from_url(stage.redis).flushall()
    stage.receive(stage.in_redis(effect, again=True))
    assert set(outside.values()) == {2}

    client.Redis.from_url(stage.redis).flushall()
    stage.receive(stage.in_script(again=True))
    client.Redis.from_url(stage.redis).flushall()
    stage.receive(stage.in_script(again=True))
    stage.proven(MESSAGES)


def test_a_fail_over_to_an_empty_replica_loses_what_is_not_read_again(stage: ReceiveStage) -> None:
    """Kafka's position is past what the new server never heard of: lost, named by the check, mended by `--again`."""
    stage.receive(stage.in_script())
    with store(Redis) as replica:
        failed_over = ReceiveStage(stage.bootstrap, stage.topic, stage.group, redis=replica.url)
        assert failed_over.receive(failed_over.in_script()).messages == 0
        assert failed_over.check().findings["receiver-lost"] >= MESSAGES
        failed_over.receive(failed_over.in_script(again=True))
        failed_over.proven(MESSAGES)


@pytest.mark.parametrize("kind", ["in_redis", "in_script"])
def test_a_claim_that_has_run_out_is_a_duplicate_when_its_message_comes_again(stage: ReceiveStage, kind: str) -> None:
    """Why claims have to outlive the topic's records: points are given twice, and the check sees it."""
    stage.receive(getattr(stage, kind)(keep_s=0.001))
    assert stage.receive(getattr(stage, kind)(again=True)).effects == MESSAGES
    assert stage.check().findings["receiver-duplicate"] >= 1


@pytest.mark.parametrize("kind", ["in_redis", "in_script"])
def test_a_claim_is_kept_as_long_as_the_last_record_with_its_id(stage: ReceiveStage, kind: str) -> None:
    """As in PostgreSQL; the time is the receiver's that read it last, so `--again` also renews claims made for less."""
    keys, session = Keys(stage.group), client.Redis.from_url(stage.redis)
    stage.receive(getattr(stage, kind)())
    stage.receive(getattr(stage, kind)(keep_s=3600.0, again=True))
    for key in (keys.claim, keys.effect):
        assert session.ttl(key(f"{enriched.SOURCE}/0/3")) > 3000
    session.close()


def test_a_claim_that_is_in_progress_is_not_taken_for_done(stage: ReceiveStage) -> None:
    """A receiver with --store redis died before the effect, and the next one has --store redis-script."""
    session = client.Redis.from_url(stage.redis)
    session.set(Keys(stage.group).claim(f"{enriched.SOURCE}/0/3"), "a token", px=2000)
    stage.receive(stage.in_script())
    stage.proven(MESSAGES)
    session.close()


def nothing_left_to_evict(session: client.Redis) -> bool:
    """Whether there is nothing left to evict; Redis evicts for half a millisecond at a time and goes on later."""
    try:
        session.set("one", "more")
    except client.exceptions.OutOfMemoryError:
        return True
    return False


def test_eviction_forgets_claims_and_is_refused_where_the_promise_is_exact(stage: ReceiveStage) -> None:
    """With an evicting policy the script's receiver says what to change; accepted all the same, it counts double."""
    with store(Redis, {"maxmemory-policy": "volatile-random"}) as server:
        evicting = ReceiveStage(stage.bootstrap, stage.topic, stage.group, redis=server.url)
        with pytest.raises(Refused, match="maxmemory-policy is 'volatile-random', must be 'noeviction'"):
            evicting.in_script().prepare()
        messages: list[str] = []
        evicting.receive(evicting.in_script(accept=True, tell=messages.append))
        assert len(messages) == 1
        session = client.Redis.from_url(server.url)
        session.config_set("maxmemory", 1)
        until(lambda: nothing_left_to_evict(session), "whatever can be evicted is")
        session.config_set("maxmemory", 0)
        session.close()
        assert evicting.receive(evicting.in_script(accept=True, again=True)).effects == MESSAGES
        assert evicting.check().findings["receiver-duplicate"] >= 1
