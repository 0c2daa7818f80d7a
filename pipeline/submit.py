"""The spark-submit line that equals a run."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from brew.errors import Refused, UsageError
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from brew.orders import Tiers
from brew.settings import PipelineSettings
from brew.spark.session import CONNECTOR, package_archive, spark_conf
from pipeline.transformation import ORDERS

_NAME = "spark-submit"
_LOCAL_ONLY = {"spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.jars", "spark.jars.packages"}
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


def spark_submit(settings: PipelineSettings) -> list[str]:
    """Return `spark-submit ... submit_main.py run ...` with our package as --py-files, and the connector."""
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
        settings = replace(settings, transform=f"{Path(file).stem}:{reference.rpartition(':')[2]}")
    if wheels := [file for file in files if file.endswith(".whl")]:
        raise UsageError(f"--py-files is {wheels[0]!r}: spark-submit takes .py, .zip and .egg; copy it to a .zip")
    line += ["--py-files", ",".join(files)]
    for name, value in sorted(conf.items()):
        if name not in _LOCAL_ONLY or name in settings.spark.conf:
            line += ["--conf", f"{name}={value}"]
    line += [str(Path(__file__).with_name("submit_main.py")), "run", *_NO_FILE]
    line += same_options(settings)
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


def same_options(settings: PipelineSettings) -> list[str]:
    """Return the options of `python -m pipeline run` that give the same run."""
    own = settings.transform != ORDERS
    profiles, claims = settings.profiles, settings.stand_by or settings.share
    options = {
        "--bootstrap": settings.connection.bootstrap,
        "--input": settings.input,
        "--output": settings.output,
        "--dead-letter": settings.dead_letter,
        "--group": settings.group,
        "--master": settings.spark.master,
        "--reader": settings.reader.value,
        "--lease": settings.direct.lease_s,
        "--transaction-bytes": settings.direct.transaction_bytes,
        "--read-ahead-bytes": settings.direct.read_ahead_bytes,
        "--lanes": settings.lanes,
        "--max-records-per-transaction": settings.max_records_per_transaction,
        "--transaction-timeout": settings.transaction_timeout_s,
        "--poll-interval": settings.poll_interval_s,
        "--patience": settings.patience_s,
        "--blocked-patience": settings.blocked_patience_s,
        "--max-record-bytes": settings.limits.max_bytes,
        "--max-record-depth": settings.limits.max_depth,
        "--on-missing-position": settings.on_missing_position.value,
        "--transform": settings.transform if own else None,
        "--on-error": settings.on_error.value if own else None,
        "--max-rejected": settings.max_rejected,
        "--journal": settings.journal,
        "--client-config": settings.connection.source,
        "--tiers": (Tiers.PREFIX if profiles is None else Tiers.PROFILES).value,
        "--profiles-topic": profiles and profiles.topic,
        "--profiles-timeout": profiles and profiles.load_timeout_s,
        "--claim-interval": claims and claims.interval_s,
        "--claims": claims and claims.claims,
        "--client-id": claims and (claims.client_id or None),
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += [word for topic in settings.also_output for word in ("--also-output", topic)]
    words += [word for check in sorted(settings.allow) for word in ("--allow", check)]
    # The driver sets these itself, which overrides what spark-submit was given.
    overridden = spark_conf(replace(settings.spark, conf={})).keys() - _LOCAL_ONLY
    given = [f"{name}={value}" for name, value in settings.spark.conf.items() if name in overridden]
    words += [word for pair in given for word in ("--conf", pair)]
    flags = {"--follow": settings.follow, "--stand-by": settings.stand_by, "--share": settings.share}
    return [*words, *(flag for flag, wanted in flags.items() if wanted)]
