"""One dead letter, as it stands on the dead-letter topic, and which of them are meant; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.position import Headers, SourcePosition
from protocol.records import ERROR_MESSAGE, ERROR_OMITTED, ERROR_REASON, REPLAYED_COUNT

NO_REASON = "unknown"
"""The reason shown for a record that no pipeline put there."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of the dead-letter topic; ``timestamp`` is the input record's, in ms since the epoch."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    def _last(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)

    @property
    def reason(self) -> str:
        return (self._last(ERROR_REASON) or NO_REASON.encode()).decode("utf-8", "replace")

    @property
    def message(self) -> str:
        return (self._last(ERROR_MESSAGE) or b"").decode("utf-8", "replace")

    @property
    def source(self) -> SourcePosition | None:
        """Where the record stood on the input; None where it is not a pipeline's dead letter."""
        return SourcePosition.of(self.headers) if self._last(ERROR_REASON) is not None else None

    @property
    def own_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that the input record had: those before the last block of error and source headers."""
        starts = [at for at, (name, _) in enumerate(self.headers) if name == ERROR_REASON]
        return list(self.headers[: starts[-1]] if starts else self.headers)

    @property
    def omitted(self) -> bool:
        """True where the value did not fit, and stands on the input only."""
        block = self.headers[len(self.own_headers) :]
        return any(name == ERROR_OMITTED for name, _ in block)

    @property
    def replays(self) -> int:
        """How often the record had been written back before it was rejected this time."""
        told = dict(self.own_headers).get(REPLAYED_COUNT) or b""
        return int(told) if told.isdigit() else 0

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return sized(self.key, self.value, self.headers)


def sized(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(text or b"") for name, text in headers)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant; everything that is set has to hold, and nothing set means all."""

    partitions: Sequence[int] = ()
    reasons: Sequence[str] = ()
    keys: Sequence[bytes] = ()
    start: int = 0
    until: int | None = None
    topic: str | None = None
    """The input topic that they came from."""

    def means(self, letter: Letter) -> bool:
        return (
            (not self.partitions or letter.partition in self.partitions)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.keys or letter.key in self.keys)
            and (self.topic is None or (letter.source is not None and letter.source.topic == self.topic))
            and self.start <= letter.offset
            and (self.until is None or letter.offset < self.until)
        )


def shown(content: bytes | None) -> dict[str, str] | None:
    """Bytes for people and JSON: `{"text": ...}` where every character is harmless to print, else `{"hex": ...}`."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}
    harmless = all(character.isprintable() or character in "\n\t" for character in text)
    return {"text": text} if harmless else {"hex": content.hex()}
