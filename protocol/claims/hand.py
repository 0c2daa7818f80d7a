"""What a worker has in hand of the partitions that its keeper holds: gained, lost, due to others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from protocol.claims.keeper import Keeper


class Hand:
    """
    Follows one keeper for who works by it; used by one thread at a time. Only these calls change what is in hand.

    Each may raise what made the keeper give up, as `Keeper.held`.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._tokens: dict[int, int] = {}

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._tokens)

    def lost(self) -> list[int]:
        """Those that are surely ours no more, or by another claim; they are out of hand from now on."""
        held = self._keeper.held()
        gone = [p for p, token in self._tokens.items() if p not in held or held[p].token != token]
        self.drop(gone)
        return gone

    def due(self) -> list[int]:
        """Those in hand that others are due, to be given back once the work on them is done."""
        return sorted(self._keeper.wanted_back() & self._tokens.keys())

    def gained(self, but: Collection[int] = ()) -> list[int]:
        """Those that are ours and were not in hand, without ``but``; they are in hand from now on."""
        held = self._keeper.held()
        new = sorted(held.keys() - self._tokens.keys() - set(but))
        self._tokens |= {p: held[p].token for p in new}
        return new

    def give_back(self, partitions: Collection[int]) -> None:
        """Release these at the positions that the log knows; whoever is due them has them at once."""
        held = self._keeper.held()
        self._keeper.give_back({p: held[p] for p in partitions if p in held})
        self.drop(partitions)

    def drop(self, partitions: Iterable[int]) -> None:
        """These are out of hand, whoever released them."""
        for partition in partitions:
            self._tokens.pop(partition, None)
