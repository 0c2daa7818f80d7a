"""PostgreSQL sessions in which every wait is bounded: locks, statements, idle transactions, an unresponsive server."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.fault_injection import CrashMoment, StoreCrash
from downstream.address import checked_login, invalid_address
from downstream.consume.handler import RetryLater

Connection = psycopg.Connection[tuple[Any, ...]]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# No server, a lock time-out, a deadlock, or a session ended because the client was idle inside a transaction.
_PASSING = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
_CONNECT_S = 5
_OPTION = "--database (DATABASE_URL)"
_EXAMPLE = "postgresql://user:password@host:port/name"
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
_FORGETS = "SELECT name FROM pg_settings WHERE name = ANY(%s) AND setting = 'off' ORDER BY name"
_SHORTEST_S = 0.001  # PostgreSQL counts milliseconds, and a time-out of 0 means none
# Answers to a login that the next attempt would get, too (libpq gives no code for them, only this text). A server that
# starts, stops or has no free connection answers otherwise, and so does one that speaks another language.
_LOGIN_REFUSED = re.compile(
    r"authentication failed for user|no password supplied|pg_hba\.conf|is not permitted to log in"
    r"|(?:role|database) \".*\" does not exist|permission denied for database|does not support SSL"
    r"|no such (?:database|user)"  # PgBouncer
)
_SILENCE_S = 2.0  # extra time for an unresponsive server, on top of its own time-outs


@dataclass(frozen=True)
class DatabaseSettings:
    """
    Address, schema and time-outs of the database. ``idle_s``: a client that stops inside a transaction (SIGSTOP, a cut
    cable) then loses its session and its locks. ``weaker``: called if the server can lose committed data; None: refuse
    such a server.
    """

    url: str = field(repr=False)  # may hold a password
    schema: str
    lock_s: float = 3.0
    statement_s: float = 10.0
    idle_s: float = 20.0
    weaker: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        checked_login(self.url, _OPTION, _EXAMPLE)
        if not _SCHEMA.fullmatch(self.schema):
            raise UsageError(
                f"--schema is {self.schema!r}: a schema's name starts with a letter and has up to 63 of a-z 0-9 _"
            )

    def check(self, max_poll_interval_s: float) -> None:
        """Raise `UsageError` unless every wait ends, and before the group reassigns our partitions."""
        for name, value in (
            ("--lock-timeout-s", self.lock_s),
            ("--statement-timeout-s", self.statement_s),
            ("--idle-timeout-s", self.idle_s),
        ):
            if not _SHORTEST_S <= value < max_poll_interval_s:
                raise UsageError(
                    f"{name} is {value:g} s and must be at least {_SHORTEST_S:g} s and below --max-poll-interval-s, "
                    f"{max_poll_interval_s:g} s, or a partition is reassigned while we wait; change one of them"
                )


class Database:
    """
    A session, opened at first use and again after each failure; for one thread only. Transient failures (no server, no
    lock, a deadlock, a session that was ended, a fail-over that has not reached the address yet) raise `RetryLater`.
    Their transaction was applied as a whole or not at all; only reading the database again shows which.
    """

    def __init__(self, settings: DatabaseSettings, name: str) -> None:
        self.settings, self._name = settings, name
        self._connection: Connection | None = None
        self._worked = False

    @contextlib.contextmanager
    def transaction(self, deadline: Deadline) -> Iterator[Connection]:
        """
        Begin a transaction, and commit it if the block ends without an error.

        Raises:
            RetryLater: try again from the database's state then.
            Refused: the database rejects the login or the statement, and would do so again.
        """
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._open(deadline)
            connection = self._connection
            with _cut_after(deadline, connection), connection.transaction():
                yield connection
            self._worked = True
        except psycopg.Error as error:
            passing = isinstance(error, _PASSING) or self._connection is None or self._connection.closed
            self.close()
            if passing:
                raise RetryLater(f"database: {_server_message(error)}") from error
            if self._worked and isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                raise RetryLater(f"database: {_server_message(error)}{_remedy(error)}") from error
            raise Refused(
                f"the database refused, and a retry would not help: {_server_message(error)}{_remedy(error)}"
            ) from error
        except BaseException:
            if self._connection is not None and self._connection.closed:
                self.close()
            raise

    def _open(self, deadline: Deadline) -> Connection:
        settings = self.settings
        times = {"lock": settings.lock_s, "statement": settings.statement_s}
        options = [f"-c {name}_timeout={int(seconds * 1000)}" for name, seconds in times.items()]
        options.append(f"-c idle_in_transaction_session_timeout={int(settings.idle_s * 1000)}")
        options.append(f"-c search_path={settings.schema}")
        # Transactions begin only where the code says so.
        connection = connect(settings, " ".join(options), autocommit=True, application_name=self._name)
        try:
            with _cut_after(deadline, connection):  # a pooler accepts sessions while its server is silent
                self._require_options(connection)
                self._require_durable(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_options(self, connection: Connection) -> None:
        """Check that the session's options have reached the server: our tables, and time-outs for all waits."""
        [(path,)] = connection.execute("SELECT current_setting('search_path')").fetchall()
        if path != self.settings.schema:
            raise Refused(
                f"the session's search_path is {path!r} instead of {self.settings.schema!r}: a pooler drops its "
                "options, and with them all time-outs (PgBouncer with ignore_startup_parameters = options); name the "
                f"server itself in {_OPTION}"
            )

    def _require_durable(self, connection: Connection) -> None:
        """Check the settings in each new session: a server that was restarted or replaced may have different ones."""
        off = [row[0] for row in connection.execute(_FORGETS, [list(_DURABLE)])]
        if not off:
            return
        why = f"the database has {' and '.join(f'{name}=off' for name in off)}, so a crash can lose what it committed"
        if self.settings.weaker is None:
            raise Refused(
                f"{why}; set it to on (ALTER SYSTEM SET {off[0]} = on, then reload; check the role's and the "
                "database's own settings, too), or run with --accept-weaker"
            )
        self.settings.weaker(why)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def patience(self) -> Deadline:
        """Return the default deadline for a transaction of a few statements."""
        return Deadline(self.settings.lock_s + self.settings.statement_s + _SILENCE_S)


def connect(settings: DatabaseSettings, options: str, **more: Any) -> Connection:
    """
    Open a session with the server-side ``options``.

    Raises:
        UsageError: the address is malformed.
        Refused: the server refuses this login.
        psycopg.OperationalError: the server cannot be reached, or takes no sessions at the moment.
    """
    try:
        # Without it the client takes the database's encoding: SQL_ASCII gives bytes in place of every text.
        more |= {"client_encoding": "UTF8"}
        return psycopg.connect(settings.url, options=options, connect_timeout=_CONNECT_S, **more)
    except psycopg.OperationalError as error:
        if not _LOGIN_REFUSED.search(str(error)):
            raise
        raise Refused(
            f"the database refused the login: {_server_message(error)}; "
            f"correct user, password and database name in {_OPTION}, or let the server accept them"
        ) from error
    except psycopg.ProgrammingError:
        raise invalid_address(_OPTION, _EXAMPLE) from None  # libpq quotes the address


@contextlib.contextmanager
def reading(settings: DatabaseSettings, what: str) -> Iterator[Connection]:
    """
    Open a session on the schema's tables, to check them, without the time-outs of the user or the database. A check
    reads all rows in one statement, and waits for Kafka between two fetches. Raises `Refused`: ``what`` cannot be read.
    """
    try:
        unbounded = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
        with connect(settings, f"{unbounded} -c search_path={settings.schema}") as connection:
            yield connection
    except psycopg.Error as error:
        raise Refused(f"{what} can't be read: {_server_message(error)}{_remedy(error)}") from error


def make_tables(database: Database, schema: str, statements: str) -> None:
    """Create the schema and its tables if they are missing; safe when two programs start at the same time."""
    with database.transaction(database.patience()) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [schema])
        # The statement requires a right on the database even if the schema exists.
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount == 0:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(statements.encode())


def _server_message(error: psycopg.Error) -> str:
    """Return the server's message on one line, without the statement."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__


def _remedy(error: psycopg.Error) -> str:
    """Return what to do about a refused statement, as a last clause."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None:
        return f"; check that the server runs and answers at the address in {_OPTION}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"; grant it to the user of {_OPTION}, or name the tables' owner there"
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"; name the primary in {_OPTION}, or turn default_transaction_read_only off for its user and database"
    if isinstance(error, psycopg.errors.UntranslatableCharacter):
        return f"; name a database with encoding UTF8 in {_OPTION}: this one can't store every record"
    if isinstance(error, psycopg.errors.UndefinedTable):
        return (
            f"; check {_OPTION}, --schema and this user's USAGE on the schema: the program's first run makes the tables"
        )
    if isinstance(error, psycopg.errors.UndefinedColumn):
        return "; name another --schema: these tables are another program's, or another version's"
    state = "" if error.sqlstate is None else f" (SQL state {error.sqlstate}; the server's log has the statement)"
    return f"{state}; correct the cause, or name another {_OPTION} or --schema, then run again"


@contextlib.contextmanager
def _cut_after(deadline: Deadline, connection: Connection) -> Iterator[None]:
    """Close the session if its server has not answered by the deadline; its own time-outs work only while it runs."""
    timer = threading.Timer(deadline.remaining_s(), _cut, [connection.fileno()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # or it could cut whatever has the descriptor next


def _cut(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connected:
        connected.shutdown(socket.SHUT_RDWR)


def crash_before_commit(connection: Connection, crash: StoreCrash) -> None:
    """Crash before the COMMIT, or with it on the wire, if configured; the next start has to find out its outcome."""
    crash.at(CrashMoment.BEFORE_COMMIT)
    if crash.due(CrashMoment.COMMIT_IN_FLIGHT):
        connection.pgconn.send_query(b"COMMIT")
        connection.pgconn.flush()
        crash.die()
