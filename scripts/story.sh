#!/usr/bin/env bash
# How a story is told: commands shown, run, and held against what they have to say. Sourced; `run` and `says` need `output`, a file.

# What was set for another cluster, or for runs of your own, does not fit a story's own broker; nor does a brew.toml here.
unset CLIENT_CONFIG BREW_CLIENT_CONFIG TIERS PROFILES_TOPIC TRANSFORM ALSO_OUTPUT MASTER JOURNAL INPUT_TOPIC OUTPUT_TOPIC
unset DLQ_TOPIC GROUP_ID SEED_TRANSACTIONAL FOLLOW STAND_BY SHARE PARTITIONS
export BREW_CONFIG=/dev/null

# own_place NAME: sets `place`, a new folder; a broker that runs there is gone with it when the script ends, however it does.
own_place() {
    mkdir -p .sandbox
    place=$(mktemp -d ".sandbox/$1-XXXXXX")
    trap '.venv/bin/python -m sandbox down --wipe --dir "$place" >/dev/null || true; rm -rf "$place"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# own_broker NAME: the same with a broker in it; sets `bootstrap`, and `told` to what its start said.
own_broker() {
    own_place "$1"
    told=$(.venv/bin/python -m sandbox up --quick --port 0 --dir "$place")
    bootstrap=$(sed -nE 's/^Kafka is up at ([^ ]+).*/\1/p' <<<"$told")
    [[ -n $bootstrap ]] || { echo "the sandbox did not print Kafka's address" >&2 && exit 1; }
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
