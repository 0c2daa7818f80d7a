"""What a campaign demands of a run beyond its logs: faults that fired, progress after the heal, kept secrets; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proof.findings import Findings, Name

_RUN = "run"


def check_fired(needed: Mapping[str, int], fired: Mapping[str, int], found: Findings) -> None:
    """Each demanded count is reached, or the run shows nothing."""
    for what, least in sorted(needed.items()):
        count = fired.get(what, 0)
        if count < least:
            evidence = f"{what}: {count} seen, {least} needed; run it longer, or see why the fault did not reach it"
            found.say(Name.SILENT_FAULT, (_RUN, -1, count), evidence)


def check_stalls(first_commit_ms: Mapping[int, int | None], bound_s: float | None, found: Findings) -> None:
    """The first commit after each heal came within the bound."""
    if bound_s is None:
        return
    for healed, first in sorted(first_commit_ms.items()):
        if first is None or first - healed > bound_s * 1000:
            took = "never" if first is None else f"after {(first - healed) / 1000:.1f} s"
            found.say(Name.STALL, (_RUN, -1, healed), f"first commit {took} after the heal; the bound is {bound_s:g} s")


def check_secrets(name: str, chunks: Iterable[bytes], canaries: Iterable[str], found: Findings) -> None:
    """No canary stands in a file, given in chunks; the finding tells where, never the canary."""
    wanted = [canary.encode() for canary in canaries if canary]
    longest = max(map(len, wanted), default=0)
    tail, base = b"", 0
    for chunk in chunks:
        text = tail + chunk
        for number, canary in enumerate(wanted):
            # What stands wholly in the tail was told with the chunk before.
            at = text.find(canary, max(0, len(tail) - len(canary) + 1))
            while at >= 0:
                found.say(Name.SECRET, (name, -1, base + at), f"canary number {number + 1} stands at byte {base + at}")
                at = text.find(canary, at + 1)
        keep = min(len(text), max(0, longest - 1))
        base += len(text) - keep
        tail = text[len(text) - keep :]
