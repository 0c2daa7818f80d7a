"""Start the driver's JVM: at once where `make setup` asked Spark how, else through Spark's own launcher."""

from __future__ import annotations

import logging
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from brew.deadline import Deadline
from brew.errors import Refused
from brew.settings import SparkSettings

OPTIONS = "java-options"
"""In the directory of the JVM parts: what Spark's launcher adds to Java's command line, an option a line."""

_BROKEN_CALL = "Exception while sending command."
_SERVER = "org.apache.spark.api.python.PythonGatewayServer"
_START_S = 120.0
_LOOK_S = 0.005
# Whoever sets one of these wants Spark's launcher to read it; under `spark-submit` the JVM is there already.
_FOR_SPARK = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "PYSPARK_GATEWAY_PORT"}


def start(conf: SparkConf, settings: SparkSettings) -> Any:
    """
    A gateway to a new JVM, in a session of its own (a signal to our group is ours to handle), its words in a file.

    Raises:
        Refused: the JVM did not start.
    """
    if settings.verbose:
        return launch_gateway(conf)
    logging.getLogger().addFilter(_is_no_broken_call)
    # JVM flags print a warning or two on stderr that no log setting reaches.
    with tempfile.TemporaryFile() as words:
        try:
            command = _command(conf, settings)
            if command is None:
                return launch_gateway(conf, {"stdout": words, "stderr": words, "start_new_session": True})
            return _connected(*_launched(command, words))
        except PySparkRuntimeError as error:
            words.seek(0)
            said = [line for line in words.read().decode("utf-8", "replace").splitlines() if line.strip()]
            raise Refused(f"Spark's JVM did not start: {_why(said) or error}; try --verbose") from error


def _why(said: list[str]) -> str:
    """The innermost cause of a trace, else the last line; empty for none."""
    causes = [line for line in said if line.lstrip().startswith("Caused by:")]
    return (causes or said or [""])[-1].strip()


def _is_no_broken_call(record: logging.LogRecord) -> bool:
    """Leave out py4j's trace of a call that broke off, as when a run is refused while Spark starts; it raises, too."""
    return record.msg != _BROKEN_CALL


def _command(conf: SparkConf, settings: SparkSettings) -> list[str] | None:
    """Java's command line; None where Spark's launcher may know better (a second and a JVM more)."""
    options = Path(settings.jvm_dir or "", OPTIONS)
    ours = not any(name.startswith("spark.driver.") for name in settings.conf)
    if not (settings.local and settings.jvm_dir and options.exists() and ours) or _FOR_SPARK & os.environ.keys():
        return None
    home = Path(pyspark.__file__).parent
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    if java is None:
        return None
    given = {name: conf.get(f"spark.driver.{name}") or "" for name in ("extraClassPath", "extraJavaOptions", "memory")}
    return [
        str(java),
        "-cp",
        f"{given['extraClassPath']}:{home}/conf:{home}/jars/*",
        f"-Xmx{given['memory']}",
        *given["extraJavaOptions"].split(),
        *options.read_text().splitlines(),
        _SERVER,
    ]


def _launched(command: list[str], words: IO[bytes]) -> tuple[subprocess.Popen[bytes], int, str]:
    """The JVM's process, its gateway's port and secret."""
    place = tempfile.mkdtemp(prefix="brew-gateway-")
    try:
        told = Path(place, "told")
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=words, stderr=words, env=environment, start_new_session=True
            )
        except OSError as error:
            raise Refused(f"Java does not start: {error}; put a java on PATH, or set JAVA_HOME to one") from error
        deadline = Deadline(_START_S)
        while not told.exists():
            if process.poll() is not None or deadline.expired():
                process.kill()
                process.communicate()
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            time.sleep(_LOOK_S)
        port, length = struct.unpack_from(">ii", told.read_bytes())
        return process, port, told.read_bytes()[8 : 8 + length].decode()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _connected(process: subprocess.Popen[bytes], port: int, secret: str) -> Any:
    """What pyspark makes of a JVM that runs already; it is told where by its environment."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway: Any = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway
