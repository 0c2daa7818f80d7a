#!/usr/bin/env bash
# Brings this clone to the state that every other command expects; does nothing, quickly, when it is there already.
#   .venv/        Python environment (pyproject.toml, constraints.txt)
#   .jvm/spark/   the Kafka connector for Spark (brew/jvm/jars.lock)
#   .jvm/java-options  how Spark's launcher starts Java
#   .jvm/kafka/   a Kafka broker and Kafka's own tools (brew/jvm/jars.lock)
# Each part has a stamp with a hash of what it was made from. An interrupted part has none, so it is made again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
refuse() { say "$*"; exit 3; }
hash_of() { cat "$@" | cksum | tr -d ' '; }
is_current() { [[ -f $1 && $(<"$1") == "$2" ]]; }

python_stamp=.venv/.stamp
jvm_stamp=.jvm/.stamp
archive_stamp=.jvm/.archive-stamp
python_now=$(hash_of pyproject.toml constraints.txt)
jvm_now=$(hash_of brew/jvm/jars.lock)
java_home_now=$(readlink -f "$(command -v java)" 2>/dev/null || true)
[[ -x .venv/bin/python ]] || rm -f $python_stamp # an upgrade of Python may remove what the environment links to
archive_now="$(hash_of constraints.txt brew/jvm/jars.lock scripts/setup.sh scripts/archive.py) $java_home_now $PWD" # an archive fits only the class path of its own folder

all_current() {
    is_current $python_stamp "$python_now" && is_current $jvm_stamp "$jvm_now" && is_current $archive_stamp "$archive_now"
}

check_java() {
    [[ -n $java_home_now ]] || refuse "Java 17 or later is needed and no java was found on PATH; install one (a JRE is enough)."
    local text major
    text=$(java -version 2>&1) || refuse "Java 17 or later is needed; the java on PATH does not run: ${text%%$'\n'*}"
    major=$(sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$text" | head -n 1)
    [[ ${major:-0} -ge 17 ]] || refuse "Java 17 or later is needed, $java_home_now is version ${major:-unknown}."
}

# Python compiles what it imports; to compile all packages ahead takes a third of the time.
install() { .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "$@"; }

make_python() {
    # An environment that was interrupted while it was made has a Python and no pip.
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        local python
        python=$(scripts/find-python.sh) || exit 3
        "$python" -m venv --clear .venv
    fi
    say "installing Python packages into .venv ($(.venv/bin/python --version), $(readlink -f .venv/bin/python))"
    # Fetching the JVM parts needs no more; the package itself is built once, with its tools.
    install -r <(.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')
}

add_tools() {
    install -e '.[dev,docs]'
    printf '%s' "$python_now" >$python_stamp
    say "Python packages are up to date (${SECONDS} s)"
}

fetch_jvm() {
    say "fetching the Kafka connector, broker and tools into .jvm (about 60 MB on the first run)"
    rm -f $jvm_stamp
    .venv/bin/python -m pipeline setup --jvm-dir .jvm >&2 || exit 3
    .venv/bin/python -m sandbox setup --jvm-dir .jvm >&2 || exit 3
    printf '%s' "$jvm_now" >$jvm_stamp
    say "JVM parts are up to date (${SECONDS} s)"
}

# Class-data archives only save start-up time: whoever uses one starts without it when it is missing or does not fit.
make_archives() {
    rm -f $archive_stamp
    .venv/bin/python -m pipeline setup --jvm-dir .jvm >/dev/null 2>&1 || true # asks this java's launcher
    say "creating the class-data archives of the broker and of Spark (${SECONDS} s)"
    { .venv/bin/python -m sandbox archive >&2 || say "no archive for the broker; it starts a little slower without one"; } &
    if [[ -x scripts/archive.sh ]]; then
        scripts/archive.sh >&2 || say "no archive for Spark; it starts a little slower without one"
    fi
    wait
    printf '%s' "$archive_now" >$archive_stamp
}

all_current && exit 0

mkdir -p .jvm
if command -v flock >/dev/null; then # two commands at once: the second waits and then finds all done
    exec 9>.jvm/lock
    flock 9
fi
check_java
is_current $python_stamp "$python_now" || make_python
# The tools of development are installed meanwhile; nothing here needs them. Its process group ends with this script: after
# Ctrl-C, it would go on, and write stamps for what it could not make.
set -m
{
    is_current $jvm_stamp "$jvm_now" || fetch_jvm
    is_current $archive_stamp "$archive_now" || make_archives
} &
jvm=$!
set +m
trap 'kill -- -"$jvm" 2>/dev/null || true' EXIT
is_current $python_stamp "$python_now" || add_tools
wait "$jvm"
say "ready (${SECONDS} s)"
