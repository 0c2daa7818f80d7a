"""
Kafka's requests as far as the proxy knows them, and the primitive types of its protocol.

Source: the message schemas of Apache Kafka 4.1 ("flexibleVersions", "validVersions") and kafka.apache.org/protocol.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator


class Api(enum.IntEnum):
    """The requests that a rule can name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79

    @property
    def title(self) -> str:
        """The protocol's own name: `EndTxn`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def named(cls, text: str) -> Api:
        """
        The request of that name, as `EndTxn`, `end-txn` or `26`.

        Raises:
            ValueError: there is none, or the proxy does not know it by name.
        """
        wanted = text.replace("-", "").replace("_", "").lower()
        for api in cls:
            if wanted in {api.title.lower(), str(int(api))}:
                return api
        raise ValueError(f"no request is called {text!r}; known are {', '.join(api.title for api in cls)}")


# The first version with compact lengths and tagged fields, of the requests whose bodies are read here.
_FLEXIBLE_FROM = {
    Api.PRODUCE: 9,
    Api.METADATA: 9,
    Api.FIND_COORDINATOR: 3,
    Api.API_VERSIONS: 3,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.DESCRIBE_CLUSTER: 0,
}

# The last version of each reply with addresses that `proof.wire.link` understands. From Fetch 16 on a reply may
# name the new leader's address behind all of its records, so clients are kept at 15.
NEWEST = {Api.METADATA: 13, Api.FIND_COORDINATOR: 6, Api.DESCRIBE_CLUSTER: 2, Api.PRODUCE: 13, Api.FETCH: 15}

# Share groups' replies name addresses as well; clients are not told that they exist.
HIDDEN = frozenset({Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE})

# Requests of the transaction protocol: what their frames say is read, and goes into the timeline.
TRANSACTIONAL = frozenset({
    Api.PRODUCE,
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.END_TXN,
    Api.TXN_OFFSET_COMMIT,
})  # fmt: skip

NO_ERROR = 0
_ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    0: "ok",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    19: "NOT_ENOUGH_REPLICAS",
    22: "ILLEGAL_GENERATION",
    25: "UNKNOWN_MEMBER_ID",
    35: "UNSUPPORTED_VERSION",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    51: "CONCURRENT_TRANSACTIONS",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
    120: "TRANSACTION_ABORTABLE",
}
UNSUPPORTED_VERSION = 35


def error_name(code: int) -> str:
    """The protocol's name of an error code, or its number."""
    return _ERRORS.get(code, f"error {code}")


def is_flexible(api: int, version: int) -> bool:
    """Whether a body has compact lengths and tagged fields; only for requests whose bodies are read here."""
    return version >= _FLEXIBLE_FROM[Api(api)]


def is_read(api: int) -> bool:
    """Whether the proxy can read bodies of this request."""
    return api in _FLEXIBLE_FROM


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
