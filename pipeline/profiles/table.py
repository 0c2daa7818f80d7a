"""The profiles of all customers as one table in memory: records in, tiers out; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.profiles import NO_PROFILE, PROFILE_OFFSET, MalformedProfileError, tier_of
from protocol.records import DISCOUNTS, STANDARD

_TIERS = tuple(DISCOUNTS)
_NUMBERS = {tier: bytes([number]) for number, tier in enumerate(_TIERS)}
_TOLD = 5
Resolve = Callable[[bytes | None, dict[str, object]], str]
Evidence = Callable[[], tuple[str, bytes | None]]


class Table:
    """
    Customer -> tier and the place of the profile that says so.

    An entry is one bytes object, the tier's number and the header's text: measured at 150 bytes a customer with key and
    dictionary. Replaced as a whole, so that a thread which looks up while another folds sees the old or the new one.
    ``malformed`` counts records that were no profile; the first ones are named in ``complaints``.
    """

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.nobody = _nobody({})
        self.malformed = 0
        self.complaints: list[str] = []

    def take(self, place: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Fold one record in; ``place`` is the topic's name. A tombstone, or no profile, removes the customer."""
        try:
            customer = (key or b"").decode()
        except UnicodeDecodeError:
            self._complain(f"{place}[{partition}] offset {offset}: the key is not UTF-8")
            return
        if value is None:
            self.entries.pop(customer, None)
            return
        try:
            tier = tier_of(customer, value)
        except MalformedProfileError as error:
            # The one before is not kept: whoever loads after compaction could not know it.
            self.entries.pop(customer, None)
            self._complain(f"{place}[{partition}] offset {offset}: {error}")
            return
        self.entries[customer] = b"%b%d/%d" % (_NUMBERS[tier], partition, offset)

    def read_to(self, positions: Mapping[int, int]) -> None:
        """All visible records below these offsets are folded in."""
        self.nobody = _nobody(positions)

    def _complain(self, what: str) -> None:
        self.malformed += 1
        if len(self.complaints) < _TOLD:
            self.complaints.append(what)


def _nobody(positions: Mapping[int, int]) -> bytes:
    """The entry of a customer without a profile: how far the table had been read when it held none."""
    read = b",".join(b"%d" % positions[partition] for partition in sorted(positions))
    return b"%b%b %b" % (_NUMBERS[STANDARD], NO_PROFILE, read)


def lookup(table: Table) -> tuple[Resolve, Evidence]:
    """
    A resolver, and what tells the profile that its last answer came from, as a header; for one thread.

    A customer_id that is no text has no profile.
    """
    get = table.entries.get
    tiers, last = _TIERS, b""

    def resolve(_key: bytes | None, order: dict[str, object]) -> str:
        nonlocal last
        customer = order["customer_id"]
        found = get(customer) if type(customer) is str else None
        last = found if found is not None else table.nobody
        return tiers[last[0]]

    def evidence() -> tuple[str, bytes | None]:
        return PROFILE_OFFSET, last[1:]

    return resolve, evidence
