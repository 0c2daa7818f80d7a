"""The bars that the campaign has to clear: what is wanted, what was measured, and whether it is enough."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from proof.findings import Verdict
from proof.report.results import Result, Standing
from proof.report.times import Times, say_seconds
from protocol.names import CrashPoint

_KILL = "SIGKILL"
CLAIMS_RACES, STORE_KILLS = "claims races", "store kills"
"""Paths of results that other commands than the campaign write."""
_STORES = ("ledger", "postgres", "redis-script", "redis")
_READERS = ("connector", "direct")
_LATE_TRIES = 1000
_WRITER_KILLS, _SPARK_KILLS, _POINT_KILLS, _TIMES, _STORE_KILLS = 200, 20, 100, 20, 200
_SPARK_S = {"connector": 10.0, "direct": 6.0}


class Met(enum.StrEnum):
    """Whether a bar was cleared; a sample that is smaller than wanted shows nothing, whatever it holds."""

    YES = "met"
    NO = "missed"
    SHORT = "not shown"
    OUTDATED = "of another kernel"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the issue's bars."""

    title: str
    wanted: str
    measured: str
    met: Met


def bars(results: Sequence[Result]) -> list[Bar]:
    """
    Judge every bar from the current results that bear on it; positive controls bear on none.

    A bar that only results of another kernel bear on shows what they measured, and is neither met nor missed.
    """
    now = _bars([result for result in results if result.current])
    ever = _bars(results)
    return [
        replace(old, met=Met.OUTDATED) if new.met is Met.UNKNOWN and old.met is not Met.UNKNOWN else new
        for new, old in zip(now, ever, strict=True)
    ]


def _bars(results: Sequence[Result]) -> list[Bar]:
    mine = [result for result in results if not result.is_control]
    coordinator = [result for result in mine if result.fault == _KILL and "coordinator" in result.target]
    stalls = Times.stalls(one for reader in _READERS for one in _writer(mine, reader))
    return [
        *(_writer_killed(reader, mine) for reader in _READERS),
        *(_spark_restarted(reader, mine) for reader in _READERS),
        _within("Coordinator killed, until the first new commit", 15.0, Times.recoveries(coordinator), _TIMES),
        _within("Writer killed and restarted, readers held back", 3.0, stalls, _TIMES),
        _epoch_overflow(mine),
        _volume(mine),
        *(_each_point(f"Kills at each crash point, {reader} reader", _writer(mine, reader)) for reader in _READERS),
        *(_each_point(f"The same through Spark, {reader} reader", _spark(mine, reader)) for reader in _READERS),
        *_late_end_txn(results),
        *(_often(title, kind, _TIMES, mine) for title, kind in _HELD.items()),
        *(
            _often(f"{title}, {reader} reader", kind, _TIMES, _spark(mine, reader))
            for title, kind in _STRUCK.items()
            for reader in _READERS
        ),
        _often("Rounds of eight claimants racing", "rounds", 1000, [one for one in mine if one.path == CLAIMS_RACES]),
        *(_often(f"Kills around the commit, {store}", "kills", _STORE_KILLS, _store(mine, store)) for store in _STORES),
    ]


_HELD = {
    "Lease lost": "leases_lost",
    "Holder frozen past its lease": "holders_frozen",
    "Driver frozen past all leases": "drivers_frozen",
}
_STRUCK = {"Driver and executor killed together": "killed_together", "Two drivers on one group": "meetings"}


def _of(reader: str, path: str) -> set[str]:
    """What a result's path is called; cells of the connector had no reader in it once."""
    return {f"{reader} {path}", *([path] if reader == "connector" else [])}


def _writer(results: Iterable[Result], reader: str) -> list[Result]:
    """Writers without Spark that were killed while they read that way."""
    paths = _of(reader, "writer")
    return [one for one in results if one.fault == _KILL and one.path in paths and one.target == "writer"]


def _spark(results: Iterable[Result], reader: str) -> list[Result]:
    paths = _of(reader, "spark")
    return [one for one in results if one.path in paths]


def _store(results: Iterable[Result], store: str) -> list[Result]:
    """What `make kills` did to one store."""
    return [one for one in results if (one.path, one.target) == (STORE_KILLS, store)]


def _writer_killed(reader: str, results: Sequence[Result]) -> Bar:
    title = f"Writer killed, until the first new commit, {reader} reader"
    return _within(title, 2.0, Times.recoveries(_writer(results, reader)), _WRITER_KILLS)


def _spark_restarted(reader: str, results: Sequence[Result]) -> Bar:
    title = f"Spark killed and restarted, {reader} reader"
    killed = [one for one in _spark(results, reader) if one.fault == _KILL and one.target.startswith("driver")]
    return _within(title, _SPARK_S[reader], Times.recoveries(killed), _SPARK_KILLS)


def _late_end_txn(results: Sequence[Result]) -> list[Bar]:
    """F11 is believed only while the control breaks; and then ours may not, a thousand times over."""
    tried = [result for result in results if result.row == "F11" and "broken" in result.fired]
    control = [result for result in tried if result.expected is Verdict.VIOLATED]
    strict = [result for result in tried if result.expected is not Verdict.VIOLATED]
    told = []
    title, wanted = "Late EndTxn, producer reused (control)", "95 % broken at least"
    broken, tries = _broken(control)
    measured = f"{broken:,} of {tries:,} broken"
    told.append(_judge(title, wanted, measured, met=broken >= 0.95 * tries) if tries else _unknown(title, wanted))
    title, wanted = "Late EndTxn, a producer per transaction", "0 of 1,000 broken"
    broken, tries = _broken(strict)
    measured = f"{broken:,} of {tries:,} broken"
    bar = _judge(title, wanted, measured, met=not broken, shown=bool(broken) or tries >= _LATE_TRIES)
    told.append(bar if tries else _unknown(title, wanted))
    return told


def _broken(results: Iterable[Result]) -> tuple[int, int]:
    some = list(results)
    return sum(one.fired.get("broken", 0) for one in some), sum(one.fired.get("late_frames", 0) for one in some)


def _judge(title: str, wanted: str, measured: str, *, met: bool, shown: bool = True) -> Bar:
    return Bar(title, wanted, measured, (Met.YES if met else Met.NO) if shown else Met.SHORT)


def _unknown(title: str, wanted: str) -> Bar:
    return Bar(title, wanted, "-", Met.UNKNOWN)


def _within(title: str, limit_s: float, times: Times, least: int) -> Bar:
    wanted = f"p95 within {limit_s:g} s of at least {least:,}"
    if not times.count:
        return _unknown(title, wanted)
    p95 = times.quantile(0.95)
    measured = f"p95 {say_seconds(p95)} of {times.count:,}"
    return _judge(title, wanted, measured, met=p95 <= limit_s, shown=times.count >= least)


def _often(title: str, kind: str, least: int, results: Iterable[Result]) -> Bar:
    """A fault that happened so often, in runs that show something, and broke nothing."""
    wanted = f"{least:,}, 0 anomalies"
    some = [one for one in results if kind in one.fired and one.standing is not Standing.INCONCLUSIVE]
    if not some:
        return _unknown(title, wanted)
    times, anomalies = sum(one.fired[kind] for one in some), sum(one.violations for one in some)
    shown = bool(anomalies) or times >= least
    return _judge(title, wanted, f"{times:,}, {anomalies:,} anomalies", met=not anomalies, shown=shown)


def _epoch_overflow(results: Iterable[Result]) -> Bar:
    title, least = "Transactions on one id, across the epoch overflow", 33_000
    wanted = f"{least:,}, 0 anomalies"
    runs = [(_ended(result), result) for result in results if result.row == "F28"]
    if not runs:
        return _unknown(title, wanted)
    most, anomalies = max(ended for ended, _ in runs), sum(result.violations for _, result in runs)
    proven = any(ended >= least and result.verdict is Verdict.PROVEN for ended, result in runs)
    shown = bool(anomalies) or proven
    return _judge(title, wanted, f"{most:,}, {anomalies:,} anomalies", met=not anomalies, shown=shown)


def _ended(result: Result) -> int:
    return result.counts.get("committed_transactions", 0) + result.counts.get("aborted_transactions", 0)


def _volume(results: Sequence[Result]) -> Bar:
    title = "All runs together"
    least = {"inputs": 1_000_000, "committed_transactions": 10_000, "aborted_transactions": 3_000}
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.counts)
    anomalies = sum(result.violations for result in results)
    enough = all(total[kind] >= wanted for kind, wanted in least.items())
    if not any(total[kind] for kind in least):
        return _unknown(title, _say_volume(least, 0))
    shown = bool(anomalies) or enough
    return _judge(title, _say_volume(least, 0), _say_volume(total, anomalies), met=not anomalies, shown=shown)


def _say_volume(counts: dict[str, int], anomalies: int) -> str:
    transactions = f"{counts['committed_transactions']:,} committed, {counts['aborted_transactions']:,} aborted"
    return f"{counts['inputs']:,} records, {transactions}, {anomalies:,} anomalies"


def _each_point(title: str, results: Iterable[Result]) -> Bar:
    least = _POINT_KILLS
    wanted = f"{least} at each of {len(CrashPoint)}, 0 anomalies"
    kills: Counter[str] = Counter()
    anomalies = 0
    for result in results:
        if result.fault == _KILL and result.moment in tuple(CrashPoint):
            kills[result.moment] += result.fired.get("kills", 0)
            anomalies += result.violations
    if not kills:
        return _unknown(title, wanted)
    fewest = min(CrashPoint, key=lambda point: kills[point])
    measured = f"fewest {kills[fewest]:,} ({fewest}), {kills.total():,} in all, {anomalies:,} anomalies"
    return _judge(title, wanted, measured, met=not anomalies, shown=bool(anomalies) or kills[fewest] >= least)
