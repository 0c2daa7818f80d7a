#!/usr/bin/env bash
# Builds the peers that need more than our own .venv into benchmarks/peers/build/, which git ignores.
#   build/streams/streams.jar   Kafka Streams; needs Maven and a JDK
#   build/flink/flink.jar       Flink; the same
#   build/franz                 franz-go; needs Go
#   build/quix                  quix-streams, in a venv of its own: it wants another confluent-kafka than ours
# Builds what it can; exit code 3 when a tool is missing or too old, with how to get it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'bench-peers: %s\n' "$*" >&2; }
missing=0
lacks() { say "$*"; missing=1; }

build_java() { # NAME: the Maven project and the jar
    if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then
        lacks "$1 is not built: it needs Maven and a JDK of Java 17 or later (Debian: apt-get install maven default-jdk-headless)"
        return
    fi
    mvn --quiet --batch-mode --file "$1/pom.xml" package
    say "build/$1/$1.jar"
}

build_franz() {
    if ! command -v go >/dev/null; then
        lacks "franz is not built: it needs Go 1.21 or later (Debian: apt-get install golang-go, where that is new enough)"
        return
    fi
    local wanted have
    wanted=$(sed -n 's/^go //p' franz/go.mod)
    have=$(go env GOVERSION)
    # A Go since 1.21 gets the version that go.mod names by itself, unless told not to (GOTOOLCHAIN=local).
    if ! (cd franz && go build -trimpath -o ../build/franz .); then
        lacks "franz is not built: go.mod wants Go $wanted, this is $have; see above"
        return
    fi
    say "build/franz"
}

build_quix() {
    local python=../../.venv/bin/python
    [[ -x $python ]] || python=python3
    if ! "$python" -m venv build/quix; then
        lacks "quix is not built: it needs Python 3.11 or later with venv (Debian: apt-get install python3-venv)"
        return
    fi
    build/quix/bin/pip install --quiet --requirement quix-requirements.txt
    say "build/quix"
}

build_java streams
build_java flink
build_franz
build_quix
[[ $missing == 0 ]] || exit 3
