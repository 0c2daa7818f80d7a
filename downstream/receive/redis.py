"""Receivers that claim in Redis: a claim beside the effect (at least once), or both in one script (see each class)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from brew.deadline import Deadline
from brew.errors import Refused
from brew.fault_injection import CrashMoment
from downstream.address import checked_login, invalid_address
from downstream.consume.handler import HandlerContext, RetryLater
from downstream.receive.receiver import Message, Receiver, ReceiverSettings

_DONE = b"done"
_SCRIPT_MESSAGES = 500
_ANSWER_S = 5.0
_OPTION, _EXAMPLE = "--redis (REDIS_URL)", "redis://user:password@host:port/0"
# Answers of a server that works again by itself: a script of somebody else, a full disk, replicas that are away.
_PASSING = {"BUSY", "MISCONF", "NOREPLICAS"}
_IN_PIPELINE = " of pipeline caused error: "  # the library's words between a command and the server's answer
_SAFE = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}

# Release a claim only if it is still ours; it may have expired and been taken by another process.
_GIVE_BACK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# Redis runs a script in isolation, and writes all of it or nothing to its log. An error ends a script but undoes
# nothing: a key that another program changed must leave no claim without its effect. The claim of a known message is
# renewed: the topic may keep this record longer than the one that was claimed.
_CLAIM_AND_EFFECT = """
local fresh = 0
local function undo(claim, reply, key)
    redis.call('DEL', claim)
    return redis.error_reply(reply.err .. ' (key ' .. key .. ')')
end
for i = 2, #KEYS, 2 do
    if redis.call('SET', KEYS[i], 'done', 'NX', 'PX', ARGV[1]) then
        local counted = redis.pcall('INCR', KEYS[i + 1])
        if type(counted) == 'table' then
            return undo(KEYS[i], counted, KEYS[i + 1])
        end
        redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
        local given = redis.pcall('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
        if type(given) == 'table' then
            redis.call('DECR', KEYS[i + 1])
            return undo(KEYS[i], given, KEYS[1] .. ', field ' .. ARGV[i])
        end
        fresh = fresh + 1
    elseif redis.call('GET', KEYS[i]) == 'done' then
        redis.call('PEXPIRE', KEYS[i], ARGV[1])
        redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
    else
        return redis.error_reply('BUSY ' .. KEYS[i] .. ' is in progress, in a receiver with --store redis')
    end
end
return fresh
"""


@dataclass(frozen=True)
class RedisSettings:
    """The Redis address, and how long a claim is kept when finished and while being worked on."""

    url: str = field(repr=False)  # may hold a password
    keep_s: float = 14 * 86_400.0
    claim_s: float = 30.0

    def client(self, on_connect: Callable[[Any], None] | None = None) -> redis.Redis:
        """Return a client that connects at its first use; ``on_connect`` replaces the library's; or `UsageError`."""
        try:
            checked_login(self.url, _OPTION, _EXAMPLE)
            made: redis.Redis = redis.Redis.from_url(
                self.url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S, redis_connect_func=on_connect
            )
        except ValueError:
            raise invalid_address(_OPTION, _EXAMPLE) from None  # Python quotes whatever it takes for the port
        return made


@dataclass(frozen=True)
class Keys:
    group: str

    @property
    def points(self) -> str:
        """Hash: customer -> points."""
        return f"receive:{self.group}:points"

    def topic(self, topic: str) -> str:
        """Return the key that holds the id of the topic whose messages the claims are for."""
        return f"receive:{self.group}:topic:{topic}"

    def claim(self, message_id: str) -> str:
        """Return the key of a claim, whose value is `done` or the token of the process working on it; expires."""
        return f"receive:{self.group}:claim:{message_id}"

    def effect(self, message_id: str) -> str:
        """Return the key that counts how often the effect was applied, for the check; expires with the claim."""
        return f"receive:{self.group}:effect:{message_id}"


class _InRedis(Receiver):
    """Common part of both receivers: the client, the names of keys, and a check for settings that lose claims."""

    def __init__(self, receiver_settings: ReceiverSettings, settings: RedisSettings, *, accept_weaker: bool) -> None:
        super().__init__(receiver_settings)
        self._keys, self._accept_weaker = Keys(receiver_settings.group), accept_weaker
        self._keep_ms, self._claim_ms = int(settings.keep_s * 1000), int(settings.claim_s * 1000)
        self._client = settings.client(self._connected)
        self._told: list[str] = []
        self._wrote = False

    def prepare(self) -> None:
        """Connect, which checks the settings that weaken the guarantee; raises `Refused` if they were not accepted."""
        with self._errors_mapped():
            self._client.ping()

    def _connected(self, connection: Any) -> None:
        """Check the settings of each new connection: a server that was restarted or replaced may have others."""
        connection.on_connect()
        unsafe = _unsafe(connection)
        if unsafe and not self._accept_weaker:
            connection.disconnect()
            raise Refused(
                f"Redis can lose claims: {'; '.join(unsafe)}. Change it, or accept duplicates with --accept-weaker"
            )
        for setting in unsafe:
            if setting not in self._told:
                self._told.append(setting)
                self.settings.tell(f"at least once only: {setting}")

    def claimed_topic_id(self, topic_id: str, deadline: Deadline, *, replace: bool) -> str:  # noqa: ARG002 - the shape
        key = self._keys.topic(self.settings.topic)
        with self._errors_mapped():
            self._client.set(key, topic_id, nx=not replace)
            self._wrote = True
            known = cast("bytes | None", self._client.get(key))
        return topic_id if known is None else known.decode("utf-8", "replace")

    @contextlib.contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except redis.AuthenticationError as error:  # a kind of ConnectionError
            raise Refused(f"redis refused the login: {error}; correct user and password in {_OPTION}") from error
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.OutOfMemoryError) as error:
            raise RetryLater(f"redis: {error}") from error
        except redis.ReadOnlyError as error:
            remedy = f"{error}; name the primary in {_OPTION}"
            if not self._wrote:
                raise Refused(f"redis refused, and a retry would not help: {remedy}") from error
            # A fail-over: the address may lead to the new primary, but this connection never does.
            self._client.connection_pool.disconnect()
            raise RetryLater(f"redis: {remedy}") from error
        except redis.RedisError as error:
            code = str(error).rpartition(_IN_PIPELINE)[2].partition(" ")[0]
            if isinstance(error, redis.exceptions.MasterDownError) or code in _PASSING:
                raise RetryLater(f"redis: {error}") from error
            raise Refused(
                f"redis refused, and a retry would not help: {error}; correct {_OPTION}, the server's "
                "settings, or the key that another program changed"
            ) from error

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._client.close()


def _unsafe(connection: Any) -> list[str]:
    """Return the settings with which Redis can lose claims, each with the value it should have."""
    unsafe = []
    for name, wanted in _SAFE.items():
        connection.send_command("CONFIG", "GET", name)
        try:
            answer = connection.read_response()
        except redis.ResponseError:
            return ["CONFIG GET is not allowed, so it is unknown whether claims can be lost"]
        # RESP3 answers with a map, RESP2 with a list.
        value = (answer.get(name.encode(), b"") if isinstance(answer, dict) else b"".join(answer[1:])).decode()
        if value != wanted:
            unsafe.append(f"{name} is {value!r}, must be {wanted!r}")
    return unsafe


Effect = Callable[[Message], None]


class RedisReceiver(_InRedis):
    """
    Claims with `SET NX` and an expiry, applies the effect, then marks the claim done; at least once, for any effect. A
    dead owner's claim expires after ``claim_s`` and the message is processed again, which is a duplicate if the owner
    died after the effect. An effect that fails releases the claim at once.
    """

    def __init__(
        self, receiver_settings: ReceiverSettings, settings: RedisSettings, effect: Effect | None = None
    ) -> None:
        super().__init__(receiver_settings, settings, accept_weaker=True)  # it promises only at least once
        self._effect = effect or self._give_points
        self._give_back = self._client.register_script(_GIVE_BACK)

    def claim(self, messages: Sequence[Message], context: HandlerContext) -> int:
        fresh = 0
        for message in messages:
            context.check(*context.partitions)
            with self._errors_mapped():
                fresh += self._one(message)
        return fresh

    def _one(self, message: Message) -> bool:
        """Process one message; return False if it was already done."""
        client, key, token = self._client, self._keys.claim(message.message_id), uuid.uuid4().hex
        if not client.set(key, token, nx=True, px=self._claim_ms):
            if client.get(key) == _DONE:  # the topic may keep this record longer than the one that was claimed
                for known in (key, self._keys.effect(message.message_id)):
                    client.pexpire(known, self._keep_ms)
                return False
            left_s = max(0, int(client.pttl(key))) / 1000
            raise RetryLater(
                f"message {message.message_id} is being processed, for {left_s:.1f} s at most", left_s + 0.01
            )
        self.settings.crash.at(CrashMoment.AFTER_CLAIM)
        try:
            self._effect(message)
        except Exception:
            self._give_back(keys=[key], args=[token])
            raise
        self.settings.crash.at(CrashMoment.BEFORE_COMMIT)
        client.set(key, _DONE, px=self._keep_ms)
        self.settings.crash.at(CrashMoment.AFTER_COMMIT)
        return True

    def _give_points(self, message: Message) -> None:
        """Apply the built-in effect: points, in the same Redis but not in the same step as the claim."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(self._keys.points, message.customer, message.points)
        pipe.incr(self._keys.effect(message.message_id))
        pipe.pexpire(self._keys.effect(message.message_id), self._keep_ms)
        pipe.execute()


class RedisScriptReceiver(_InRedis):
    """
    Claims and applies the effect in one script; exactly once for effects in this Redis, as long as it loses no writes.
    Eviction drops claims but keeps effects (duplicates), so it is refused. An expired claim is forgotten. A failover to
    a lagging replica loses claims and effects alike; reading again (`--again`) applies exactly the missing ones.
    """

    def __init__(
        self, receiver_settings: ReceiverSettings, settings: RedisSettings, *, accept_weaker: bool = False
    ) -> None:
        super().__init__(receiver_settings, settings, accept_weaker=accept_weaker)
        self._script = self._client.register_script(_CLAIM_AND_EFFECT)

    def claim(self, messages: Sequence[Message], context: HandlerContext) -> int:
        fresh = 0
        for begin in range(0, len(messages), _SCRIPT_MESSAGES):
            context.check(*context.partitions)
            chunk = messages[begin : begin + _SCRIPT_MESSAGES]
            names = [name(message.message_id) for message in chunk for name in (self._keys.claim, self._keys.effect)]
            arguments = [word for message in chunk for word in (message.customer, message.points)]
            self.settings.crash.at(CrashMoment.BEFORE_COMMIT)
            with self._errors_mapped():
                fresh += int(self._script(keys=[self._keys.points, *names], args=[self._keep_ms, *arguments]))
            self.settings.crash.at(CrashMoment.AFTER_COMMIT)
        return fresh
