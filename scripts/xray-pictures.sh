#!/usr/bin/env bash
# The crash story's logs as pictures: right after the crash, and after the run that heals it, on a broker of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

into=${XRAY_OUT:-docs/pictures}
orders=${SEED_COUNT:-30}

# shellcheck source=scripts/story.sh
source scripts/story.sh

mkdir -p "$into"
own_broker xray
echo "$told"

pipeline() { .venv/bin/python -m pipeline "$@"; }
run() { pipeline run --master none --journal "$place/journal" "$@"; }

.venv/bin/python -m proof topics --partitions 3
.venv/bin/python -m proof seed --count "$orders"
code=0
run --crash-prob 1.0 || code=$?
[[ $code -eq 2 ]] || { echo "the crash ended with $code instead of 2" >&2 && exit 1; }
pipeline xray --out "$into/xray-before.svg"
run
pipeline xray --out "$into/xray-after.svg"
pipeline xray --journal "$place/journal" --out "$place/xray.html"
[[ -z ${XRAY_PAGE:-} ]] || cp "$place/xray.html" "$XRAY_PAGE"
pipeline xray
