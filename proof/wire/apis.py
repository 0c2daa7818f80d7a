"""
Kafka's requests as far as the proxy knows them: keys, encodings, error names.

Source: the message schemas of Apache Kafka 4.1 ("flexibleVersions", "validVersions") and kafka.apache.org/protocol.
"""

from __future__ import annotations

import enum


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

# The last version of each reply with addresses that `proof.wire.rewrite` understands. From Fetch 16 on a reply may
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
