#!/usr/bin/env bash
# How a story is told: servers of its own, commands shown, run, and held against what they have to say. Sourced.

# What was set for another cluster, or for runs of your own, does not fit a story's own broker; nor does a brew.toml here.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES BOOTSTRAP CLIENT_CONFIG BREW_CLIENT_CONFIG INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC
unset GROUP_ID TIERS PROFILES_TOPIC TRANSFORM ALSO_OUTPUT MASTER READER JOURNAL FOLLOW STAND_BY SHARE PARTITIONS PROBE_PORT
unset NO_PROBES CRASH_PROB CRASH_POINT CRASH_MODE SEED_COUNT SEED_TRANSACTIONAL STORE EFFECT_URL RECOMPUTE
export BREW_CONFIG=/dev/null

started=() # programs in the background, which end with the story

# own_place NAME [FOLDER]: sets `place`, a new folder, and `output`, the file of `run`; the folder, a broker that runs
# there and what is `started` are gone when the script ends, however it does.
own_place() {
    mkdir -p "${2:-.sandbox}"
    place=$(mktemp -d "${2:-.sandbox}/$1-XXXXXX")
    output=$place/output
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

clean_up() {
    [[ ${#started[@]} -eq 0 ]] || kill "${started[@]}" 2>/dev/null || true
    wait || true
    .venv/bin/python -m sandbox down --wipe --dir "$place" >/dev/null || true
    rm -rf "$place"
}

# own_broker NAME [FOLDER]: the same with a broker in it; exports BOOTSTRAP, and sets `told` to what its start said.
own_broker() {
    own_place "$@"
    told=$(.venv/bin/python -m sandbox up --quick --port 0 --dir "$place")
    BOOTSTRAP=$(address_of Kafka <<<"$told")
    export BOOTSTRAP
}

# address_of SERVER: reads what its start said.
address_of() {
    sed -nE "s/^$1 is up at ([^ ]+).*/\1/p" | grep . || fail "the sandbox did not print $1's address"
}

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
    bold='' dim='' green='' red='' plain=''
fi

tell() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

fail() {
    printf '%s✗ not as expected: %s%s\n' "$red" "$*" "$plain" >&2
    exit 1
}

# run EXIT_CODE COMMAND...: shows the command, runs it, keeps its output for `says`.
run() {
    local expected=$1 code=0
    shift
    printf '%s$ %s%s\n' "$dim" "$*" "$plain"
    "$@" 2>&1 | tee "$output" || code=${PIPESTATUS[0]}
    [[ $code -eq $expected ]] || fail "'$*' ended with $code instead of $expected"
}

# says REGEX MEANING: the last output has a line that matches.
says() {
    grep -Eq "$1" "$output" || fail "$2"
    printf '%s✓ %s%s\n' "$green" "$2" "$plain"
}
