"""Read the primitive types of Kafka's protocol, in both encodings; write the few that the proxy writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAX_VARINT_BYTES = 5
_UUID = 16
_MORE = 0x80


class Malformed(ValueError):
    """The bytes are not what the schema says."""


class Cursor:
    """
    A place in a frame.

    ``flexible``: lengths are unsigned varints, one more than they say, and structures end with tagged fields
    (KIP-482); otherwise strings have int16 lengths and arrays int32 ones, and there are no tags.
    """

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, at, flexible

    def number(self, form: str) -> int:
        """One number of a `struct` format."""
        try:
            (value,) = struct.unpack_from(form, self.data, self.at)
        except struct.error as error:
            raise Malformed(f"the frame ends within a number at byte {self.at}") from error
        self.at += struct.calcsize(form)
        return int(value)

    def int8(self) -> int:
        return self.number(">b")

    def int16(self) -> int:
        return self.number(">h")

    def int32(self) -> int:
        return self.number(">i")

    def int64(self) -> int:
        return self.number(">q")

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.number(">B")
            value |= (byte & 0x7F) << (7 * index)
            if not byte & 0x80:
                return value
        raise Malformed(f"a varint before byte {self.at} has no end")

    def skip(self, length: int) -> None:
        if length < 0 or self.at + length > len(self.data):
            raise Malformed(f"{length} bytes from byte {self.at} on are not there")
        self.at += length

    def length(self) -> int:
        """An array's number of elements; -1 for none at all."""
        found = self.varint() - 1 if self.flexible else self.int32()
        if found > len(self.data):
            raise Malformed(f"an array of {found} elements in {len(self.data)} bytes")
        return found

    def text(self) -> str | None:
        length = self.varint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        start = self.at
        self.skip(length)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"no UTF-8 at byte {start}") from error

    def octets(self) -> int:
        """Go to the first byte of a bytes (or records) field and return its length, -1 for null."""
        return self.varint() - 1 if self.flexible else self.int32()

    def uuid(self) -> None:
        self.skip(_UUID)

    def tags(self) -> Iterator[tuple[int, int]]:
        """Each tagged field as (tag, end), with the cursor at its first byte; nothing in the older encoding."""
        if not self.flexible:
            return
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            end = self.at + size
            if end > len(self.data):
                raise Malformed(f"tag {tag} reaches past the frame's end")
            yield tag, end
            self.at = end

    def skip_tags(self) -> None:
        for _ in self.tags():
            pass


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value >= _MORE:
        out.append(value % _MORE | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: str, *, flexible: bool) -> bytes:
    """A string that is not null."""
    raw = value.encode()
    return (varint(len(raw) + 1) if flexible else struct.pack(">h", len(raw))) + raw


def array_length(count: int, *, flexible: bool) -> bytes:
    return varint(count + 1) if flexible else struct.pack(">i", count)
