"""The driver's JVM, with the options that `brew setup` saved; else Spark's launcher starts it, a second later."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from brew.deadline import Deadline
from brew.errors import Refused
from brew.jvm.dependencies import Part, find_java, java, setup_command
from brew.settings import SparkSettings

OPTIONS = "java-options"
"""A file in the JVM directory: the options that Spark's launcher adds to Java's command line, one per line."""

_BROKEN_CALL = "Exception while sending command."
_SERVER = "org.apache.spark.api.python.PythonGatewayServer"
_START_S, _LAUNCHER_S = 120.0, 60.0
_POLL_S = 0.005
_SCALA = "2.13"
_JAVA_OPTIONS = ("--", "-XX", "-D")
# Variables that only Spark's launcher reads; under `spark-submit` the JVM is already running.
_FOR_LAUNCHER = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "PYSPARK_GATEWAY_PORT"}


def start(conf: SparkConf, settings: SparkSettings) -> Any:
    """Start a JVM in its own session, out of reach of our group's signals; raises `Refused` if it does not start."""
    if settings.verbose:
        return launch_gateway(conf)
    logging.getLogger().addFilter(_is_not_broken_call)
    # JVM flags print warnings on stderr that no log setting suppresses.
    with tempfile.TemporaryFile() as output:
        try:
            command = _command(conf, settings)
            if command is None:
                return launch_gateway(conf, {"stdout": output, "stderr": output, "start_new_session": True})
            return _connect(*_launch(command, output))
        except PySparkRuntimeError as error:
            output.seek(0)
            lines = [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
            causes = [line for line in lines if line.lstrip().startswith("Caused by:")] or lines or [""]
            raise Refused(f"Spark's JVM did not start: {causes[-1].strip() or error}; try --verbose") from error


def _is_not_broken_call(record: logging.LogRecord) -> bool:
    """Drop py4j's log of an interrupted call, as when a run is refused while Spark starts; it raises an error, too."""
    return record.msg != _BROKEN_CALL


def _command(conf: SparkConf, settings: SparkSettings) -> list[str] | None:
    """Return Java's command line; None if Spark's launcher must build it (which takes another JVM and a second)."""
    options = Path(settings.jvm_dir or "", OPTIONS)
    # Only the launcher adds jars to the driver's class path, and fetches packages.
    default_driver = not any(name.startswith(("spark.driver.", "spark.jars")) for name in settings.conf)
    if (
        not (settings.local and settings.jvm_dir and options.exists() and default_driver)
        or _FOR_LAUNCHER & os.environ.keys()
    ):
        return None
    home, executable = Path(pyspark.__file__).parent, find_java()
    if executable is None:
        return None
    conf_values = {
        name: conf.get(f"spark.driver.{name}") or "" for name in ("extraClassPath", "extraJavaOptions", "memory")
    }
    # In the launcher's order: the class-data archive then fits JVMs that the launcher starts, too.
    first = [str(jar) for jar in home.glob("jars/slf4j-api-*.jar")]
    return [
        executable,
        "-cp",
        ":".join([conf_values["extraClassPath"], f"{home}/conf", *first, f"{home}/jars/*"]),
        f"-Xmx{conf_values['memory']}",
        *shlex.split(conf_values["extraJavaOptions"]),
        *options.read_text().splitlines(),
        _SERVER,
    ]


def _launch(command: list[str], output: IO[bytes]) -> tuple[subprocess.Popen[bytes], int, str]:
    """Start the JVM; return its process, its gateway's port and secret."""
    with tempfile.TemporaryDirectory(prefix="brew-gateway-", ignore_cleanup_errors=True) as folder:
        info = Path(folder, "connection-info")
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        except OSError as error:
            raise Refused(f"Java does not start: {error}; put a java on PATH, or set JAVA_HOME to one") from error
        deadline = Deadline(_START_S)
        with _killed_unless_started(process):
            while not info.exists():
                if process.poll() is not None or deadline.expired():
                    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
                time.sleep(_POLL_S)
        port, length = struct.unpack_from(">ii", info.read_bytes())
        return process, port, info.read_bytes()[8 : 8 + length].decode()


@contextlib.contextmanager
def _killed_unless_started(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the JVM after an error or Ctrl-C: a notebook's process goes on, and so would the JVM."""
    try:
        yield
    except BaseException:
        process.kill()
        process.communicate()
        raise


def _connect(process: subprocess.Popen[bytes], port: int, secret: str) -> Any:
    """Connect pyspark to a running JVM; pyspark reads port and secret from the environment."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        with _killed_unless_started(process):
            gateway: Any = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway


_TEXT = """Fetch the jars with which Spark reads Kafka, and compare them with the checksums of this version.

Once per machine that runs a driver; `--master none` needs none of it. Executors get them from the driver.

\b
Examples:
  brew-pipeline setup                           into the user's cache, from a Maven repository
  brew-pipeline setup --from /media/jars        on a machine without a network
  brew-pipeline setup --jvm-dir /opt/brew/jvm   then set BREW_JVM_DIR to it for runs, too
"""


def save_java_options(folder: Path) -> None:
    """Save the options that Spark's launcher adds, so that a start needs no launcher; nothing if that fails."""
    root = Path(pyspark.__file__).parent
    options_file = folder / OPTIONS
    command = [java(), "-cp", f"{root}/jars/*", "org.apache.spark.launcher.Main"]
    command += ["org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    environment = {**os.environ, "SPARK_HOME": str(root), "SPARK_SCALA_VERSION": _SCALA}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_LAUNCHER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        options_file.unlink(missing_ok=True)
        return
    options = [option for option in done.stdout.decode().split("\0") if option.startswith(_JAVA_OPTIONS)]
    options_file.write_text("".join(f"{option}\n" for option in options))


setup = setup_command(Part.SPARK, _TEXT, save_java_options)


_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
"""A Python traceback within a Java error, and the line after it: the exception."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '[^'\n]+'")
"""What ends Spark's daemon in a Python without pyspark, which prints no traceback, or an indented one."""


def cause(error: Exception) -> str:
    """Return what a task's Python raised; else the innermost cause of a Java error, or the error's first line."""
    raised = [text for text in _RAISED.findall(str(error)) if not text.startswith("PYTHONPATH")]
    if raised := raised or _NO_MODULE.findall(str(error)):
        other = f"; PYSPARK_PYTHON names Spark's Python, as in {sys.executable}, before Spark starts"
        return str(raised[-1])[:400] + (other if raised[-1].startswith("ModuleNotFoundError") else "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("Caused by:", ": "))]
    text = named[-1] if named else (lines or [type(error).__name__])[0]
    return text.removeprefix("Caused by:").removeprefix(":").strip()[:400]
