"""The rows of the fault matrix: what the campaign is to break, whether a cell of the row has been run or not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault; its cells are the targets and moments at which it strikes."""

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that strike at the same part."""

    title: str
    rows: tuple[Row, ...]


def _section(title: str, **rows: str) -> Section:
    return Section(title, tuple(Row(name, text) for name, text in rows.items()))


MATRIX = (
    _section(
        "Writer",
        F01="Killed before the commit",
        F02="Killed while the commit is under way",
        F03="Killed after the commit",
        F04="Paused until another takes over, then woken",
        F05="Paused for longer than the transaction timeout",
    ),
    _section(
        "Spark",
        F06="Executor or driver killed in mid batch",
        F07="Orphan worker outlives its killed executor",
        F08="Two drivers, one group",
        F09="Speculation, repartition, split ranges",
        F10="Position restored, deleted, or ahead of the group",
    ),
    _section(
        "Wire",
        F11="Commit held and let go inside the next transaction",
        F12="Offset commit or records held and let go late",
        F13="Reply lost: fence, add offsets, commit",
    ),
    _section(
        "Brokers",
        F14="Leader or coordinator killed",
        F15="Leader or coordinator paused for 20\u00a0s",
        F16="All three killed at once",
        F17="Rolling restart, clean and by kill",
        F18="Storm of elections and reassignments",
    ),
    _section(
        "Network and disk",
        F19="Network partition",
        F20="Slow, lossy, reordering network",
        F21="One broker's disk full",
        F22="Two of three brokers down",
        F37="No space, or read-only, under Spark",
    ),
    _section(
        "Kafka's state",
        F23="Committed offsets deleted or expired",
        F24="Retention passes the committed offset",
        F25="Input topic deleted and made again",
        F26="Partitions added under load",
        F27="Transactional id or group taken by a stranger",
        F28="Epoch overflow on one transactional id",
    ),
    _section(
        "Stores and claims",
        F29="PostgreSQL killed around its commit",
        F30="Ledger's consumer paused with the row locked",
        F31="PostgreSQL restored to an older dump",
        F32="Redis killed, flushed, failed over, expired",
        F33="Aggregator killed around the changelog's commit",
        F34="Eight coordinators race for claims",
    ),
    _section(
        "Input, access, everything",
        F35="Poisoned input",
        F36="Access revoked, wrong password, expired certificate",
        F38="Random mixture of all faults",
    ),
)

TITLES = {row.name: row.title for section in MATRIX for row in section.rows}
