"""Configure, start and stop Spark, with our packages on the executors."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import INPUT_CONVERTER, Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from brew.errors import Refused
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from brew.settings import Compilers, SparkSettings
from brew.signals import interruptible
from brew.spark import gateway
from brew.spark.shipping import add_py_files

CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
_CONNECT_S = 5.0
_JVM_EXIT_S = 2.0
# Spark's default pattern, and the names of a Kafka client's secrets: the setting replaces the default.
_HIDDEN = "(?i)secret|password|token|access[.]?key|jaas|keystore"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which also provides the jars

_SESSION_CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Spark's default without kafka: a version 1 source converts each row to objects and back (decision 0006).
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}

# Measured on two cores (decision 0006): C2 alone took a quarter of the JVM's CPU time.
COLLECTOR = "-XX:+UseSerialGC"
COMPILERS = {
    Compilers.FIRST: ("-XX:TieredStopAtLevel=1",),
    Compilers.SECOND_LATE: (
        "-XX:Tier4InvocationThreshold=100000",
        "-XX:Tier4MinInvocationThreshold=20000",
        "-XX:Tier4CompileThreshold=300000",
        "-XX:Tier4BackEdgeThreshold=1000000",
    ),
    Compilers.BOTH: (),
}


def spark_conf(settings: SparkSettings, compilers: Compilers = Compilers.FIRST) -> dict[str, str]:
    """Return all Spark settings of a run; the caller's settings override the others."""
    conf = {
        "spark.app.name": "brew-pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_SESSION_CONF,
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",
        "spark.redaction.regex": _HIDDEN,
        "spark.sql.redaction.options.regex": f"(?i)url|{_HIDDEN}",
        "spark.task.maxFailures": "4",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "brew-warehouse")),
        **_java(settings, compilers),
    }
    if settings.master.startswith("local"):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf | dict(settings.conf)


def _java(settings: SparkSettings, compilers: Compilers) -> dict[str, str]:
    """Return the connector's jars and the JVM's options; without local jars Spark fetches the connector itself."""
    log4j = "file:" + str(Path(__file__).with_name("log4j2.properties"))
    options = [f"-Dlog4j2.configurationFile={log4j}"] if not settings.verbose else []
    jars = [str(jar) for jar in dependencies.jars(Part.SPARK, Path(settings.jvm_dir))] if settings.jvm_dir else []
    if not jars:
        return {"spark.jars.packages": CONNECTOR, "spark.driver.extraJavaOptions": shlex.join(options)}
    archive = Path(settings.jvm_dir or "", "spark.jsa")
    if settings.local:
        options += [COLLECTOR, *COMPILERS[compilers]]
        if settings.make_archive:
            options.append(f"-XX:ArchiveClassesAtExit={settings.make_archive}")
        elif archive.exists():
            # The JVM ignores an archive that does not match it or the jars.
            options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    conf = {"spark.driver.extraClassPath": ":".join(jars), "spark.driver.extraJavaOptions": shlex.join(options)}
    return conf if settings.local else conf | {"spark.jars": ",".join(jars)}


@dataclass
class _OwnContext:
    """The Spark context that runs of this process have started, and the number of those that use it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    context: SparkContext | None = None
    users: int = 0


_own = _OwnContext()


def start(settings: SparkSettings, compilers: Compilers = Compilers.FIRST) -> SparkSession:
    """Return a session on the context of `start_context`; raises `Refused` as that, or without the connector's jars."""
    context = start_context(settings, compilers)
    if context is not _own.context:
        return _session_on_borrowed(context)
    with _undone(settings, lambda: end(context)):
        spark = SparkSession(context)
        spark.conf.get("spark.sql.session.timeZone")  # builds the session's state, which reports a bad --conf
    return spark


def _session_on_borrowed(context: SparkContext) -> SparkSession:
    spark = SparkSession(context).newSession()
    for name, value in _SESSION_CONF.items():
        spark.conf.set(name, value)
    try:
        spark.read.format("kafka").option("kafka.bootstrap.servers", "localhost:1").option("subscribe", "x").load()
    except AnalysisException as error:
        raise Refused(
            "the Spark session of this process has no Kafka source on its class path; build it with "
            f'.config("spark.jars.packages", "{CONNECTOR}"), or run with --reader direct'
        ) from error
    return spark


def start_context(settings: SparkSettings, compilers: Compilers = Compilers.FIRST) -> SparkContext:
    """
    Return the Spark context of this process, without Spark SQL; there can be only one. Raises `Refused` if the master
    does not answer.

    One that the caller has already started is borrowed: a run does not stop it, cancels only its own jobs, and changes
    no settings or signal handlers. Otherwise it is started, if no other run has; the last user's `end` stops it.
    """
    with _own.lock:  # pyspark shows a context before it has started
        active: SparkContext | None = SparkContext._active_spark_context  # noqa: SLF001 - pyspark has no other way
        if active is not None and active is not _own.context:
            local = active.master.startswith("local") and not active.master.startswith("local-cluster")
            _ship(active, settings, local=local)
            return active
        if _own.context is None:
            _own.context = _new_context(settings, compilers)
        else:
            _ship(_own.context, settings, local=settings.local)
        _own.users += 1
        return _own.context


def _new_context(settings: SparkSettings, compilers: Compilers) -> SparkContext:
    _check_jars(settings)
    _check_master(settings.master)
    if SparkContext._gateway is not None:  # noqa: SLF001 - the JVM of a session that was stopped has other settings and jars
        _end_jvm(SparkContext._gateway, _JVM_EXIT_S)  # noqa: SLF001
    conf = SparkConf().setMaster(settings.master_with_retries).setAll(list(spark_conf(settings, compilers).items()))
    # A cluster without a free slot (YARN), or a master that does not answer, lets it wait for minutes.
    with interruptible(), _workers_python(settings):
        _ask_numpy_converters_less()
        jvm = gateway.start(conf, settings)
        with _undone(settings, lambda: _end_jvm(jvm, _JVM_EXIT_S)), _sigint_handler_kept():
            context = SparkContext(conf=conf, gateway=jvm)
    with _undone(settings, lambda: _stop(context, _JVM_EXIT_S)):
        _ship(context, settings, local=settings.local)
    return context


class _NumpyOnly:
    """One of pyspark's converters, used only for NumPy's values: for any other it imports pandas, which takes 0.3 s."""

    def __init__(self, converter: Any) -> None:
        self._converter, self.convert = converter, converter.convert

    def can_convert(self, value: object) -> bool:
        from_numpy = any(parent.__module__ == "numpy" for parent in type(value).__mro__)
        return from_numpy and bool(self._converter.can_convert(value))


def _ask_numpy_converters_less() -> None:
    for number, converter in enumerate(INPUT_CONVERTER):
        if isinstance(converter, (NumpyArrayConverter, NumpyScalarConverter)):
            INPUT_CONVERTER[number] = _NumpyOnly(converter)


@contextlib.contextmanager
def _workers_python(settings: SparkSettings) -> Iterator[None]:
    """Set the variable that names the workers' Python while Spark starts; the next run may need another one."""
    before = os.environ.get("PYSPARK_PYTHON")
    if python := settings.conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # spark-submit reads the setting; a driver without it doesn't
    elif settings.master.startswith("local"):
        # Otherwise workers on this machine run the first `python3` of PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        os.environ.pop("PYSPARK_PYTHON", None)
        if before is not None:
            os.environ["PYSPARK_PYTHON"] = before


def _ship(context: SparkContext, settings: SparkSettings, *, local: bool) -> None:
    """Send tasks what they import; local tasks find our packages where the driver does."""
    if not local:
        context.addPyFile(_kept_archive(settings.packages))
    add_py_files(context, settings.py_files)


@contextlib.contextmanager
def _undone(settings: SparkSettings, undo: Callable[[], None]) -> Iterator[None]:
    """Undo a start that failed; also by Ctrl-C in a notebook, whose process goes on."""
    try:
        yield
    except Exception as error:
        lines = str(error).splitlines()  # asks the JVM for its text, before that ends
        undo()
        reason = next((line for line in lines if "Exception:" in line), type(error).__name__)
        raise Refused(f"Spark did not start on {settings.master!r}: {reason.strip()}; try --verbose") from error
    except BaseException:
        undo()
        raise


@contextlib.contextmanager
def _sigint_handler_kept() -> Iterator[None]:
    """Restore our SIGINT handler: that of a new context cancels all jobs mid-transaction, and raises."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def check_alive(context: SparkContext) -> None:
    """Raise `Refused` if the driver's JVM has ended, or Spark was stopped, since no retry can succeed without it."""
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark keeps the JVM's process there
    if process is not None and process.poll() is not None:
        raise Refused(
            f"Spark's JVM has ended by itself (exit code {process.returncode}; -9 is a kill, often out of memory); "
            "run again: the run continues from the committed offsets"
        )
    if getattr(context, "_jsc", context) is None:
        raise Refused(
            "Spark was stopped (`stop()` of a session or context) while the run used it; end a run before that; "
            "run again: the run continues from the committed offsets"
        )


@contextlib.contextmanager
def jvm_call(context: SparkContext) -> Iterator[None]:
    """Wrap a call to the driver's JVM; raises `Refused` if that has ended, or does not answer."""
    try:
        yield
    except (Py4JError, OSError, AttributeError) as error:  # the last one: Spark was stopped
        process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark keeps the JVM's process there
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_JVM_EXIT_S)  # its sockets close a moment before it ends
        check_alive(context)
        raise Refused(f"Spark's JVM does not answer: {error}; try --verbose") from error


class RunJobs:
    """The Spark jobs of one run, under a tag of their own: other runs may use the same context."""

    def __init__(self, context: SparkContext) -> None:
        self._context, self._tag = context, f"brew-{uuid.uuid4().hex}"

    def tag(self) -> None:
        """Tag the jobs that this thread starts, for `cancel`; only threads of this run may call it."""
        self._context.addJobTag(self._tag)

    def cancel(self) -> None:
        """Cancel all tagged jobs; does nothing if the JVM has ended, or Spark was stopped."""
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self._context.cancelJobsWithTag(self._tag)


def executors(context: SparkContext) -> int | None:
    """Return how many executors the application has; None if the driver is its only one (a local master)."""
    with jvm_call(context):
        spark = context._jsc.sc()  # noqa: SLF001 - pyspark's own tracker reports no executors
        return None if spark.isLocal() else len(spark.statusTracker().getExecutorInfos()) - 1


def end(context: SparkContext, wait_s: float = 10.0) -> None:
    """
    Stop Spark and wait for its JVM to end; kill it if it does not. Does nothing while other runs use it, too, and to a
    borrowed context.
    """
    with _own.lock:
        if context is not _own.context:
            return
        _own.users -= 1
        if not _own.users:
            _own.context = None
            _stop(context, wait_s)


def _stop(context: SparkContext, wait_s: float) -> None:
    jvm = context._gateway  # noqa: SLF001 - pyspark keeps it there
    _release_accumulators(context)
    with contextlib.suppress(Py4JError, OSError):  # a JVM that was killed can't answer
        context.stop()
    _end_jvm(jvm, wait_s)


def _end_jvm(jvm: Any, wait_s: float) -> None:
    """End the JVM behind a gateway if this process has started it, so that the next context starts its own."""
    process = getattr(jvm, "proc", None)
    if process is None:
        return
    process.stdin.close()  # the JVM ends at the end of its input
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(wait_s)
    if SparkContext._gateway is jvm:  # noqa: SLF001 - pyspark keeps it for the next context
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _release_accumulators(context: SparkContext) -> None:
    """Stop pyspark's accumulator server in the background: it is unused here, and stopping may take a second."""
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    context._accumulatorServer = None  # noqa: SLF001 - as `context.stop` leaves it
    server.handle_error = lambda *_: None  # the JVM may close their connection first
    threading.Thread(target=server.shutdown, name="accumulators", daemon=True).start()


@functools.cache
def _kept_archive(packages: tuple[str, ...]) -> str:
    """Return the same archive for all runs of this process: Spark serves it from there until the process ends."""
    archive = package_archive(packages)
    atexit.register(shutil.rmtree, Path(archive).parent, ignore_errors=True)
    return archive


def package_archive(packages: Iterable[str]) -> str:
    """Zip these packages of ours for the executors; return the path of the zip."""
    path = Path(tempfile.mkdtemp(prefix="brew-"), "brew.zip")
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in packages:
            for source in sorted((root / package).rglob("*.py")):
                archive.write(source, source.relative_to(root))
    return str(path)


def _check_jars(settings: SparkSettings) -> None:
    """Raise `Refused` if the connector's jars are missing and no setting says that Spark has them, before it starts."""
    from_elsewhere = any(name.startswith(("spark.jars", "spark.driver.extraClassPath")) for name in settings.conf)
    if from_elsewhere or settings.jvm_dir is None or _SUBMITTED in os.environ:
        return
    if not dependencies.jars(Part.SPARK, Path(settings.jvm_dir)):
        raise dependencies.missing_jars(Part.SPARK, Path(settings.jvm_dir))


def _check_master(master: str) -> None:
    """Refuse a Spark master that does not listen, or several if none does; the JVM would retry for minutes."""
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except OSError as error:
            reason = error
        else:
            return
    raise Refused(f"no Spark master answers at {master!r} ({reason}); start it, or set MASTER (--master)") from reason
