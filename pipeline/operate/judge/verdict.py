"""Several input records of one key or order id: did upstream write it twice, or did we deliver it twice? Pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Sequence

from pipeline.operate.judge.story import Answer, Story, answer


class Verdict(enum.StrEnum):
    """What several records are to each other; the first breaks the promise."""

    DELIVERED_TWICE = "delivered-twice"
    WRITTEN_TWICE = "written-twice"
    REPLAYED = "replayed"
    DIFFERENT = "different"


def verdict(stories: Sequence[Story]) -> tuple[Verdict, str] | None:
    """The first rule that fits, and a sentence; None where one record stands for itself."""
    if twice := [one for one in stories if answer(one)[0] is Answer.TWICE]:
        rest = f", and so on for {len(twice) - 1} more" if len(twice) > 1 else ""
        return Verdict.DELIVERED_TWICE, f"{twice[0].place} was delivered more than once{rest}: {answer(twice[0])[1]}"
    if len(stories) < 2:  # noqa: PLR2004 - a comparison takes two
        return None
    for several in _writings(stories):
        if len(several) > 1:
            return Verdict.WRITTEN_TWICE, _written(several)
    if replays := [one for one in stories if one.seen and one.order is not None and one.order.replay_of is not None]:
        return Verdict.REPLAYED, _replayed(replays)
    told = f"{len(stories)} records, no order twice among those that readers see: each is told by itself"
    return Verdict.DIFFERENT, told


def _writings(stories: Sequence[Story]) -> Collection[list[Story]]:
    """The records that upstream wrote and readers see, order by order; a replay is our own writing."""
    found: defaultdict[str | bytes, list[Story]] = defaultdict(list)
    for one in stories:
        if one.seen and one.order is not None and one.order.replay_of is None:
            found[one.order.identity].append(one)
    return found.values()


def _written(several: Sequence[Story]) -> str:
    orders = [one.order for one in several if one.order is not None]
    name = "a record" if orders[0].order_id is None else f"order {orders[0].order_id!r}"
    alike = "with the same bytes" if len({one.digest for one in orders}) == 1 else "with different values"
    answers = [answer(one)[0] for one in several]
    ours = answers[0].value if len(set(answers)) == 1 else ", ".join(answers)
    return (
        f"upstream wrote {name} {len(several)} times, {alike}, at {' and '.join(one.place for one in several)}; "
        f"to the pipeline each is an order of its own ({ours})"
    )


def _replayed(replays: Sequence[Story]) -> str:
    told = [
        f"{one.place} is dead letter {one.order.replay_of}, written back, and it is {answer(one)[0]}"
        for one in replays
        if one.order is not None
    ]
    return f"not twice: {'; '.join(told)}"
