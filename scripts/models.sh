#!/usr/bin/env bash
# Runs the models with spin: each as it is has to hold, each broken variant has to be caught. `make models`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
    echo "models: spin or gcc is missing; \`scripts/setup-packages.sh models\` installs them" >&2
    exit 3
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# try MODEL WANTED [DEFINE...]: all interleavings; WANTED is `holds` or `caught`.
try() {
    local model=$1 wanted=$2 found states errors
    shift 2
    (
        cd "$work"
        cp "$OLDPWD/models/$model.pml" model.pml
        spin "$@" -a model.pml >/dev/null
        gcc "$([[ $wanted == holds ]] && echo -O2 || echo -O0)" -DSAFETY -DVECTORSZ=256 -w -o pan pan.c
        ./pan -m1000000 -w24 >out.txt
    )
    errors=$(sed -n 's/.*errors: \([0-9]*\)$/\1/p' "$work/out.txt")
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$work/out.txt")
    found=holds
    if [[ ${errors:-1} != 0 ]]; then found='an error of the model'; fi
    if grep -q 'assertion violated (' "$work/out.txt"; then found=caught; fi
    if grep -q 'max search depth too small\|out of memory' "$work/out.txt"; then found='not searched to the end'; fi
    printf '%-12s %-16s %10s states  %s\n' "$model" "${*:-as it is}" "$states" "$found"
    if [[ $found != "$wanted" ]]; then
        printf 'models: expected %s\n' "$wanted" >&2
        sed 's/^/    /' "$work/out.txt" >&2
        failed=1
    fi
}

try claims holds
for bug in NO_READ_BACK NO_TOKEN NO_VERIFY NO_FENCE; do try claims caught "-D$bug"; done
try transaction holds
for bug in NO_FENCE LOCATE_FIRST REUSE OFFSET_APART NOT_CONFIRMED; do try transaction caught "-D$bug"; done
try sink holds
for bug in NO_FENCE POSITION_APART RETRY_IN_EPOCH TWO_WRITERS NO_LOCATE PLAN_NOT_RUN METADATA_IGNORED COUNT_IGNORED; do
    try sink caught "-D$bug"
done
exit $failed
