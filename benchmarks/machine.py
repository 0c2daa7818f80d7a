"""What the numbers depend on: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
from contenders import FLINK, JVM_DIR, PEERS, STREAMS
from ground import ROOT


def machine() -> dict[str, str]:
    """Name -> value, for people and for the JSON file."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{_cores()} ({_cpu_model()})",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before the start": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_version()}, built with{'out' if _is_slow() else ''} optimisations",
        "java": _java(),
        "pyspark": importlib.metadata.version("pyspark"),
        "confluent-kafka": importlib.metadata.version("confluent-kafka"),
        "kafka broker": jar_version(JVM_DIR / "kafka", "kafka_2.13"),
        "kafka-clients of the connector": jar_version(JVM_DIR / "spark", "kafka-clients"),
        "kafka-streams": jar_version(STREAMS.parent / "lib", "kafka-streams"),
        "franz-go": _franz(),
        "flink": jar_version(FLINK.parent / "lib", "flink-clients"),
        "flink-connector-kafka": jar_version(FLINK.parent / "lib", "flink-connector-kafka"),
        "quix-streams": _quix(),
        "commit": _program_output("git", "describe", "--always", "--dirty") or "none",
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", file.read_text()) if file.exists() else None
    return found[1].strip() if found else platform.machine()


def _is_slow() -> bool:
    """As `make setup` judges it."""
    return subprocess.run([sys.executable, ROOT / "scripts/judge_python.py"], check=False, timeout=30).returncode == 10


def _java() -> str:
    found = re.search(r'version "([^"]+)"', _program_output("java", "-version"))
    return found[1] if found else "unknown"


def _franz() -> str:
    found = re.search(r"twmb/franz-go v(\S+)", (PEERS / "franz/go.mod").read_text())
    return found[1] if found else "unknown"


def _quix() -> str:
    found = re.search(r"quixstreams==(\S+)", (PEERS / "quix-requirements.txt").read_text())
    return found[1] if found else "unknown"


def _program_output(name: str, *arguments: str) -> str:
    """What a program of PATH says; nothing when it is not there or fails."""
    program = shutil.which(name)
    if program is None:
        return ""
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def jar_version(folder: Path, name: str) -> str:
    jars = sorted(folder.glob(f"{name}-[0-9]*.jar"))
    return jars[0].stem.removeprefix(f"{name}-") if jars else "not built"
