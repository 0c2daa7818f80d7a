"""The bars that the campaign has to clear: what is wanted, what was measured, and whether it is enough."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proof.findings import Verdict
from proof.report.results import Result, Standing
from proof.report.times import Times, say_seconds
from protocol.names import CrashPoint

_KILL = "SIGKILL"
_DIRECT = "direct "
_LATE_TRIES = 1000


class Met(enum.StrEnum):
    """Whether a bar was cleared."""

    YES = "met"
    NO = "missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the issue's bars."""

    title: str
    wanted: str
    measured: str
    met: Met


def bars(results: Sequence[Result]) -> list[Bar]:
    """Judge every bar from the results that bear on it; positive controls bear on none."""
    mine = [result for result in results if not result.is_control]
    writer, spark = _killed(mine, "")
    direct_writer, direct_spark = _killed(mine, _DIRECT)
    coordinator = [result for result in mine if result.fault == _KILL and "coordinator" in result.target]
    return [
        _within("Writer killed, until the first new commit", 2.0, Times.recoveries(writer)),
        _within("Spark killed and restarted, until the first new commit", 15.0, Times.recoveries(spark)),
        _within("Coordinator killed, until the first new commit", 15.0, Times.recoveries(coordinator)),
        _within("Writer killed and restarted, readers held back", 3.0, Times.stalls(writer)),
        _epoch_overflow(mine),
        _volume(mine),
        _each_point("Kills at each crash point, writer", 100, writer),
        _each_point("Kills at each crash point, Spark", 10, spark),
        *_late_end_txn(results),
        _within("Direct reader: writer killed, until the first new commit", 2.0, Times.recoveries(direct_writer)),
        _within("Direct reader: Spark killed and restarted", 15.0, Times.recoveries(direct_spark)),
        _each_point("Direct reader: kills at each crash point, Spark", 10, direct_spark),
    ]


def _killed(results: Iterable[Result], reader: str) -> tuple[list[Result], list[Result]]:
    """The writers, and what belongs to Spark, that were killed while they read that way."""
    some = [result for result in results if result.fault == _KILL]
    writer = [result for result in some if result.path == f"{reader}writer" and result.target == "writer"]
    return writer, [result for result in some if result.path == f"{reader}spark"]


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
    met = not broken and tries >= _LATE_TRIES
    told.append(_judge(title, wanted, measured, met=met) if tries else _unknown(title, wanted))
    return told


def _broken(results: Iterable[Result]) -> tuple[int, int]:
    some = list(results)
    return sum(one.fired.get("broken", 0) for one in some), sum(one.fired.get("late_frames", 0) for one in some)


def _judge(title: str, wanted: str, measured: str, *, met: bool) -> Bar:
    return Bar(title, wanted, measured, Met.YES if met else Met.NO)


def _unknown(title: str, wanted: str) -> Bar:
    return Bar(title, wanted, "-", Met.UNKNOWN)


def _within(title: str, limit_s: float, times: Times) -> Bar:
    wanted = f"p95 within {limit_s:g} s"
    if not times.count:
        return _unknown(title, wanted)
    p95 = times.quantile(0.95)
    return _judge(title, wanted, f"p95 {say_seconds(p95)} of {times.count:,}", met=p95 <= limit_s)


def _epoch_overflow(results: Iterable[Result]) -> Bar:
    title, least = "Transactions on one id, across the epoch overflow", 33_000
    wanted = f"{least:,}, 0 anomalies"
    runs = [(_ended(result), result) for result in results if result.row == "F28"]
    if not runs:
        return _unknown(title, wanted)
    most, anomalies = max(ended for ended, _ in runs), sum(result.violations for _, result in runs)
    proven = any(ended >= least and result.standing is Standing.PROVEN for ended, result in runs)
    return _judge(title, wanted, f"{most:,}, {anomalies:,} anomalies", met=proven and not anomalies)


def _ended(result: Result) -> int:
    return result.counts.get("committed_transactions", 0) + result.counts.get("aborted_transactions", 0)


def _volume(results: Sequence[Result]) -> Bar:
    title = "All runs together"
    least = {"inputs": 1_000_000, "committed_transactions": 10_000, "aborted_transactions": 3_000}
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.counts)
    anomalies = sum(result.violations for result in results)
    met = all(total[kind] >= wanted for kind, wanted in least.items()) and not anomalies
    if not any(total[kind] for kind in least):
        return _unknown(title, _say_volume(least, 0))
    return _judge(title, _say_volume(least, 0), _say_volume(total, anomalies), met=met)


def _say_volume(counts: dict[str, int], anomalies: int) -> str:
    transactions = f"{counts['committed_transactions']:,} committed, {counts['aborted_transactions']:,} aborted"
    return f"{counts['inputs']:,} records, {transactions}, {anomalies:,} anomalies"


def _each_point(title: str, least: int, results: Iterable[Result]) -> Bar:
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
    return _judge(title, wanted, measured, met=kills[fewest] >= least and not anomalies)
