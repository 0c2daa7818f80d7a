"""Numbers that no double holds: seen from afar, and carried around the JSON parser digit by digit; pure."""

from __future__ import annotations

import re
from hashlib import blake2b

# A double keeps 15 significant digits; longer runs, and exponents, may change their value in a round trip.
_KINDS = bytes.maketrans(b"0123456789.E", b"00000000000e")
_LONG_RUN = b"0" * 16
_EXPONENT = re.compile(rb"[:,\[]\s*-?[0-9.]+[eE]")
# Strings as in `pipeline.enrich.depth`: one without an end must not be read again from each of its quotes.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL)


def may_round(value: bytes) -> bool:
    """True when a number of the text could change its value; a translation and two searches: a regex costs 5 us."""
    kinds = value.translate(_KINDS)
    return _LONG_RUN in kinds or (b"0e" in kinds and _EXPONENT.search(value) is not None)


class Shelter:
    """Numbers outside of strings stand behind marked strings while the order is parsed, so that nothing rounds them."""

    def __init__(self, value: bytes) -> None:
        self._numbers: list[bytes] = []
        # A text can't hold a hash of itself, so no string of the order can pass for a mark.
        self._mark = f"number-{blake2b(value, digest_size=12).hexdigest()}-"
        text = _TOKEN.sub(self._swap, value)
        as_name = re.search(f'"{self._mark}[0-9]+"\\s*:'.encode(), text)
        self.text = value if as_name else text  # a bare number can't be a member's name: let the parser say so

    def _swap(self, match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return match[0]
        self._numbers.append(match[1])
        return f'"{self._mark}{len(self._numbers) - 1}"'.encode()

    def restore(self, enriched: bytes) -> bytes:
        """Put the numbers back, digit by digit as they came."""
        return re.sub(f'"{self._mark}([0-9]+)"'.encode(), lambda match: self._numbers[int(match[1])], enriched)
