"""How fast this machine is at the moment: others have their share of it, and it changes within minutes."""

from __future__ import annotations

import time
from functools import lru_cache

from pipeline.enrich import enricher
from pipeline.settings import Limits
from proof.orders import Order, orders

_ORDERS, _ROUNDS = 20_000, 5


@lru_cache
def _some() -> list[Order]:
    order = orders(1)
    return [order(number) for number in range(_ORDERS)]


def speed() -> float:
    """Orders that one thread enriches in a second, with nothing beside it; a third of a second."""
    enrich, some = enricher(Limits()), _some()
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        kept = [enrich(key, value) for key, value in some]
    return _ROUNDS * len(kept) / (time.perf_counter() - began)
