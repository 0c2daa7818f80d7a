#!/usr/bin/env bash
# The live view of a run at work as a picture, on a broker of its own: many partitions, one of them blocked by somebody.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python # in the background never through a function, whose process would end and leave it behind
into=${UI_PICTURE:-docs/pictures/ui.png}
orders=${SEED_COUNT:-90000}
size=${UI_SIZE:-1440,2300}
browser=$(command -v chromium || command -v google-chrome) ||
    { echo "a picture needs chromium; scripts/setup-packages.sh browser installs it" >&2 && exit 3; }

# shellcheck source=scripts/story.sh
source scripts/story.sh

mkdir -p "$(dirname "$into")"
own_broker ui
echo "$told"

seed() { $python -m proof seed "$@" >/dev/null; }
crash() {
    local code=0
    $python -m pipeline run --master none --progress none --crash-prob 1.0 "$@" || code=$?
    [[ $code -eq 2 ]] || { echo "the crash ended with $code instead of 2" >&2 && exit 1; }
}
run=("$python" -m pipeline run --master none --progress none --max-records-per-transaction 40)
address() { # of the file that a program in the background writes to: the first address in it
    local found=
    for _ in $(seq 300); do
        found=$(sed -nE 's#.*(http://127\.0\.0\.1:[0-9]+).*#\1#p' "$1" 2>/dev/null | head -n 1)
        [[ -z $found ]] || { echo "$found" && return; }
        sleep 0.1
    done
    echo "no address was printed: $(<"$1")" >&2
    return 1
}

# A run that crashes and heals, and its proof.
$python -m proof topics --partitions 64
seed --count 5000
crash --max-records-per-transaction 40
"${run[@]}"
$python -m proof verify --json >"$place/proof.json"

# Somebody upstream crashed, too, and left a transaction open in one partition of our input.
$python -m proof topics --partitions 1 --input shop.checkout --output shop.unused --dead-letter shop.dlq >/dev/null
seed --topic shop.checkout --count 1
crash --input shop.checkout --output brew.orders.v1 --dead-letter shop.dlq --group shop-checkout --transaction-timeout 600

"${run[@]}" --follow --probe-port 0 >"$place/run" 2>&1 &
started+=($!)
$python -m proof seed --count "$orders" >/dev/null &
started+=($!)
status=$(address "$place/run")
$python -m pipeline ui --port 0 --tail 200 --status-url "$status" --proof "$place/proof.json" >"$place/ui" 2>&1 &
started+=($!)
page=$(address "$place/ui")
sleep "${UI_WAIT:-25}" # rates are over ten seconds
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$place/browser" \
    --window-size="$size" --screenshot="$into" "$page/" 2>/dev/null
$python -m pipeline top --once --tail 200 --status-url "$status" --proof "$place/proof.json"
echo "$into"
