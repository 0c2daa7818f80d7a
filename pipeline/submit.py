"""The spark-submit line that equals a run."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brew.errors import Refused, UsageError
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from brew.settings import PipelineSettings
from brew.spark.session import CONNECTOR, package_archive, spark_conf

_NAME = "spark-submit"
_LOCAL_ONLY = {"spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.jars", "spark.jars.packages"}
_NOT_PASSED = ("--crash-", "--py-files", "--jvm-dir", "--verbose")
_NO_FILE = ("--config", os.devnull)  # every option is named: a brew.toml next to the driver adds nothing


def submitter() -> str:
    """Return the `spark-submit` of PATH, else pip's, which finds Spark by this Python; raises `Refused` without one."""
    found = shutil.which(_NAME)
    if found is None:
        found = shutil.which(_NAME, path=str(Path(sys.executable).parent))
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if found is None:
        raise Refused(f"no {_NAME} on PATH; put Spark's bin folder there, or copy the line that --dry-run prints")
    return found


def spark_submit(settings: PipelineSettings, options: Iterable[click.Parameter], given: Mapping[str, Any]) -> list[str]:
    """
    Return `spark-submit ... submit_main.py run ...` with our package as --py-files, and the connector. ``options`` and
    ``given``: as for `same_options`.
    """
    conf = spark_conf(settings.spark)
    line = [_NAME, "--master", settings.spark.master, "--name", conf["spark.app.name"]]
    # The jars that were set up here; if there are none, Spark's own Ivy.
    jars = dependencies.jars(Part.SPARK, Path(settings.spark.jvm_dir)) if settings.spark.jvm_dir else []
    line += ["--jars", ",".join(map(str, jars))] if jars else ["--packages", CONNECTOR]
    files = [_kept_archive(settings.spark.packages), *settings.spark.py_files]
    reference = settings.transform
    if isinstance(reference, str) and (file := reference.rpartition(":")[0]).endswith(".py"):
        _check_name(file)
        files.append(str(Path(file).expanduser()))  # found by its name on the driver's machine
        given = {**given, "transform": f"{Path(file).stem}:{reference.rpartition(':')[2]}"}
    if wheels := [file for file in files if file.endswith(".whl")]:
        raise UsageError(f"--py-files is {wheels[0]!r}: spark-submit takes .py, .zip and .egg; copy it to a .zip")
    line += ["--py-files", ",".join(files)]
    for name, value in sorted(conf.items()):
        if name not in _LOCAL_ONLY or name in settings.spark.conf:
            line += ["--conf", f"{name}={value}"]
    line += [str(Path(__file__).with_name("submit_main.py")), "run", *_NO_FILE]
    line += same_options(settings, options, given)
    return line


def _check_name(file: str) -> None:
    """Raise `UsageError` if a file's name is another module's, which Python or brew would import in its place."""
    path = Path(file)
    loaded = sys.modules.get(path.stem)
    foreign = loaded is not None and getattr(loaded, "__file__", None) != str(path.expanduser().resolve())
    if foreign or path.stem in sys.stdlib_module_names:
        raise UsageError(
            f"TRANSFORM (--transform) names {file!r}: where Spark runs the driver, it would hide the module "
            f"{path.stem!r}; give the file another name"
        )


def _kept_archive(packages: tuple[str, ...]) -> str:
    """Return our packages' zip in the user's cache: spark-submit replaces this process, so nothing could remove it."""
    made = Path(package_archive(packages))
    try:
        name = f"brew-{hashlib.sha256(made.read_bytes()).hexdigest()[:16]}.zip"
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "brew", name)
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            fresh = kept.with_suffix(f".{os.getpid()}")
            shutil.copyfile(made, fresh)
            fresh.replace(kept)
    finally:
        shutil.rmtree(made.parent, ignore_errors=True)
    return str(kept)


def same_options(settings: PipelineSettings, options: Iterable[click.Parameter], given: Mapping[str, Any]) -> list[str]:
    """Return the words for ``options`` with the values ``given``, as `python -m pipeline run` takes them."""
    # The driver sets these itself, which overrides what spark-submit was given.
    overridden = spark_conf(replace(settings.spark, conf={})).keys() - _LOCAL_ONLY
    conf = [f"{name}={value}" for name, value in settings.spark.conf.items() if name in overridden]
    values = {**given, "conf": conf, "client_config": settings.connection.source}
    words: list[str] = []
    for option in options:
        value = values.get(str(option.name))
        if not isinstance(option, click.Option) or option.opts[0].startswith(_NOT_PASSED) or value in (None, ""):
            continue
        if option.is_flag:
            words += [option.opts[0]] if value else []
        else:
            words += [word for one in (value if option.multiple else [value]) for word in (option.opts[0], str(one))]
    return words
