"""A password in `DATABASE_URL` and `REDIS_URL`, looked for wherever the programs that use it leave words."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping

import psutil
import psycopg
import pytest
import redis as client
from harness import enriched
from harness.canary import CANARY, QUOTED, leaks
from harness.downstream import clean_environment
from harness.probed import PAGES, Probed
from harness.programs import Ran, Running
from harness.servers import Broker, Names

from brew.names import ExitCode
from sandbox.store import Postgres, Redis

ORDERS = 20
USER = "planted"
LEDGER, RECEIVE = ("ledger",), ("receive", "--store", "redis-script")


class StorePrograms:
    """One test's orders, schema and group; programs get the stores' addresses from the environment alone."""

    def __init__(self, broker: Broker, names: Names, addresses: Mapping[str, str]) -> None:
        self.environment = clean_environment() | dict(addresses) | {"PYTHONFAULTHANDLER": "1", "BREW_CLIENT_LOG": "1"}
        self._options = ("--bootstrap", broker.bootstrap, "--topic", names.output, "--group", names.group)
        self._schema = ("--schema", "c_" + names.stem.rsplit("-", 1)[1])

    def start(self, *words: str, **addresses: str) -> Running:
        command = [sys.executable, "-m", "downstream", *words, *self._options, *self._schema]
        return Running([*command, "--partitions", "0,1,2,3"], self.environment | addresses)

    def run(self, *words: str, **addresses: str) -> Ran:
        with self.start(*words, "--patience-s", "1", **addresses) as program:
            return program.wait(60)


@pytest.fixture
def programs(broker: Broker, names: Names, postgres: Postgres, redis: Redis) -> Iterator[StorePrograms]:
    """Both servers know a user with the planted password; the whole password is needed, and only it opens Redis."""
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, ORDERS)
    with psycopg.connect(postgres.url, autocommit=True) as admin, contextlib.suppress(psycopg.errors.DuplicateObject):
        admin.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD '{CANARY}'")
    rights = ["on", f">{CANARY}", "~*", "+@all"]
    with client.Redis.from_url(redis.url) as admin_of_redis:
        admin_of_redis.execute_command("ACL", "SETUSER", USER, *rights)
    login = f"//{USER}:{QUOTED}@"
    addresses = {"DATABASE_URL": postgres.url.replace("//brew@", login), "REDIS_URL": redis.url.replace("//", login)}
    assert all(QUOTED in address for address in addresses.values())
    yield StorePrograms(broker, names, addresses)
    with client.Redis.from_url(redis.url) as admin_of_redis:
        admin_of_redis.execute_command("ACL", "DELUSER", USER)


@pytest.mark.parametrize("words", [LEDGER, RECEIVE], ids=lambda words: words[0])
def test_a_stores_password_is_in_no_word_that_a_program_leaves(programs: StorePrograms, words: tuple[str, ...]) -> None:
    """Pages, command line, stderr with the client's own log, and a crash report; then the check, which reads again."""
    with programs.start(*words, "--follow", "--probe-port", "0") as program:
        probed = Probed(program)
        probed.until(lambda status: status.totals.records == ORDERS, "all is worked on")
        for page in PAGES:
            code, body = probed.ask(page)
            assert (code, leaks(body.decode())) == (200, []), page
        assert leaks(*(" ".join(process.cmdline()) for process in program.process_tree())) == []
        assert leaks(*psutil.Process(program.pid).environ().values()), "the check of the check: it was handed over"
        os.kill(program.pid, signal.SIGABRT)
        crashed = program.wait(30)
    assert "Fatal Python error: Aborted" in crashed.text
    checked = programs.run(*words, "--check", "--json")
    assert checked.code == ExitCode.DONE, checked.text
    assert leaks(crashed.text, checked.text) == []


@pytest.mark.parametrize(
    ("words", "change", "code"),
    [
        pytest.param(LEDGER, (USER, "nobody"), ExitCode.REFUSED, id="ledger-nobody"),
        pytest.param(LEDGER, ("/brew", "/nowhere"), ExitCode.REFUSED, id="ledger-no-database"),
        pytest.param(LEDGER, ("127.0.0.1", "127.0.0.2"), ExitCode.REFUSED, id="ledger-no-server"),
        pytest.param(LEDGER, ("postgresql:", "postgresql"), ExitCode.USAGE, id="ledger-no-colon"),
        pytest.param(LEDGER, (QUOTED, f"a@{CANARY}"), ExitCode.USAGE, id="ledger-at"),
        pytest.param(LEDGER, (QUOTED, f"{CANARY}%zz"), ExitCode.USAGE, id="ledger-percent"),
        pytest.param(RECEIVE, (USER, "nobody"), ExitCode.REFUSED, id="receive-nobody-there"),
        pytest.param(RECEIVE, ("127.0.0.1", "127.0.0.2"), ExitCode.REFUSED, id="receive-no-redis"),
        pytest.param(RECEIVE, ("redis:", "redis"), ExitCode.USAGE, id="receive-no-scheme"),
        pytest.param(RECEIVE, (QUOTED, f"{CANARY}/"), ExitCode.USAGE, id="receive-slash"),
        pytest.param(RECEIVE, ("redis://", "redis://["), ExitCode.USAGE, id="receive-bracket"),
    ],
)
@pytest.mark.parametrize("check", [(), ("--check",)], ids=["run", "check"])
def test_a_stores_password_is_in_no_refusal(
    programs: StorePrograms, words: tuple[str, ...], change: tuple[str, str], code: ExitCode, check: tuple[str, ...]
) -> None:
    """Nobody there, nobody let in, and addresses of which a library would quote the password."""
    name = "DATABASE_URL" if words == LEDGER else "REDIS_URL"
    address = programs.environment[name]
    changed = address.replace(*change, 1)
    assert changed != address
    ran = programs.run(*words, *check, **{name: changed})
    assert ran.code == code, ran.text
    assert name in ran.err or code == ExitCode.REFUSED, ran.err
    assert leaks(ran.text) == []
    assert "Traceback" not in ran.err
