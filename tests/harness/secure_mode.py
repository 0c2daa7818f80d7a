"""
`pytest --secure`: the tests on secure brokers, each program as a user with the rights of its role.

Tests never say who they are, so this plugin does, at the points that everything passes. Requests by the test itself are
those of the cluster's administrator (`Connection`), except for the loops of `harness.downstream`; a program inside the
test's process is the user that its command line implies (`client_config`); a program in its own process gets its user's
file in the environment, and Kafka's own tools get the administrator's as an option (`Popen`). Rights are those of
docs/SECURITY.md, granted per test on that test's own names.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest

from brew import acl, cli
from brew.acl import Purpose, ResourceNames
from brew.client_config import ClientConfig, load
from brew.connection import CLIENT_CONFIG, Connection
from proof import provenance

from . import downstream, secure_roles, servers
from .secure import Secure, secure_broker
from .servers import Broker, Names

TESTS = Path(__file__).resolve().parents[1]
_loaded = functools.cache(load)


def file_of(item: pytest.Item) -> str:
    """Return the test's file, relative to tests/."""
    return item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else item.path.name


class SecureMode:
    """The plugin; it exists only in sessions with `--secure`."""

    def __init__(self, config: pytest.Config) -> None:
        if os.environ.get("KAFKA_BOOTSTRAP") or os.environ.get("BREW_TEST_CONTAINERS") == "1":
            raise pytest.UsageError("--secure has its own brokers; unset KAFKA_BOOTSTRAP and BREW_TEST_CONTAINERS")
        self.record = Record(config)
        self._clusters: dict[str, Secure] = {}
        self._names: list[Names] = []
        self._needs = Needs()
        self._patches = ExitStack()
        for target, name, ours in (
            (servers, "sandbox_broker", self._sandbox_broker),
            (Names, "fresh", self._fresh(Names.fresh)),
            (Connection, "__init__", self._connection(Connection.__init__)),
            (downstream, "Connection", self._as(secure_roles.DOWNSTREAM)),
            (cli, "client_config", self._client_config(cli.client_config)),
            (subprocess.Popen, "__init__", self._popen(subprocess.Popen.__init__)),
        ):
            self._patches.enter_context(patch.object(target, name, ours))

    def pytest_unconfigure(self) -> None:
        self._patches.close()

    # Which tests, and with which rights.

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the listed tests; the end of the session reports how many, and why."""
        functions = [item for item in items if isinstance(item, pytest.Function)]
        reasons = {item: why for item in functions if (why := left_out(file_of(item), item.originalname)) is not None}
        config.hook.pytest_deselected(items=list(reasons))
        items[:] = [item for item in items if item not in reasons]
        self.record.left_out({f"{file_of(item)}::{item.name}": why for item, why in reasons.items()})

    @pytest.fixture(autouse=True)
    def _test_of_its_own(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Assign names made from here on to this test, with the rights that its file needs."""
        self._needs = needs(file_of(request.node))
        if self._needs.inherited is not None and "broker" in request.fixturenames:
            security = self._clusters[request.getfixturevalue("broker").bootstrap].security
            monkeypatch.setenv(CLIENT_CONFIG, str(security.config(self._needs.inherited)))
        yield
        self._names.clear()

    def _fresh(self, original: Any) -> Any:
        def fresh(_kind: type[Names], test: str, seed: int | None = None) -> Names:
            names: Names = original(test, seed)
            self._names.append(names)
            for cluster in self._clusters.values():
                self._introduce(cluster, names)
            return names

        return classmethod(fresh)

    @contextmanager
    def _sandbox_broker(self, brokers: int = 1) -> Iterator[Broker]:
        with secure_broker(brokers) as cluster:
            self.knows(cluster)
            try:
                yield cluster.broker
            finally:
                del self._clusters[cluster.cluster.bootstrap]

    def knows(self, cluster: Secure) -> None:
        """Authenticate all clients of these brokers from now on."""
        self._clusters[cluster.cluster.bootstrap] = cluster
        for names in self._names:
            self._introduce(cluster, names)

    def _introduce(self, cluster: Secure, names: Names) -> None:
        """Grant each user the rights listed on the page, for these names."""
        place = self._needs.place(names)
        for user in acl.USERS:
            cluster.grant(user, *acl.rights_of(user, place), *acl.extra_rights(user, self._needs.purposes, place))

    # Users.

    def _connection(self, original: Any) -> Any:
        """Use the administrator's credentials for connections that are given only an address."""

        def init(made: Connection, bootstrap: str, *credentials: Any, **named: Any) -> None:
            cluster = self._clusters.get(bootstrap)
            if cluster is not None and not credentials and not named:
                config = _loaded(cluster.security.config(secure_roles.ADMIN))
                credentials = config.properties, config.secrets, config.source
            original(made, bootstrap, *credentials, **named)

        return init

    def _as(self, user: str) -> Any:
        """Return a factory of connections as ``user``."""

        def connection(bootstrap: str) -> Connection:
            if (cluster := self._clusters.get(bootstrap)) is None:
                return Connection(bootstrap)
            config = _loaded(cluster.security.config(user))
            return Connection(bootstrap, config.properties, config.secrets, config.source)

        return connection

    def _client_config(self, original: Any) -> Any:
        """Give a command in this process the file of its role, unless it has one."""

        def config() -> ClientConfig:
            config: ClientConfig = original()
            context = click.get_current_context(silent=True)
            cluster = None if context is None else self._clusters.get(str(context.params.get("bootstrap")))
            if config.source is not None or context is None or cluster is None:
                return config
            user = secure_roles.user(context.command_path.split()) or secure_roles.PIPELINE
            return _loaded(cluster.security.config(user))

        return config

    def _popen(self, original: Any) -> Any:
        def init(made: Any, args: Any, *more: Any, **given: Any) -> None:
            words = [str(word) for word in args] if isinstance(args, list | tuple) else []
            address = secure_roles.place(words, self._clusters)
            if address is not None:
                args, given["env"] = self._introduced(words, self._clusters[address], given.get("env"))
            original(made, args, *more, **given)

        return init

    @staticmethod
    def _introduced(
        words: list[str], cluster: Secure, environment: Mapping[str, str] | None
    ) -> tuple[list[str], Mapping[str, str] | None]:
        """Return a command and its environment with the user's credentials added."""
        security = cluster.security
        if secure_roles.is_kafkas_own(words):
            return [*words, "--command-config", str(security.java_config(secure_roles.ADMIN))], environment
        user = secure_roles.user(words)
        if user is None:
            return words, environment
        inherited = dict(os.environ if environment is None else environment)
        return words, {CLIENT_CONFIG: str(security.config(user)), **inherited}


# Tests' groups do not begin with `brew-`, and most leave the creation of output and dead letters to the run.
_USUAL = (Purpose.MAKE, Purpose.OTHER_GROUP, Purpose.NAMES, Purpose.OFFSETS)


@dataclass(frozen=True, slots=True)
class Needs:
    """
    The needs of one file.

    ``more``: in addition to those of nearly all. ``topics``: roles with unusual names, and their suffix (`downstream`:
    the prefix of its groups). ``inherited``: the user of processes not started by a command line, such as forks.
    """

    more: Sequence[Purpose] = ()
    topics: Mapping[str, str] = field(default_factory=dict)
    inherited: str | None = None

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        return (*_USUAL, *self.more)

    def place(self, names: Names) -> ResourceNames:
        """Return the names of one test."""
        named = {role: names.topic(suffix) for role, suffix in {**_TOPICS, **self.topics}.items()}
        return ResourceNames(group=names.group, upstream=f"seed:{names.input}", **named)


_TOPICS = {
    "downstream": "group",
    "input": "in",
    "output": "out",
    "dead_letter": "dlq",
    "claims": "claims",
    "profiles": "customers",
    "totals": "totals",
}
NEEDS: Mapping[str, Needs] = {
    "scenarios/test_claims_flows.py": Needs((Purpose.OWNERSHIP,), {"output": "worked"}),
    "scenarios/test_sharing.py": Needs((Purpose.SHARE,)),
    "scenarios/test_stand_by.py": Needs((Purpose.SHARE,)),
    "scenarios/test_store_kills.py": Needs((Purpose.RECEIVE,), inherited="downstream"),
    "scenarios/test_totals.py": Needs((Purpose.TOTALS,)),
    "scenarios/test_upstream.py": Needs((Purpose.UPSTREAM,)),
    "scenarios/test_virtual_partitions.py": Needs((Purpose.CALL,)),
}
"""By file below tests/; files not listed have the usual needs."""

_FRAMES = "the wire proxy reads and changes frames, and TLS hides them from it"
LEFT_OUT: Mapping[str, str] = {
    "integration/test_old_kafka.py": "Kafka 3.3 keeps no passwords without ZooKeeper",
    "integration/test_wire_proxy.py": _FRAMES,
    "scenarios/test_borrowed_session.py": "its notebook takes settings, not the command line that names a user's file",
    "scenarios/test_broker_restarts.py": "it runs programs on topics of two names; a user has rights on one",
    "scenarios/test_transform_crashes.py": "its second output has a name that no user has rights on",
    "scenarios/test_sink_kills.py": "its queries name no user's file; test_sink_rights.py has a sink with least rights",
}
"""Tests, or test files, that can't run on secure brokers, and the reason."""


def needs(file: str) -> Needs:
    return NEEDS.get(file, Needs())


def left_out(file: str, test: str) -> str | None:
    """Return why a test is not run on secure brokers, or None if it is. ``test``: its function's name."""
    return LEFT_OUT.get(f"{file}::{test}", LEFT_OUT.get(file))


_SENT = "secure_left_out"


class Record:
    """
    A separate plugin in the process that started the session; workers report to it what they left out.

    With `--secure-record FILE`, entries for the test files of this session are replaced, others stay: the suite may be
    run in parts.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._out: dict[str, str] = {}
        self._files: dict[str, Counter[str]] = {}
        self._seconds: Counter[str] = Counter()
        config.pluginmanager.register(self, "secure-record")

    def left_out(self, tests: Mapping[str, str]) -> None:
        self._out |= tests
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[_SENT] = dict(tests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ARG002 - the hook's shape
        self._out |= getattr(node, "workeroutput", {}).get(_SENT, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0].removeprefix("tests/")
        self._seconds[file] += report.duration
        if report.when == "call" or not report.passed:
            self._files.setdefault(file, Counter())[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = sum(counts["passed"] for counts in self._files.values())
        terminalreporter.section("secure brokers: TLS, SCRAM, least rights")
        terminalreporter.line(f"{passed} tests passed there; {len(self._out)} left out by name:")
        for test, why in sorted(self._out.items()):
            terminalreporter.line(f"  {test}: {why}")

    def pytest_sessionfinish(self) -> None:
        given: str | None = self._config.getoption("--secure-record")
        if given is None or hasattr(self._config, "workerinput") or not (self._files or self._out):
            return
        path = Path(given)
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        files: dict[str, Any] = kept.get("files", {})
        made_with = provenance.MadeWith.now()
        for file in {*self._files, *(test.partition("::")[0] for test in self._out)}:
            counts = self._files.get(file, Counter())
            files[file] = {
                "passed": counts["passed"],
                "failed": counts["failed"],
                "left_out": {test: why for test, why in sorted(self._out.items()) if test.startswith(f"{file}::")},
                "seconds": round(self._seconds[file], 1),
                "at": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
                "commit": made_with.commit,
                "kernel": made_with.kernel,
            }
        files = {file: row for file, row in sorted(files.items()) if (self._config.rootpath / "tests" / file).exists()}
        rows = files.values()
        document = {
            "command": "make test-secure TESTS=tests/scenarios",
            "passed": sum(row["passed"] for row in rows),
            "failed": sum(row["failed"] for row in rows),
            "left_out": sum(len(row["left_out"]) for row in rows),
            "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
            "versions": {name: version(name) for name in ("pyspark", "confluent-kafka", "kafka-python", "pytest")},
            "files": files,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
