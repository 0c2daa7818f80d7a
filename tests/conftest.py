"""Fixtures of all tests: `broker`, `postgres`, `redis` (real ones, one per worker), `names` (fresh ones per test)."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.pages import ROOT
from harness.results import Results
from harness.secure import Secure, secure_broker
from harness.servers import Broker, Names, any_broker, delete_topics, store
from harness.waiting import until
from harness.workers import Groups, by_turns
from hypothesis import Phase, settings

from sandbox.store import Postgres, Redis

# Hundreds of programs start from these sources; a machine that keeps no bytecode would compile them each time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# `nohup make test &`: programs under test would ignore, too, what tests interrupt them with.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
# An example's time is the machine's: 200 ms are over whenever brokers start beside it. With CI set that is the default.
settings.register_profile("without a clock", settings(), deadline=None)
# `make mutation`: the same examples each time, and no search for the smallest one, since any failure kills the mutant.
settings.register_profile(
    "mutation", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("without a clock")


_STDERR = pytest.StashKey[int]()
# No test takes a third of it, on two cores with three workers. Hung tests have kept CI busy for 90 minutes.
_LONGEST_S = 240.0
_LONGEST_TEXT = 1_000
_UNCLOSED = "| ResourceWarning: "


class _FailuresAtOnce:
    """A line for each failure as it comes: a run that is cut off never gets to pytest's summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._first_attempts = config, list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.outcome in {"failed", "rerun"} and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            terminal.ensure_newline()
            text = str(crash or report.longrepr)
            if "ExceptionGroup" in text:  # pytest's sentence counts what was not closed, and names none of it
                text += "".join(
                    f"; {line.strip(' |')}" for line in report.longreprtext.splitlines() if _UNCLOSED in line
                )
            if len(text) > _LONGEST_TEXT:  # Spark's errors tell the cause last
                text = f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"
            line = f"{report.when} of {report.nodeid} failed: {text}"
            terminal.write_line(line)
            if report.outcome == "rerun":
                self._first_attempts.append(line)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """At the end once more: of a long run CI shows the end alone, and pytest tells nothing of a first attempt."""
        if self._first_attempts:
            terminalreporter.section("first attempts that failed")
            for line in self._first_attempts:
                terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--secure`: see `harness.secure_mode`."""
    secure = parser.getgroup("secure brokers")
    secure.addoption("--secure", action="store_true", help="TLS, SCRAM and ACLs; each program with its least rights")
    secure.addoption("--secure-record", metavar="FILE", help="keep what a --secure session found in FILE")
    parser.addoption("--results", metavar="FILE", help="keep what passed, and what tests measured, in FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "longest(seconds): ends the test's process after so long; 0: never")
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(config), "failures-at-once")
    if (file := config.getoption("--results")) is not None:
        config.pluginmanager.register(Results(config, Path(file)), "results")
    if config.getoption("--secure"):
        from harness.secure_mode import SecureMode  # noqa: PLC0415 - it changes what a connection is

        config.pluginmanager.register(SecureMode(config), "secure-mode")


def pytest_sessionstart(session: pytest.Session) -> None:
    """pytest-rerunfailures 16 asks its server twice per test: 40 ms of Nagle's algorithm, one minute of all tests."""
    if (asking := getattr(getattr(session.config, "failures_db", None), "sock", None)) is not None:
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the order that keeps the workers of `make test` busy to the end, see `harness.workers`."""
    if hasattr(config, "workerinput"):
        by_turns(items, config.rootpath / "tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """
    End the process of a test that hangs, with the stacks of all its threads on stderr.

    A client's call or a thread's lock can't be interrupted from Python. The worker's servers end with it, and another
    worker goes on with the other tests.
    """
    _end_if_it_hangs(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Pytest's own plugin has just called that off for a test that failed; its fixtures can hang, too."""
    if isinstance(node, pytest.Item):
        _end_if_it_hangs(node)


def _end_if_it_hangs(item: pytest.Item) -> None:
    marker = item.get_closest_marker("longest")
    longest_s = _LONGEST_S if marker is None else marker.args[0]
    if longest_s:
        faulthandler.dump_traceback_later(longest_s, exit=True, file=item.config.stash[_STDERR])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """One test at a time to whoever is free, see `harness.workers`."""
    return Groups(config, log)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real Kafka broker at `broker.bootstrap`, shared by a worker's tests and ended with them, whatever happens."""
    with any_broker() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server at `postgres.url`, shared by the session; a schema per test keeps tests apart."""
    with store(Postgres) as running:
        yield running


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """A real Redis server at `redis.url`, shared by the session; a group per test keeps tests apart."""
    with store(Redis) as running:
        yield running


@pytest.fixture(scope="session")
def secure() -> Iterator[Secure]:
    """A broker that asks who is there, shared by a worker's tests; each grants rights on its own names."""
    with secure_broker() as running:
        yield running


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once; its checksum and its bill of materials stand beside it."""
    line = [str(ROOT / "scripts/wheel.sh"), str(tmp_path_factory.mktemp("dist"))]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip())


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Put back what a command installs in this process: the interrupt of a later test ended the worker (seen)."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_client_left() -> Iterator[None]:
    """
    What transactions in a test's own process asked with is kept, and would look for brokers that are gone, in a thread
    that draws from `random` beside hypothesis (seen: red). A client that nobody ended is a leak, in the product, too.
    """
    yield

    def no_client() -> bool:
        if (locator := sys.modules.get("brew.kafka.committed_offset")) is not None:
            for one in locator._locators:
                one.invalidate()
        return not any(one.name.startswith("kafka-io") for one in threading.enumerate())

    until(no_client, "the end of kafka-python's clients", 10)


@pytest.fixture(autouse=True)
def _topics_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each program that starts reads the metadata of all topics: beside 1,200 others, a test took twice as long."""
    broker = request.getfixturevalue("broker") if "broker" in request.fixturenames else None
    yield
    if isinstance(broker, Broker):  # unit tests have others of that name
        delete_topics(broker)


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    """Topic and group names that nothing has used before."""
    return Names.fresh(request.node.name)
