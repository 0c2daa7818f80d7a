#!/usr/bin/env bash
# The sink's story, on a broker that lives only for it: Spark's own Kafka sink doubles rows after a kill, ours does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .sandbox
place=$(mktemp -d .sandbox/sink-XXXXXX)
clean_up() {
    .venv/bin/python -m sandbox down --wipe --dir "$place" >/dev/null || true
    rm -rf "$place"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

told=$(.venv/bin/python -m sandbox up --quick --port 0 --dir "$place")
bootstrap=$(sed -nE 's/^Kafka is up at ([^ ]+).*/\1/p' <<<"$told")
.venv/bin/python scripts/demo_sink.py --bootstrap "$bootstrap"
printf '\nThat took %s s. How it works: docs/guide/sink.md\n' "$SECONDS"
