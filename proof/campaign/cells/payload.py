"""Invalid records: garbage, very large values, deeply nested JSON."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from brew.deadline import Deadline
from brew.kafka import cluster_admin, topics
from brew.offsets import SourcePosition
from brew.orders import Reason
from brew.records import ERROR_REASON
from proof import log_summary
from proof.campaign.cell import CellTable
from proof.campaign.programs import digest, parsed, watching
from proof.campaign.stage import CellEnvironment
from proof.oracle import beyond
from proof.seed import Writer

MAX_BYTES = 4096
MAX_DEPTH = 20
"""Limits set for the program under test, low enough for thousands of payloads around them."""
_MIB, _MOST_NESTED, _MOST_MEMBERS = 1024 * 1024, 6, 5
_GIANTS = (1, 10)
Payload = tuple[bytes | None, bytes | None]
Random = random.Random
_TEXTS = (
    "", "c-1", "gold", "\u2028", "\U0001f9a7", "\x00", "\ud800", "\udc00\ud800", '"', "\\", "[" * 40, "}" * 40, "é" * 9,
)  # fmt: skip
_NAMES = ("order_id", "total_cents", "loyalty_tier", "loyalty_discount", "store", "a", "", "\x7f", "customer_id ", "[{")
_NUMBERS = (
    b"0", b"-0", b"00", b"1.", b".5", b"+1", b"1e5", b"1E+400", b"-1e-400", b"1e999999", b"0x10", b"NaN", b"-Infinity",
    b"9007199254740993", b"18446744073709551616", b"0.1000000000000000055", b"9" * 400, b"-" + b"1" * 200 + b".5",
)  # fmt: skip
_BAD_UTF8 = (
    b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\xa6", b"\xfe\xff",
)  # fmt: skip
_CUSTOMERS = (
    b"null", b'""', b"7", b"[]", b"{}", b"true", b"1e400", b'"\\u0000"', b'" "', b'"\\ud83e\\udda7"', b'"\\ud800"',
)  # fmt: skip
_STRAYS = (b"\x00", b"\n", b"\\", b'"', b"\\u0000", b"\\ud800", b"\x1b[31m")
_KEYS = (None, b"", b"gold", b"-", b"gold-", b"\xff\xfe-key", b"GOLD-1", b"silver-" + b"k" * 300, b"\x00", b"bronze-1")


def payloads(count: int, seed: int) -> Iterator[Payload]:
    """Yield ``count`` keys and values, and then two values of 1 and 10 MB."""
    for number in range(count):
        yield payload(seed, number)
    for size in _GIANTS:
        yield b"gold-giant", b'{"customer_id":"c","note":"' + b"x" * (size * _MIB) + b'"}'


def payload(seed: int, number: int) -> Payload:
    """Return a payload that depends only on seed and number; the kinds take turns."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - not for security
    key = rng.choice(_KEYS) if _once_in(5, rng) else b"%s-%d" % (rng.choice((b"gold", b"tin", b"silver")), number)
    return key, KINDS[number % len(KINDS)](rng)


def tree(rng: Random, nested: int = 0) -> Any:
    """Return any JSON value, nested a few levels deep."""
    match rng.randrange(4 if nested < _MOST_NESTED else 2):
        case 0:
            return rng.choice((None, True, False, rng.random(), rng.randrange(-(2**70), 2**70), rng.randrange(100)))
        case 1:
            return rng.choice(_TEXTS)
        case 2:
            return [tree(rng, nested + 1) for _ in range(rng.randrange(_MOST_MEMBERS))]
        case _:
            return {_name(rng): tree(rng, nested + 1) for _ in range(rng.randrange(_MOST_MEMBERS))}


def order(rng: Random) -> bytes:
    """Return an order as any producer may write it: a customer, any other fields, any spacing."""
    members = {_name(rng): tree(rng, 1) for _ in range(rng.randrange(_MOST_MEMBERS))}
    if not _once_in(10, rng):
        members["customer_id"] = f"c-{rng.randrange(1000)}"
    pairs = list(members.items())
    rng.shuffle(pairs)
    spacing = rng.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:\r ")))
    text = json.dumps(dict(pairs), ensure_ascii=not _once_in(3, rng), separators=spacing)
    return text.encode("utf-8", "surrogatepass")


def _once_in(times: int, rng: Random) -> bool:
    return rng.randrange(times) == 0


def _name(rng: Random) -> str:
    return rng.choice(_NAMES) if _once_in(2, rng) else f"n{rng.randrange(10**6)}"


def _inserted(text: bytes, what: bytes, rng: Random) -> bytes:
    position = rng.randrange(len(text) + 1)
    return text[:position] + what + text[position:]


def _member(text: bytes, name: bytes, value: bytes, rng: Random) -> bytes:
    """Add a member, first or last, even if one with this name exists."""
    member = b'"' + name + b'":' + value
    if _once_in(2, rng):
        return b"{" + member + b"," + text.lstrip()[1:]
    return text.rstrip()[:-1] + b"," + member + b"}"


def cut(rng: Random) -> bytes:
    text = order(rng)
    begin = rng.randrange(len(text)) if _once_in(5, rng) else 0
    return text[begin : rng.randrange(begin, len(text) + 1)]


def flipped(rng: Random) -> bytes:
    text = bytearray(order(rng))
    for _ in range(rng.randrange(1, 4)):
        text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text)


def spliced(rng: Random) -> bytes:
    """Return the head of one order and the tail of another, or an order with a part repeated."""
    first, second = order(rng), order(rng)
    begin, end = sorted(rng.randrange(len(first) + 1) for _ in range(2))
    if _once_in(2, rng):
        return first[:begin] + first[begin:end] * rng.randrange(2, 30) + first[end:]
    return first[:end] + second[rng.randrange(len(second)) :]


def nested(rng: Random) -> bytes:
    """Return nesting around the limit, far beyond it, or only apparent, with the brackets inside a string."""
    levels = MAX_DEPTH + rng.randrange(-2, 3) if not _once_in(4, rng) else rng.choice((1022, 1025, 3000))
    opened = [rng.choice((b"[", b'{"a":')) for _ in range(levels - 1)]
    closed = b"".join(b"]" if bracket == b"[" else b"}" for bracket in reversed(opened))
    text = b"".join(opened) + b'"' + rng.choice((b"", b"[" * 50, b'\\"' + b"{" * 50)) + b'"'
    text += closed if not _once_in(5, rng) else closed[: rng.randrange(levels)]
    return _member(order(rng), b"deep", text, rng) if not _once_in(5, rng) else text


def sized(rng: Random) -> bytes:
    """Return a value around or beyond the size limit, padded with a string, with spaces, or with what is not JSON."""
    text, size = order(rng), rng.choice((MAX_BYTES - 1, MAX_BYTES, MAX_BYTES + 1, 2 * MAX_BYTES, 5 * MAX_BYTES))
    room = max(0, size - len(text))
    match rng.randrange(4):
        case 0:
            return text + b" " * room
        case 1:
            return text + b"}" * room
        case 2:
            return _member(text, b"fill", b'"' + b"x" * max(0, room - 10) + b'"', rng)
        case _:
            return b"[" * MAX_DEPTH + text + b"," * max(0, room - MAX_DEPTH)


def unending(rng: Random) -> bytes:
    """Return an unterminated string, quadratic for a naive scanner; sometimes after a number too large for a double."""
    head = rng.choice((b"[" * (MAX_DEPTH + 1), order(rng)[:-1] + b",", b'{"customer_id":"c","n":' + b"9" * 30 + b","))
    return head + b'"' + b'\\"' * rng.randrange(MAX_BYTES // 2)


KINDS: tuple[Callable[[Random], bytes | None], ...] = (
    order,
    cut,
    nested,
    sized,
    flipped,
    spliced,
    unending,
    lambda rng: _member(order(rng), b"customer_id", rng.choice(_CUSTOMERS), rng),
    lambda rng: _member(order(rng), b"customer_id", b'"twice"', rng),
    lambda rng: _member(_member(order(rng), b"n", b"1", rng), b"n", b'{"n":2,"n":3}', rng),
    lambda rng: _member(order(rng), b"loyalty_tier", rng.choice((b'"gold"', b"null", b'"gold"}')), rng),
    lambda rng: _member(order(rng), b"n", rng.choice(_NUMBERS), rng),
    lambda rng: _member(order(rng), b"n", b"%d" % rng.randrange(10 ** rng.randrange(1, 60)), rng),
    lambda rng: _inserted(order(rng), rng.choice(_BAD_UTF8), rng),
    lambda rng: _inserted(order(rng), rng.choice(_STRAYS), rng),
    lambda rng: rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"//\n", b"\x1e")) + order(rng),
    lambda rng: order(rng) + rng.choice((b"\n", b"", b",", b"\x00")) + order(rng),
    lambda rng: order(rng).decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-8-sig"))),
    lambda rng: json.dumps(tree(rng)).encode(),
    lambda rng: rng.randbytes(rng.randrange(200)),
    lambda rng: rng.choice((None, b"", b" ", b"{", b"}", b"[]", b"{}", b'"', b"nul", b"NaN", b"\xef\xbb\xbf")),
)
"""The kinds, in turn, so that each is among the first few dozen."""
CELLS = CellTable(moment="always", limit_s=600.0)
_LARGEST, _CHUNK, _FLUSH_S, _ASK_S = 16 * 1024 * 1024, 1000, 120.0, 60.0
_RSS_MIB, _MOST_SHOWN = 600, 5
# Two thirds of the payloads are unreadable; for most of these, only parsing shows it.
_PARSED_OF = 2


def poison(count: int, stage: CellEnvironment) -> None:
    """Garbage goes in; each record comes out, enriched or as a dead letter, and memory stays bounded."""
    for name in stage.names.topics():
        cluster_admin.set_config(stage.cluster.admin, name, {topics.MAX_MESSAGE_BYTES: str(2 * _LARGEST)}, Deadline(30))
    made = ((number % stage.cell.partitions, some) for number, some in enumerate(payloads(count, stage.seed)))
    with Writer(stage.cluster.connection, stage.names.input, None, _FLUSH_S, _LARGEST) as client:
        while some := [*islice(made, _CHUNK)]:
            client.write(some)
        client.flush()
    stage.fire("payloads", count)
    watched = stage.folder / "parsed"
    limits = ("--max-record-bytes", str(MAX_BYTES), "--max-record-depth", str(MAX_DEPTH), "--max-rejected", "1")
    with watching(stage.programs, watched):
        writer = stage.writer("--patience", "60", *limits)
    peak = 0
    while writer.code() is None:
        peak = max(peak, _peak_kib(writer.pid))
        stage.deadline.check("draining the payloads")
        stage.pause(0.05)
    stage.ended(writer)  # the drain that follows would repair what it left
    stage.notes.append(f"the writer's memory peaked at {peak // 1024} MiB")
    if peak > _RSS_MIB * 1024:
        stage.doubts.append(f"the writer took {peak // 1024} MiB, {_RSS_MIB} MiB are expected at most")
    _compare(stage, parsed(watched))


for _cell, _count, _marks in (("F35-poison", 100_000, ""), ("F35-poison-short", 5_000, "prove")):
    _needed: dict[str, int] = {"payloads": _count, "parsed": _count // _PARSED_OF, **dict.fromkeys(Reason, 1)}
    _fault = f"{_count:,} fuzzed payloads, records of 1 and 10 MB"
    CELLS(_cell, _fault, "writer", _count, needed=_needed, marks=_marks)(poison)


def _compare(stage: CellEnvironment, seen: set[bytes]) -> None:
    """Check that the group has committed the end, and that values over a limit were rejected without being parsed."""
    connection, name, deadline = stage.cluster.connection, stage.names.input, Deadline(_ASK_S)
    for log in log_summary.describe_group(connection, stage.names.group, name, deadline)["partitions"]:
        if log["committed"] != log["end"]:
            stuck = f"partition {log['partition']} is committed to {log['committed']}, its end is {log['end']}"
            stage.find("stuck-offset", stuck)
    reasons = {}
    for _, _, _, _, headers, _ in stage.records(stage.names.dead_letter):
        if (source := SourcePosition.of(headers)) is not None:
            reason = dict(headers).get(ERROR_REASON) or b""
            reasons[source.partition, source.offset] = reason.decode("utf-8", "replace")
    wrong: list[Mapping[str, Any]] = []
    for partition, offset, _, value, _, _ in stage.records(name):
        if value is None:
            continue
        stage.fire("parsed", int(digest(value) in seen))
        if broken := limit_broken(value, reasons.get((partition, offset)), was_parsed=digest(value) in seen):
            place = {"topic": name, "partition": partition, "offset": offset}
            wrong.append({"name": broken[0], **place, "evidence": broken[1]})
    stage.findings += wrong[:_MOST_SHOWN]
    for kind, number in Counter(reasons.values()).items():
        stage.fire(kind, number)


def limit_broken(value: bytes, rejected: str | None, *, was_parsed: bool) -> tuple[str, str] | None:
    """Return how a payload, ``rejected`` for that reason, violates the limits: name and evidence, or None."""
    wanted = beyond(value, MAX_BYTES, MAX_DEPTH)
    held = {Reason.TOO_LARGE, Reason.TOO_DEEP}
    if rejected != wanted and (wanted is not None or rejected in held):
        became = "delivered" if rejected is None else f"rejected as {rejected}"
        return "wrong-limit", f"{became}, but it is {wanted or 'within the limits'}: {value[:40]!r}"
    if wanted is not None and was_parsed:
        return "parsed-over-limit", f"{wanted}, and parsed all the same: {value[:40]!r}"
    return None


def _peak_kib(pid: int) -> int:
    """Return the peak memory of the process so far; 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
