"""Spark's session: compilers, who starts the JVM, its warmth on stand-by, and its end."""

from __future__ import annotations

import inspect
import io
import itertools
import logging
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyspark
import pytest
from harness.pipeline import run_command, settings_of, until
from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkRuntimeError

from brew.driver import warm_up
from brew.driver.run_context import PreflightResult
from brew.driver.warm_up import WarmSpark
from brew.errors import DeadlineExceeded, Refused
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.offsets import LogOffsets, OffsetRange
from brew.planner import PartitionFacts
from brew.settings import Compilers, Reader, SparkSettings
from brew.signals import Stopped, handlers_kept, stop_on_signals
from brew.spark import gateway, session
from brew.spark.daemon import without_copies
from brew.spark.session import spark_conf
from brew.spark.shipping import add_py_files
from pipeline import submit


@pytest.mark.parametrize(
    ("reader", "follow", "backlog", "compilers"),
    [
        (Reader.CONNECTOR, False, 1_499_999, Compilers.FIRST),
        (Reader.CONNECTOR, False, 1_500_000, Compilers.SECOND_LATE),
        (Reader.CONNECTOR, True, 0, Compilers.BOTH),
        (Reader.CONNECTOR, True, 1_500_000, Compilers.BOTH),
        (Reader.DIRECT, False, 1_500_000, Compilers.FIRST),
        (Reader.DIRECT, True, 0, Compilers.FIRST),
    ],
)
def test_a_run_has_the_compilers_that_pay(reader: Reader, *, follow: bool, backlog: int, compilers: Compilers) -> None:
    """A following run lives long enough for both; a long drain wants the second for its loops alone."""
    with run_command.make_context("run", ["--master", "local[2]"]) as context:
        settings = replace(settings_of(context.params), reader=reader, follow=follow)
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    assert PreflightResult({}, None, settings, 1, transaction, backlog).compilers is compilers


@pytest.mark.parametrize(
    ("compilers", "has"),
    [(Compilers.FIRST, "-XX:TieredStopAtLevel=1"), (Compilers.SECOND_LATE, "-XX:Tier4"), (Compilers.BOTH, None)],
)
def test_the_jvm_is_told(jvm_dir: str, compilers: Compilers, has: str | None) -> None:
    options = spark_conf(SparkSettings("local[2]", jvm_dir), compilers)["spark.driver.extraJavaOptions"]
    assert ("-XX:Tier" in options) is (has is not None)
    assert has is None or has in options


@pytest.fixture
def jvm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / gateway.OPTIONS).write_text("--add-opens=java.base/java.nio=ALL-UNNAMED\n-Dfrom=launcher\n")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "connector.jar").touch()
    for name in gateway._FOR_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    return str(tmp_path)


def conf_of(settings: SparkSettings) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(spark_conf(settings).items()))


def command(settings: SparkSettings) -> list[str] | None:
    return gateway._command(conf_of(settings), settings)


def test_a_local_driver_gets_what_the_launcher_would_have_given_it(jvm_dir: str) -> None:
    """Class path, memory, our options and Spark's, none of them empty."""
    words = command(SparkSettings("local[2]", jvm_dir))
    assert words[words.index("-cp") + 1].startswith(f"{jvm_dir}/spark/connector.jar:")
    assert {"-Xmx1g", "-XX:+UseSerialGC", "-Dfrom=launcher"} <= set(words)
    assert "" not in words
    assert words[-1].endswith("PythonGatewayServer")


def test_the_class_path_is_that_of_sparks_launcher(jvm_dir: str) -> None:
    """A class-data archive fits no JVM whose class path begins otherwise, so `spark-submit` went without it."""
    words = command(SparkSettings("local[2]", jvm_dir))
    home, jar = Path(pyspark.__file__).parent, f"{jvm_dir}/spark/connector.jar"
    launcher = [words[0], "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--driver-class-path", jar, "pyspark-shell"]
    variables = {**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
    done = subprocess.run([*launcher, *submit], env=variables, capture_output=True, timeout=60, check=True)
    theirs = done.stdout.decode().split("\0")
    ours, its = (of[of.index("-cp") + 1].replace("//", "/").split(":") for of in (words, theirs))
    assert ours == [path.rstrip("/") for path in its]


def test_a_folder_whose_name_has_a_space_is_one_word(jvm_dir: str) -> None:
    """Java took the second half for its main class, and no local run started."""
    folder = Path(jvm_dir, "my jars")
    folder.symlink_to(jvm_dir)
    (folder / "spark.jsa").touch()
    assert f"-XX:SharedArchiveFile={folder}/spark.jsa" in command(SparkSettings("local[2]", str(folder)))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A site-packages folder with pyspark, its zip files and jars, and py4j."""
    for name in ("pyspark/__init__.py", "pyspark/python/lib/pyspark.zip", "pyspark/jars/core.jar", "py4j/__init__.py"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).touch()
    return tmp_path / "site"


def test_workers_import_the_installed_pyspark_and_not_its_copies(installed: Path, tmp_path: Path) -> None:
    """Also where the driver names Spark's folder by another path; files of the user, and of another Spark, stay."""
    (tmp_path / "link").symlink_to(installed)
    copies = ["pyspark/python/lib/pyspark.zip", "pyspark/python/lib/py4j-src.zip", "pyspark/jars/core.jar"]
    kept = ["", f"{tmp_path}/mine.zip", f"{tmp_path}/spark/python/lib/pyspark.zip", str(installed)]
    assert without_copies([*(f"{tmp_path}/link/{name}" for name in copies), *kept]) == kept


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_workers_without_an_installed_pyspark_import_the_copies(installed: Path, missing: str) -> None:
    shutil.rmtree(installed / missing)
    path = [str(installed / "pyspark/python/lib/pyspark.zip"), str(installed)]
    assert without_copies(path) == path


def test_our_daemon_runs_the_installed_one_and_leaves_brew_to_the_tasks(installed: Path) -> None:
    """With the path that Spark's launcher gives it; tasks may bring another copy of brew."""
    program = "def manager():\n    import sys\n    print(__file__, *(name for name in sys.modules if name == 'brew'))\n"
    (installed / "pyspark/daemon.py").write_text(program)
    copy = installed / "pyspark/python/lib/pyspark.zip"
    with zipfile.ZipFile(copy, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/daemon.py", program)
    variables = {**os.environ, "PYTHONPATH": f"{copy}:{installed}:{Path(session.__file__).parents[2]}"}

    words = [sys.executable, "-m", "brew.spark.daemon"]
    done = subprocess.run(words, env=variables, cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(installed / "pyspark/daemon.py")


def test_a_start_does_not_import_pandas_and_numpys_values_are_converted_still() -> None:
    """Pyspark's two converters imported it for whatever was passed to the JVM."""
    program = """
import sys
import py4j.protocol
from brew.settings import SparkSettings
from brew.spark import session

def converted(value):
    convert = (c.convert(value, None) for c in py4j.protocol.INPUT_CONVERTER if c.can_convert(value))
    return next(convert, None)

def interrupted(*_):
    raise KeyboardInterrupt

session.gateway.start = interrupted
for _ in range(2):
    try:
        session.start_context(SparkSettings("local[2]", None))
    except KeyboardInterrupt:
        pass
assert converted("text") is None and converted(True) is None
assert "pandas" not in sys.modules
import numpy
assert converted(numpy.int64(7)) == 7
first = next(c for c in py4j.protocol.INPUT_CONVERTER if c.can_convert(numpy.ones(3)))
assert isinstance(first, session._NumpyOnly)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(gateway._FOR_LAUNCHER))
def test_who_speaks_by_the_environment_is_heard(jvm_dir: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spark-submit the JVM runs already, and a second one would be a second Spark."""
    monkeypatch.setenv(name, "1")
    assert command(SparkSettings("local[2]", jvm_dir)) is None


def test_settings_of_the_driver_and_other_masters_are_left_to_spark(jvm_dir: str) -> None:
    assert command(SparkSettings("local[2]", jvm_dir, {"spark.driver.memory": "2g"})) is None
    assert command(SparkSettings("local[2]", jvm_dir, {"spark.jars.packages": "a:b:1"})) is None, "were not fetched"
    assert command(SparkSettings("local-cluster[2,1,1024]", jvm_dir)) is None
    assert command(SparkSettings("local[2]", None)) is None


def test_a_java_home_without_java_is_one_sentence(jvm_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    words = command(SparkSettings("local[2]", jvm_dir))
    with pytest.raises(Refused, match="set JAVA_HOME"):
        gateway._launch(words, io.BytesIO())


@pytest.mark.parametrize(
    ("java_home", "executable"), [(None, "/usr/bin/java"), ("", "/usr/bin/java"), ("/opt/jdk", "/opt/jdk/bin/java")]
)
def test_an_empty_java_home_is_none(
    jvm_dir: str, java_home: str | None, executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `brew setup` takes it, and Spark's launcher: `bin/java` was started, which does not exist."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java_home is not None:
        monkeypatch.setenv("JAVA_HOME", java_home)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/java")
    assert command(SparkSettings("local[2]", jvm_dir))[0] == executable


def sleeping_jvm() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE)


@pytest.mark.parametrize("step", ["connects", "makes the context", "waits for the cluster", "sends files"])
def test_an_interrupted_start_leaves_no_jvm(jvm_dir: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a notebook goes on, and its next run starts a JVM of its own; a signal ends a run's wait."""
    interrupted, jvm = Mock(side_effect=KeyboardInterrupt), sleeping_jvm()
    waiting = Mock(side_effect=lambda **_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(session, "_JVM_EXIT_S", 0.1)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    if step == "connects":
        monkeypatch.setattr(gateway, "launch_gateway", interrupted)
        monkeypatch.setattr(gateway, "_launch", lambda *_: (jvm, 1, ""))
    else:
        made = SimpleNamespace(proc=jvm)
        monkeypatch.setattr(gateway, "start", lambda *_: made)
        context = SimpleNamespace(_gateway=made, stop=lambda: None)
        steps = {"makes the context": interrupted, "waits for the cluster": waiting}
        contexts = steps.get(step, Mock(return_value=context))
        contexts._gateway = contexts._active_spark_context = None
        monkeypatch.setattr(session, "SparkContext", contexts)
        monkeypatch.setattr(session, "_ship", interrupted)
    with handlers_kept():
        stop_on_signals(threading.Event())
        with pytest.raises(Stopped if step == "waits for the cluster" else KeyboardInterrupt):
            session.start_context(SparkSettings("local[2]", jvm_dir))
    assert jvm.wait(10) is not None
    assert session._own.context is None
    assert session._SUBMITTED not in os.environ, "the next run would look for no jars"


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The contexts that were stopped; each start of Spark makes another one."""
    contexts: list[Any] = []
    monkeypatch.setattr(session, "_own", session._OwnContext())
    monkeypatch.setattr(session, "_new_context", lambda *_: SimpleNamespace(addPyFile=Mock()))
    monkeypatch.setattr(session, "_stop", lambda context, _wait_s: contexts.append(context))
    return contexts


def test_spark_is_stopped_when_its_last_user_ends_and_starts_anew(stopped: list[Any]) -> None:
    """Two `brew.Pipeline` of a process: the first one that ended took the other one's Spark away."""
    settings = SparkSettings("local[2]", None, {})
    first, second = (session.start_context(settings) for _ in range(2))
    session.end(first)
    assert (first is second, stopped) == (True, [])
    session.end(second)
    assert stopped == [first]
    assert session.start_context(settings) is not first


@pytest.mark.parametrize(("master", "archives"), [("local[2]", 0), ("local-cluster[2,1,1024]", 1), ("spark://h:1", 1)])
def test_a_context_of_the_caller_is_used_and_stays_when_the_run_ends(
    stopped: list[Any], monkeypatch: pytest.MonkeyPatch, master: str, archives: int
) -> None:
    """Tasks of another process import our packages from what they are sent; local ones find the driver's."""
    monkeypatch.setattr(session, "_kept_archive", lambda _packages: "brew.zip")
    ours, settings = session.start_context(SparkSettings("local[2]", None, {})), SparkSettings()
    monkeypatch.setattr(SparkContext, "_active_spark_context", ours)
    assert session.start_context(settings) is ours
    callers = SimpleNamespace(master=master, addPyFile=Mock())
    monkeypatch.setattr(SparkContext, "_active_spark_context", callers)
    assert session.start_context(settings) is callers
    session.end(callers)
    assert (callers.addPyFile.call_count, stopped) == (archives, [])


@pytest.mark.parametrize("before", [None, "/usr/bin/python3"])
@pytest.mark.parametrize(
    ("master", "conf", "python"),
    [
        ("spark://h:1", {"spark.pyspark.python": "/opt/python"}, "/opt/python"),
        ("local[2]", {}, sys.executable),
        ("spark://h:1", {}, None),
    ],
)
def test_the_workers_python_is_named_while_spark_starts(
    monkeypatch: pytest.MonkeyPatch, master: str, conf: dict[str, str], python: str | None, before: str | None
) -> None:
    """The next run of the process may need another one."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if before is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", before)
    with session._workers_python(SparkSettings(master, None, conf)):
        assert os.environ.get("PYSPARK_PYTHON") == (python if conf or before is None else before)
    assert os.environ.get("PYSPARK_PYTHON") == before


def test_a_jvm_that_does_not_end_is_killed_and_the_next_context_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway_of = SimpleNamespace(proc=sleeping_jvm())
    monkeypatch.setattr(SparkContext, "_gateway", gateway_of)
    monkeypatch.setattr(SparkContext, "_jvm", Mock())
    session._end_jvm(gateway_of, 0.1)
    assert gateway_of.proc.poll() is not None
    assert (SparkContext._gateway, SparkContext._jvm) == (None, None)


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("Failed: x\n\tat a\nCaused by: y\n\tat b\nCaused by: no host z\n\tat c\n\t... 11 more", "no host z"),
        ("Unrecognized option: -Z\nError: Could not create the Java Virtual Machine.", "Error: Could not create"),
        ("", "Java gateway process exited"),
    ],
)
def test_a_jvm_that_ends_at_once_is_told_by_its_innermost_cause(
    jvm_dir: str, printed: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the end of a trace, which says how many lines were left out."""
    home = Path(jvm_dir, "home")
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").write_text(f"#!{sys.executable}\nimport sys; sys.exit({printed!r} or 1)\n")
    (home / "bin/java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    settings = SparkSettings("local[2]", jvm_dir)
    conf = conf_of(settings)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    with pytest.raises(Refused, match=f"did not start: .*{cause}.*; try --verbose"):
        gateway.start(conf, settings)


def test_a_call_that_breaks_off_leaves_no_trace_but_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """py4j logs it to the root logger, and raises. What others log there stays, and with --verbose all of it."""
    monkeypatch.setattr(gateway, "launch_gateway", lambda *_: None)
    root, nowhere = logging.getLogger(), str(tmp_path)
    monkeypatch.setattr(root, "filters", [])  # a test before this one may have started Spark in this process
    for settings, logged in ((SparkSettings(verbose=True), 2), (SparkSettings(jvm_dir=nowhere), 1)):
        caplog.clear()
        try:
            gateway.start(SparkConf(loadDefaults=False), settings)
            root.error("Exception while sending command.")
            root.error("something else")
        finally:
            root.removeFilter(gateway._is_not_broken_call)
        assert len(caplog.records) == logged


def test_of_several_masters_one_has_to_answer() -> None:
    """The first one alone was asked: a run was refused while another master led the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        up, down = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listener, other))
        other.close()
        session._check_master(f"spark://{down},{up}")
        with pytest.raises(Refused, match=f"no Spark master answers at 'spark://{down},{down}'"):
            session._check_master(f"spark://{down},{down}")


def test_spark_ends_before_its_server_of_accumulators_has() -> None:
    """It looks once a second; each run paid up to that at its end. A context without one ends too."""
    go, stopping, ended = threading.Event(), threading.Event(), threading.Event()

    def shutdown() -> None:
        stopping.set()
        go.wait(10)
        ended.set()

    for server in (SimpleNamespace(shutdown=shutdown), None):
        context: Any = SimpleNamespace(_accumulatorServer=server, _gateway=SimpleNamespace(proc=None))
        # As pyspark's own does: its server first, if it still has one.
        context.stop = Mock(
            side_effect=lambda one=context: one._accumulatorServer and one._accumulatorServer.shutdown()
        )
        session._stop(context, 10.0)
        assert context.stop.called
    assert stopping.wait(10), "left running"
    assert not ended.is_set()
    go.set()
    # The names are private: under others the run would wait again, and nobody would see it.
    assert "self._accumulatorServer.shutdown()" in inspect.getsource(SparkContext.stop)
    assert issubclass(AccumulatorTCPServer, socketserver.BaseServer)


def test_a_submit_leaves_nothing_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its zip is kept in the user's cache: one file, however often the same code is submitted."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    paths = {submit._kept_archive(("brew",)) for _ in range(2)}
    assert list(temporary.iterdir()) == []
    assert [str(one) for one in cache.rglob("*") if one.is_file()] == sorted(paths)


def test_runs_of_one_process_send_executors_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each left half a megabyte in the temporary folder of a process that drains every minute."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    context = Mock()
    for _ in range(3):
        session._ship(context, SparkSettings("spark://h:1", None, {}, packages=("examples",)), local=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert len({str(call) for call in context.addPyFile.call_args_list}) == 1


def test_runs_of_one_process_send_executors_one_copy_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run left a copy until the process ended; one that was built anew is sent as it is now."""
    temporary, wheel, context = tmp_path / "tmp", tmp_path / "own-1.0-py3-none-any.whl", Mock()
    temporary.mkdir()
    wheel.write_bytes(b"first")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(3):
        add_py_files(context, [str(wheel)])
    (sent,) = {Path(call.args[0]) for call in context.addPyFile.call_args_list}
    assert (len(list(temporary.iterdir())), sent.name, sent.read_bytes()) == (1, f"{wheel.name}.zip", b"first")
    wheel.write_bytes(b"second")
    os.utime(wheel, ns=(0, 0))
    add_py_files(context, [str(wheel)])
    assert Path(context.addPyFile.call_args.args[0]).read_bytes() == b"second"


Work = Callable[[], None]
KeepWarm = Callable[[Work], tuple[WarmSpark, list[str], threading.Thread]]


@pytest.fixture
def keep_warm(monkeypatch: pytest.MonkeyPatch) -> KeepWarm:
    """A Spark that is none, kept warm by ``work``; what was told, and the thread that works."""
    cancelled = list[str]()
    context = SimpleNamespace(addJobTag=str, cancelJobsWithTag=cancelled.append, cancelled=cancelled)
    monkeypatch.setattr(session, "start_context", lambda *_: context)
    monkeypatch.setattr(session, "check_alive", lambda _context: None)
    monkeypatch.setattr(warm_up, "_PAUSE_S", 0.0)
    monkeypatch.setattr(warm_up, "_INTERVAL_S", 0.0)
    options = ["--stand-by", "--master", "local[1]", "--reader", "direct"]
    settings = settings_of(run_command.make_context("run", options).params)

    def keep(work: Work) -> tuple[WarmSpark, list[str], threading.Thread]:
        messages: list[str] = []
        warmth = WarmSpark(settings, Compilers.FIRST, messages.append)
        monkeypatch.setattr(warmth, "_run_small_job", work)
        warmth.keep()
        return warmth, messages, warmth._thread

    return keep


def test_what_may_fail_is_tried_again_without_a_word(keep_warm: KeepWarm) -> None:
    """A broker that is away, a slot that is not free, a JVM that is gone: the driver that waits hears it elsewhere."""
    errors = iter([DeadlineExceeded("a look"), PySparkRuntimeError("no slot"), Py4JNetworkError("gone"), OSError(111)])
    tried = threading.Event()

    def work() -> None:
        for error in errors:
            raise error
        tried.set()

    warmth, messages, _ = keep_warm(work)
    assert tried.wait(20)
    warmth.leave()
    assert messages == []


def test_what_must_not_happen_is_told_once_and_the_driver_waits_on(keep_warm: KeepWarm) -> None:
    warmth, messages, thread = keep_warm(Mock(side_effect=TypeError("a bug of ours")))
    thread.join(20)
    warmth.keep()
    assert not thread.is_alive()
    assert len(messages) == 1
    assert "a bug of ours" in messages[0]
    assert "report this" in messages[0]
    assert not warmth.warm


def test_a_warm_spark_is_warm_after_some_jobs_and_ends_without_one(
    keep_warm: KeepWarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py4j prints a stack trace if the JVM ends during a call."""
    done, ended = itertools.count(), list[bool]()
    warmth, messages, thread = keep_warm(lambda: next(done))
    context: Any = warmth.context
    monkeypatch.setattr(
        session, "end", lambda _context: ended.append(bool(context.cancelled) and not thread.is_alive())
    )
    until(lambda: warmth.warm, "it is warm")
    warmth.close()
    assert (ended, thread.is_alive(), messages) == ([True], False, [])
    assert next(done) >= warm_up._JOBS_UNTIL_WARM


def test_a_warm_up_of_the_connector_reads_the_last_offset_of_partitions_that_have_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A range that begins before the log fails the whole job: with one empty partition, Spark was never warm."""
    logs = [LogOffsets(0, 0, 0), LogOffsets(5, 5, 5), LogOffsets(0, 7, 9)]
    client = Mock(input_topic=lambda _deadline: Topic("in", "id", 3, 1))
    client.facts = lambda _topic, numbers, *_: [PartitionFacts("in", p, "id", None, logs[p]) for p in numbers]
    monkeypatch.setattr(warm_up, "OffsetsClient", lambda _settings: client)
    warmth: Any = WarmSpark.__new__(WarmSpark)
    warmth._settings = Mock()
    assert warmth._ranges() == [OffsetRange("in", 2, 6, 7)]
    client.close.assert_called_once_with()


def test_an_end_under_a_job_is_no_bug(keep_warm: KeepWarm) -> None:
    """The library reaches into a context that was stopped meanwhile."""
    began, go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go.wait(20)
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    warmth, messages, thread = keep_warm(work)
    assert began.wait(20)
    warmth.leave()
    go.set()
    thread.join(20)
    assert messages == []


def test_a_job_that_outlasts_a_term_of_work_does_not_go_on_beside_the_next_warm_up(keep_warm: KeepWarm) -> None:
    """A cluster without a free slot lets it wait: each change of leaders left a thread and its jobs behind."""
    began, go, count = threading.Event(), threading.Event(), itertools.count()

    def work() -> None:
        if next(count) == 0:
            began.set()
            go.wait(20)

    warmth, _, first = keep_warm(work)
    assert began.wait(20)
    warmth.leave()
    warmth.keep()
    go.set()
    first.join(5)
    warmth.leave()
    assert not first.is_alive(), "two threads keep Spark warm"


@pytest.mark.parametrize("touch", ["brew.readers.direct.executors.import_worker", "brew.driver.warm_up._touch"])
def test_a_worker_that_is_kept_warm_has_imported_what_ends_a_transaction(touch: str) -> None:
    """kafka-python takes 0.15 s; a stand-by that takes over would spend them in its first transaction."""
    module, name = touch.rsplit(".", 1)
    script = f"import sys, {module}; list({module}.{name}([])); print('brew.kafka.group_requests' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout == "True\n"
