#!/usr/bin/env bash
# Makes .jvm/spark.jsa: the classes of a Spark session that reads Kafka, ready to map into the next JVM.
# Runs a pipeline and a streaming query on a broker of its own; halves the time to the first commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/story.sh
source scripts/story.sh

own_broker archive .jvm
python=.venv/bin/python
{
    $python -m proof topics
    $python -m proof seed --count 40
    PYTHONPATH=. $python scripts/archive.py "$BOOTSTRAP" "$place/spark.jsa"
} >"$place/log" 2>&1 || { cat "$place/log" >&2; exit 1; }
mv "$place/spark.jsa" .jvm/spark.jsa
