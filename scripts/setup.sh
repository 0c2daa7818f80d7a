#!/usr/bin/env bash
# Brings this clone to the state that every other command expects; does nothing, quickly, when it is there already.
#   .venv/        Python environment (pyproject.toml, constraints.txt)
#   .jvm/spark/   the Kafka connector for Spark (scripts/ivy.xml)
#   .jvm/java-options  how Spark's launcher starts Java
#   .jvm/kafka/   a Kafka broker and Kafka's own tools (scripts/ivy.xml)
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
jvm_now=$(hash_of scripts/ivy.xml)
java_home_now=$(readlink -f "$(command -v java)" 2>/dev/null || true)
archive_now="$(hash_of constraints.txt scripts/ivy.xml scripts/setup.sh) $java_home_now"

all_current() {
    is_current $python_stamp "$python_now" && is_current $jvm_stamp "$jvm_now" && is_current $archive_stamp "$archive_now"
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [[ -n $candidate ]] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    refuse "Python 3.11 or later is needed and none was found on PATH; install one or set PYTHON to it."
}

check_java() {
    [[ -n $java_home_now ]] || refuse "Java 17 or later is needed and no java was found on PATH; install one (a JRE is enough)."
    local text major
    text=$(java -version 2>&1) || refuse "Java 17 or later is needed; the java on PATH does not run: ${text%%$'\n'*}"
    major=$(sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$text" | head -n 1)
    [[ ${major:-0} -ge 17 ]] || refuse "Java 17 or later is needed, $java_home_now is version ${major:-unknown}."
}

make_python() {
    local python
    python=$(find_python)
    say "Python packages into .venv ($("$python" --version))"
    [[ -x .venv/bin/python ]] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    printf '%s' "$python_now" >$python_stamp
    say "Python packages are there (${SECONDS} s)"
}

fetch_jvm() {
    say "Kafka connector, broker and tools into .jvm (about 60 MB on the first run)"
    local ivy fresh=.jvm/fresh
    ivy=$(echo .venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar)
    rm -rf "$fresh" $jvm_stamp
    mkdir -p "$fresh"
    if ! java -cp "$ivy" org.apache.ivy.Main -ivy scripts/ivy.xml -cache .jvm/cache -confs spark kafka \
        -retrieve "$fresh/[conf]/[artifact]-[revision].[ext]" -types jar bundle >.jvm/ivy.log 2>&1; then
        tail -n 25 .jvm/ivy.log >&2
        refuse "the JVM parts could not be fetched; Ivy's whole log is .jvm/ivy.log. Run make setup again to go on from here."
    fi
    rm -rf .jvm/spark .jvm/kafka
    mv "$fresh/spark" "$fresh/kafka" .jvm/
    rmdir "$fresh"
    printf '%s' "$jvm_now" >$jvm_stamp
    say "JVM parts are there: $(find .jvm/spark .jvm/kafka -name '*.jar' | wc -l | tr -d ' ') jars (${SECONDS} s)"
}

# What Spark's own launcher adds to Java's command line, asked once: a start then needs no launcher, which is a JVM, too.
ask_launcher() {
    local spark
    spark=$(echo .venv/lib/python3*/site-packages/pyspark)
    SPARK_HOME=$PWD/$spark SPARK_SCALA_VERSION=2.13 java -cp "$spark/jars/*" org.apache.spark.launcher.Main \
        org.apache.spark.deploy.SparkSubmit pyspark-shell 2>/dev/null | tr '\0' '\n' | grep -E '^-(-|XX|D)' >.jvm/java-options ||
        rm -f .jvm/java-options
}

# Class-data archives only save start-up time: whoever uses one starts without it when it is missing or does not fit.
make_archives() {
    rm -f $archive_stamp
    ask_launcher
    say "class-data archive of the broker (${SECONDS} s)"
    .venv/bin/python -m sandbox archive || say "no archive for the broker; it starts without, a little slower"
    if [[ -x scripts/archive.sh ]]; then
        say "class-data archive of Spark (${SECONDS} s)"
        scripts/archive.sh || say "no archive for Spark; it starts without, a little slower"
    fi
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
is_current $jvm_stamp "$jvm_now" || fetch_jvm
is_current $archive_stamp "$archive_now" || make_archives
say "ready (${SECONDS} s)"
