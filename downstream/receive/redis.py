"""Receivers that claim in Redis: a claim beside the effect (at least once), or both in one script (see each class)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

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
_SAFE = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}

# Takes a claim back only if it is still ours: by now it may have run out and be another's.
_GIVE_BACK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# Redis runs a script without anything in between, and writes all of it to its log, or nothing.
_CLAIM_AND_EFFECT = """
local fresh = 0
for i = 2, #KEYS, 2 do
    if redis.call('SET', KEYS[i], 'done', 'NX', 'PX', ARGV[1]) then
        redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
        redis.call('INCR', KEYS[i + 1])
        redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
        fresh = fresh + 1
    end
end
return fresh
"""


@dataclass(frozen=True)
class RedisSettings:
    """Where Redis is; how long a finished claim is known, and how long one that is being worked on."""

    url: str = field(repr=False)  # may hold a password
    keep_s: float = 14 * 86_400.0
    claim_s: float = 30.0

    def client(self) -> redis.Redis:
        """
        A client, which connects at its first use.

        Raises:
            UsageError: the address can't be read.
        """
        try:
            checked_login(self.url, _OPTION, _EXAMPLE)
            made: redis.Redis = redis.Redis.from_url(
                self.url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S
            )
        except ValueError:
            raise invalid_address(_OPTION, _EXAMPLE) from None  # Python quotes what it takes for the port
        return made


@dataclass(frozen=True)
class Keys:
    """Names of a group's keys."""

    group: str

    @property
    def points(self) -> str:
        """Hash: customer -> points."""
        return f"receive:{self.group}:points"

    def claim(self, message_id: str) -> str:
        """Value of a claim: `done`, or the token of the process that works on it; expires."""
        return f"receive:{self.group}:claim:{message_id}"

    def effect(self, message_id: str) -> str:
        """How often the effect took place, for the check; runs out with the claim."""
        return f"receive:{self.group}:effect:{message_id}"


class _InRedis(Receiver):
    """What both receivers share: the client, the names of keys, and a look at settings that lose claims."""

    def __init__(self, receiver_settings: ReceiverSettings, settings: RedisSettings, *, accept_weaker: bool) -> None:
        super().__init__(receiver_settings)
        self._keys, self._accept_weaker = Keys(receiver_settings.group), accept_weaker
        self._keep_ms, self._claim_ms = int(settings.keep_s * 1000), int(settings.claim_s * 1000)
        self._client = settings.client()

    def prepare(self) -> None:
        """
        Report what weakens the guarantee.

        Raises:
            Refused: a setting does, and that was not accepted.
        """
        with self._mapped():
            unsafe = self._unsafe()
        if unsafe and not self._accept_weaker:
            raise Refused(
                f"redis can forget claims: {'; '.join(unsafe)}. Change it, or accept duplicates with --accept-weaker"
            )
        for setting in unsafe:
            self.settings.tell(f"at least once only: {setting}")

    def _unsafe(self) -> list[str]:
        """The settings under which Redis can lose claims, each with the value that it should have."""
        try:
            settings = {name: str(self._client.config_get(name).get(name)) for name in _SAFE}
        except redis.ResponseError:
            return ["CONFIG GET is not allowed, so nobody knows whether claims can be forgotten"]
        return [
            f"{name} is {settings[name]!r}, needed is {wanted!r}"
            for name, wanted in _SAFE.items()
            if settings[name] != wanted
        ]

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.OutOfMemoryError) as error:
            raise RetryLater(f"redis: {error}") from error
        except redis.RedisError as error:
            raise Refused(f"redis refused, and would again: {error}") from error

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._client.close()


Effect = Callable[[Message], None]


class RedisReceiver(_InRedis):
    """
    Claim with `SET NX` and an expiry, effect, then mark the claim done; at least once, for an effect anywhere.

    A claim whose holder died runs out after ``claim_s``, and the message is worked on again: if the holder died
    behind the effect, that is a duplicate. An effect that fails gives the claim back at once.
    """

    def __init__(
        self, receiver_settings: ReceiverSettings, settings: RedisSettings, effect: Effect | None = None
    ) -> None:
        super().__init__(receiver_settings, settings, accept_weaker=True)  # it promises no more than at least once
        self._effect = effect or self._give_points
        self._give_back = self._client.register_script(_GIVE_BACK)

    def claim(self, messages: Sequence[Message], context: HandlerContext) -> int:
        fresh = 0
        for message in messages:
            context.check(*context.partitions)
            with self._mapped():
                fresh += self._one(message)
        return fresh

    def _one(self, message: Message) -> bool:
        """One message; False when it was done before."""
        client, key, token = self._client, self._keys.claim(message.message_id), uuid.uuid4().hex
        if not client.set(key, token, nx=True, px=self._claim_ms):
            if client.get(key) == _DONE:
                return False
            left_s = max(0, int(client.pttl(key))) / 1000
            raise RetryLater(
                f"message {message.message_id} is being worked on, for {left_s:.1f} s at most", left_s + 0.01
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
        """The built-in effect: points, in the same Redis and yet not in the same step as the claim."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(self._keys.points, message.customer, message.points)
        pipe.incr(self._keys.effect(message.message_id))
        pipe.pexpire(self._keys.effect(message.message_id), self._keep_ms)
        pipe.execute()


class RedisScriptReceiver(_InRedis):
    """
    Claim and effect in one script; exactly once for effects in this Redis, as long as it keeps what it was told.

    Eviction forgets claims and keeps effects (duplicates), so it is refused. A claim that runs out is forgotten. A
    fail-over to a replica that lags forgets claims and effects alike: what was read before is missing, and reading it
    again (`--again`) brings about exactly what is missing.
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
            with self._mapped():
                fresh += int(self._script(keys=[self._keys.points, *names], args=[self._keep_ms, *arguments]))
            self.settings.crash.at(CrashMoment.AFTER_COMMIT)
        return fresh
