#!/usr/bin/env bash
# The torn transaction, shown on a broker that lives only for it: both writers behind the wire proxy, frame by frame.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .sandbox
place=$(mktemp -d .sandbox/torn-XXXXXX)
clean_up() {
    .venv/bin/python -m sandbox down --wipe --dir "$place" >/dev/null || true
    rm -rf "$place"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

told=$(.venv/bin/python -m sandbox up --quick --port 0 --dir "$place")
printf '%s\n\n' "$told"
bootstrap=$(sed -nE 's/^Kafka is up at ([^ ]+).*/\1/p' <<<"$told")
.venv/bin/python -m proof torn --bootstrap "$bootstrap" --tries 2 --show
printf '\nThat took %s s. For numbers: python -m proof torn --tries 100 (--writer strict --tries 1000).\n' "$SECONDS"
