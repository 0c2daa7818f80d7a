#!/usr/bin/env bash
# Makes .jvm/spark.jsa: the classes of a Spark session that reads Kafka, ready to map into the next JVM.
# Runs a pipeline and a streaming query on a broker of its own; halves the time to the first commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/story.sh
source scripts/story.sh

place=$(mktemp -d .jvm/archive-XXXXXX)
python=.venv/bin/python
clean_up() {
    $python -m sandbox down --wipe --dir "$place" >/dev/null || true
    rm -rf "$place"
}
trap clean_up EXIT

bootstrap=$($python -m sandbox up --quick --port 0 --dir "$place" | sed -nE 's/^Kafka is up at ([^ ]+).*/\1/p')
{
    $python -m proof topics --bootstrap "$bootstrap"
    $python -m proof seed --bootstrap "$bootstrap" --count 40
    PYTHONPATH=. $python scripts/archive.py "$bootstrap" "$place/spark.jsa"
} >"$place/log" 2>&1 || { cat "$place/log" >&2; exit 1; }
mv "$place/spark.jsa" .jvm/spark.jsa
