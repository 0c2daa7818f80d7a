"""A member with its own heartbeat thread, and its users: a driver's share of partitions, and stand-by."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Self

from brew.acl import denial_in
from brew.claims.log import Log
from brew.claims.member import INTERVAL_S, Holding, Member, Membership
from brew.claims.messages import WHOLE_TOPIC
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused

_POLLS_PER_INTERVAL = 10
_MAX_POLL_S = 0.25
_JOIN_S = 30.0
_LEAVE_S, _MOMENT_S = 3.0, 0.1
_CALL_INTERVALS = 2
DENIED_S, _LEAST_DENIALS, _UNSEEN_S = 10.0, 3, 30.0


class Denials:
    """
    How long a right has been missing: the time of a row of failures that are all authorization failures. A missing
    right does not come back by itself; a newly granted one takes effect within seconds, so `DENIED_S` are waited for.
    Fewer than three denials are no row, and ``unseen_s`` without any end one: nobody looked meanwhile.
    """

    def __init__(self, unseen_s: float = _UNSEEN_S) -> None:
        self._unseen_s = unseen_s
        self._since = self._last = 0.0
        self._count = 0

    def failed(self, reason: str, now: float) -> float:
        """Add a failure; return the seconds of the row so far, 0 if it is none."""
        if denial_in(reason) is None:
            self.clear()
            return 0.0
        if self._count == 0 or now - self._last > self._unseen_s:
            self._count, self._since = 0, now
        self._count, self._last = self._count + 1, now
        return now - self._since if self._count >= _LEAST_DENIALS else 0.0

    def clear(self) -> None:
        """End the row, because something succeeded."""
        self._count = 0


class Heartbeater:
    """
    Keeps one member's partitions; any thread may call its methods. Only `release_partitions`, `claim_messages`, `leave`
    and the ends of the `with` block wait for a broker.

    ``healthy``: while it returns False (the process lives but its work hangs), no heartbeat is sent; others take over.
    ``patience_s``: how long the claims topic may be out of reach before the heartbeater gives up; None: for ever. If a
    right is missing, it gives up after ten seconds.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        membership: Membership,
        *,
        healthy: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
        patience_s: float | None = None,
    ) -> None:
        self.membership = membership
        self._open_log, self._healthy, self._now = open_log, healthy, now
        self._patience_s, self._failing_since = math.inf if patience_s is None else patience_s, math.inf
        self._denials = Denials(max(_UNSEEN_S, membership.interval_s))
        self._lock = threading.Lock()
        self._end, self._changed = threading.Event(), threading.Condition()
        self._held: Mapping[int, Holding] = {}
        self._to_release: frozenset[int] = frozenset()
        self._done: dict[int, Holding] = {}
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.owners: Mapping[int, str] = {}
        """The owner of each partition, as far as the log was read, without free partitions."""
        self.last_error: str | None = None
        """Why heartbeats fail; the next one tries again. None after one that succeeded."""

    def __enter__(self) -> Self:
        self._log = self._open_log()
        try:
            self._member = Member(self._log, self.membership, self._now)
            self._member.join(Deadline(_JOIN_S))
        except BaseException:
            self._log.close()
            raise
        with self._lock:
            self._publish()
        thread = threading.Thread(target=self._run, name="claims", daemon=True)
        thread.start()
        self._thread = thread
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Release what is held, at the last reported positions, if the log answers; end the thread. Idempotent."""
        if self._end.is_set() or self._thread is None:
            return
        self._end.set()
        deadline = Deadline(_LEAVE_S)
        self._thread.join(_MOMENT_S if self._failing() else deadline.remaining_s())
        # A call that still waits for a broker holds the lock, and uses the log.
        if self._thread.is_alive() or not self._lock.acquire(timeout=deadline.remaining_s()):
            self._held = {}
            return
        try:
            if self._failure is None and not self._failing():
                with contextlib.suppress(DeadlineExceeded, KafkaFailure):
                    self._member.progress(self._done)
                    self._member.leave(deadline)
            self._publish()
        finally:
            self._lock.release()
        self._log.close()

    def _failing(self) -> bool:
        return self._failing_since < math.inf

    def held(self) -> dict[int, Holding]:
        """Return the partitions that this member certainly owns now; raises the error that made it give up."""
        if self._failure is not None:
            raise self._failure
        return {p: holding for p, holding in self._held.items() if self._now() < holding.confirmed_until}

    def to_release(self) -> frozenset[int]:
        """Return the partitions to release once the current work on them is done."""
        return self._to_release & self._held.keys()

    def set_partitions(self, partitions: tuple[int, ...]) -> None:
        """Set the partitions that may be claimed from now on, because the topic has grown."""
        with self._lock:
            self.membership = replace(self.membership, partitions=partitions)
            self._member.membership = self.membership

    def wait(self, timeout_s: float) -> None:
        """Return when something may have changed, or after that time."""
        with self._changed:
            self._changed.wait(timeout_s)

    def progress(self, done: Mapping[int, Holding]) -> None:
        """Record that these holdings are processed up to their positions; the next heartbeat reports it."""
        self._done = {**self._done, **done}

    def claim_messages(self, partition: int, holding: Holding, proposed: int) -> bool:
        """Return whether everything below ``proposed`` is now this member's to work on, and never anyone else's."""
        with self._lock:
            try:
                return self._member.claim_messages(partition, holding, proposed, Deadline(self._call_timeout_s()))
            except (DeadlineExceeded, KafkaFailure):
                return False
            finally:
                self._publish()

    def release_partitions(self, done: Mapping[int, Holding], deadline: Deadline | None = None) -> None:
        """
        Release these holdings at their positions; one whose release can't be sent becomes stale by itself.

        Nothing is released if a call still waits for a broker at the deadline, which is two calls' time by default.
        """
        deadline = deadline or Deadline(2 * self._call_timeout_s())
        if not self._lock.acquire(timeout=deadline.remaining_s()):
            return
        try:
            for partition in done:
                self._done.pop(partition, None)
            if self._failure is not None:
                return
            with contextlib.suppress(DeadlineExceeded, KafkaFailure):
                self._member.release_partitions(done, deadline.part(self._call_timeout_s()))
            self._publish()
        finally:
            self._lock.release()

    def _call_timeout_s(self) -> float:
        return max(1.0, _CALL_INTERVALS * self.membership.interval_s)

    def _run(self) -> None:
        poll_s = min(_MAX_POLL_S, self.membership.interval_s / _POLLS_PER_INTERVAL)
        while not self._end.wait(poll_s):
            if not self._healthy():
                self.last_error = "the work hangs"
                continue
            with self._lock:
                try:
                    self._member.progress(self._done)
                    if self._member.turn(Deadline(self._call_timeout_s())):
                        self.last_error, self._failing_since = None, math.inf
                        self._denials.clear()
                except (DeadlineExceeded, KafkaFailure) as error:
                    self._failed(str(error))
                except BaseException as error:  # noqa: BLE001 - `held` raises it, in the thread that works
                    self._failure = error
                    self._held = {}
                self._publish()
            if self._failure is not None:
                return

    def _failed(self, reason: str) -> None:
        """Keep the reason of a failed turn; give up once all have failed for ``patience_s``, or without a right."""
        self.last_error, now = reason, self._now()
        self._failing_since = min(self._failing_since, now)
        failing_s, denied_s, failure = now - self._failing_since, self._denials.failed(reason, now), None
        if failing_s > self._patience_s:
            failure = (
                f"the claims topic was out of reach for {failing_s:.0f} s (--patience is {self._patience_s:g} s), so "
                f"this process may own nothing: {reason}; run it again, which creates the topic if it was deleted"
            )
        elif denied_s > DENIED_S:
            failure = (
                f"no heartbeat was accepted in the {denied_s:.0f} s after an authorization failure, so "
                f"this process may own nothing: {reason}; grant the right, and run it again"
            )
        if failure is not None:
            self._held, self._failure = {}, Refused(failure)

    def _publish(self) -> None:
        """Publish copies for the other threads, which never access the member itself; call it with the lock held."""
        if self._failure is None:
            self._held = {} if self._end.is_set() else dict(self._member.holdings)  # who leaves works on nothing
            self._to_release = self._member.to_release
            owned = self._member.owned()
            self.owners = {p: claim.owner for p, claim in owned.items() if claim.owner is not None and not claim.free}
        with self._changed:
            self._changed.notify_all()


class HeldPartitions:
    """The partitions that a heartbeater's user works on; for one thread. Calls raise the same as `Heartbeater.held`."""

    def __init__(self, heartbeater: Heartbeater) -> None:
        self._heartbeater = heartbeater
        self._tokens: dict[int, int] = {}

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._tokens)

    def lost(self) -> list[int]:
        """Return and drop the partitions that are no longer certainly owned, or owned by another claim."""
        held = self._heartbeater.held()
        gone = [p for p, token in self._tokens.items() if p not in held or held[p].token != token]
        self.drop(gone)
        return gone

    def due(self) -> list[int]:
        """Return the held partitions that are due to others, to be released once the work on them is done."""
        return sorted(self._heartbeater.to_release() & self._tokens.keys())

    def gained(self, but: Collection[int] = ()) -> list[int]:
        """Return and add the partitions that are owned but not in the set, except those in ``but``."""
        held = self._heartbeater.held()
        new = sorted(held.keys() - self._tokens.keys() - set(but))
        self._tokens |= {p: held[p].token for p in new}
        return new

    def release_partitions(self, partitions: Collection[int]) -> None:
        """Release these partitions at the positions in the log; their next owners can claim them at once."""
        held = self._heartbeater.held()
        self._heartbeater.release_partitions({p: held[p] for p in partitions if p in held})
        self.drop(partitions)

    def drop(self, partitions: Iterable[int]) -> None:
        """Drop these partitions, whoever released them."""
        for partition in partitions:
            self._tokens.pop(partition, None)


_POLL_S = 0.25


class StandBy:
    """
    Leadership of a topic: `wait` for it, check `holds` before each piece of work, leave with the block. Two processes
    may both believe for a moment that they lead; their writes must be fenced by other means. ``resumes``: as for
    `Membership`.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        *,
        group: str,
        topic: str,
        client_id: str,
        interval_s: float = INTERVAL_S,
        resumes: bool = True,
    ) -> None:
        membership = Membership(client_id, group, topic, (WHOLE_TOPIC,), interval_s, resumes=resumes)
        self._heartbeater = Heartbeater(open_log, membership)

    def __enter__(self) -> Self:
        self._heartbeater.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give up leadership; the next leader can claim it at once."""
        self._heartbeater.leave()

    def wait(self, stop: threading.Event, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait for leadership, calling ``meanwhile`` before each pause; False if ``stop`` was set first."""
        while not stop.is_set():
            if self.holds():
                return True
            if self.paused and (mine := self._heartbeater.held()):  # whoever waits no longer works
                self._heartbeater.release_partitions(mine, Deadline(_LEAVE_S))
            meanwhile()
            self._heartbeater.wait(_POLL_S)
        return False

    def holds(self) -> bool:
        """Return whether leadership is certain and not `paused`; raises the error that made the heartbeater give up."""
        return WHOLE_TOPIC in self._heartbeater.held() and not self.paused

    @property
    def paused(self) -> bool:
        """Whether leadership is to be given up because another client has paused the group."""
        return WHOLE_TOPIC in self._heartbeater.to_release()

    @property
    def owner(self) -> str | None:
        """The leader's client id, as far as the log was read; None if there is none, or it is stale."""
        return self._heartbeater.owners.get(WHOLE_TOPIC)

    @property
    def last_error(self) -> str | None:
        return self._heartbeater.last_error

    @property
    def token(self) -> int | None:
        """The fencing token; None while this process is not the leader."""
        holding = self._heartbeater.held().get(WHOLE_TOPIC)
        return None if holding is None else holding.token


IsIdle = Callable[[int], bool]
"""Whether a partition has no running work, so that it may be handed over."""


ALL_PARTITIONS: Container[int] = range(2**31)  # Kafka's numbers are int32


class Ownership:
    """Which partitions a driver owns: a single one all. It only avoids conflicts; the fence decides what is visible."""

    def refresh(self, idle: IsIdle) -> Container[int]:  # noqa: ARG002 - for drivers that share partitions
        """Hand over idle partitions due to others; return those owned now. Raises `BrewError` if it ended for good."""
        return ALL_PARTITIONS

    def current_partitions(self) -> Container[int]:
        """Return the partitions owned now, without handing any over; never raises."""
        return ALL_PARTITIONS

    def set_partitions(self, partitions: Iterable[int]) -> None:
        """Set the partitions that the input has now."""


class ClaimedOwnership(Ownership):
    """The partitions that a heartbeater holds, for all lanes; ``report`` gets a line for each change."""

    def __init__(self, heartbeater: Heartbeater, report: Callable[[str], None]) -> None:
        self._heartbeater, self._held, self._report = heartbeater, HeldPartitions(heartbeater), report
        self._lock = threading.Lock()

    def refresh(self, idle: IsIdle) -> Container[int]:
        with self._lock:
            held = self._held
            lost, gained, due = held.lost(), held.gained(), held.due()
            released = [p for p in due if idle(p)]
            if released:
                held.release_partitions(released)
            if lost or gained or released:
                self._report_changes(lost, released)
            return held.partitions - set(due)

    def _report_changes(self, lost: Collection[int], released: Collection[int]) -> None:
        membership, held = self._heartbeater.membership, self._held.partitions
        counts = f"{len(held)} of {len(membership.partitions)} partitions"
        lines = [f"{membership.client_id} works on {counts}: {listed(held) or '-'}"]
        why = f" ({self._heartbeater.last_error})" if self._heartbeater.last_error else ""
        lines += [f"lost {listed(lost)}{why}"] if lost else []
        lines += [f"gave back {listed(released)}"] if released else []
        self._report("; ".join(lines))

    def current_partitions(self) -> Container[int]:
        try:
            return self._heartbeater.held().keys()
        except BrewError:  # `refresh` raises it
            return ()

    def set_partitions(self, partitions: Iterable[int]) -> None:
        self._heartbeater.set_partitions(tuple(partitions))


def listed(partitions: Iterable[int]) -> str:
    """Format partition numbers, as `0-3, 6`."""
    # In a run of adjacent numbers, each differs from its index by the same amount.
    runs = [[number for _, number in run] for _, run in groupby(enumerate(sorted(partitions)), lambda p: p[1] - p[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
