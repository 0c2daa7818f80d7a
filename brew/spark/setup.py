"""`brew setup`: fetch the jars that Spark needs and pip does not install."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from brew.jvm.dependencies import Part, java, setup_command
from brew.spark.gateway import OPTIONS

_LAUNCHER_S = 60.0
_SCALA = "2.13"
_JAVA_OPTIONS = ("--", "-XX", "-D")

_TEXT = """Fetch the jars with which Spark reads Kafka, and compare them with the checksums of this version.

Once per machine that runs a driver; `--master none` needs none of it. Executors get them from the driver.

\b
Examples:
  brew-pipeline setup                           into the user's cache, from a Maven repository
  brew-pipeline setup --from /media/jars        on a machine without a network
  brew-pipeline setup --jvm-dir /opt/brew/jvm   then set BREW_JVM_DIR to it for runs, too
"""


def save_java_options(folder: Path) -> None:
    """
    Save the options that Spark's launcher adds to Java's command line, so that a start needs no launcher JVM.

    If the launcher fails, nothing is saved, and each start uses the launcher.
    """
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
