#!/usr/bin/env bash
# Makes sure that the engine has the images that ours stand on: python:3.11-slim-bookworm (Dockerfile) and apache/kafka
# (docker-compose.yml). An image that is there is taken, else it is pulled. Where no registry of images can be reached, a
# stand-in of that name is made: Debian's packages (debootstrap) with Python, and the sandbox's own Kafka on top of it.
# A stand-in has the label brew.stand-in.
# Usage: scripts/base-images.sh [python|kafka]...; none means both. ENGINE=podman picks an engine. STAND_INS=1 makes stand-ins without a try to pull.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'base-images: %s\n' "$*" >&2; }

# shellcheck source=scripts/engine.sh
source scripts/engine.sh
engine=$(find_engine) || exit 3

python_image=$(sed -nE 's/^FROM ([^ ]+)$/\1/p' Dockerfile)
kafka_image=$(sed -nE 's/^ +image: (apache\/kafka:[^ ]+).*/\1/p' docker-compose.yml)
suite=bookworm
place=$(mktemp -d "${TMPDIR:-/tmp}/brew-images-XXXXXX")
trap 'rm -rf "$place"' EXIT
trap 'exit 143' TERM

there() { "$engine" image inspect "$1" >/dev/null 2>&1; }
pulled() { [[ -z ${STAND_INS:-} ]] && timeout 300 "$engine" pull --quiet "$1" >/dev/null 2>&1; }

# Certificates of file $1 that file $2 does not have, one to a file in folder $3: Java's store is made from such files.
local_authorities() {
    python3 - "$@" <<'EOF'
import re, sys
from pathlib import Path
mine, theirs, folder = map(Path, sys.argv[1:])
def certificates(file):
    return re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", file.read_text(), re.DOTALL)
known = set(certificates(theirs))
for number, one in enumerate(one for one in certificates(mine) if one not in known):
    (folder / f"machine-{number}.crt").write_text(one)
EOF
}

# The machine's own package sources, authorities and pip settings go in: whoever builds on the image uses them.
stand_in_of_python() {
    command -v debootstrap >/dev/null || { say "debootstrap is missing; run scripts/setup-packages.sh containers"; exit 3; }
    [[ $EUID -eq 0 ]] || { say "debootstrap needs root, and $python_image can't be pulled"; exit 3; }
    local root=$place/root
    say "$python_image can't be pulled; building a stand-in from Debian's packages"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv "$suite" "$root" >"$place/log" 2>&1 ||
        { tail -n 5 "$place/log" >&2; say "debootstrap failed"; exit 3; }
    ln -s python3 "$root/usr/bin/python"
    # Debian's pip refuses to install beside Debian's packages; in an image of its own nobody else is there.
    rm -f "$root"/usr/lib/python3.*/EXTERNALLY-MANAGED
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    local_authorities /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt" "$root/usr/local/share/ca-certificates"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    if [[ -e /etc/pip.conf ]]; then cp /etc/pip.conf "$root/etc/"; fi
    if [[ -e /etc/apt/sources.list.d/debian.sources ]]; then
        cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
        rm -f "$root/etc/apt/sources.list"
    fi
    tar --create --directory "$root" . |
        "$engine" import --change "CMD [\"python3\"]" --change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" --change "LABEL brew.stand-in=debootstrap-$suite" - "$python_image" >/dev/null
    rm -rf "$root"
}

stand_in_of_kafka() {
    there "$python_image" || stand_in_of_python
    say "$kafka_image can't be pulled; building a stand-in from the sandbox's jars"
    mkdir "$place/kafka" "$place/kafka/libs"
    cp -L .jvm/kafka/*.jar "$place/kafka/libs/" || { say "no jars in .jvm/kafka; run make setup first"; exit 3; }
    cp scripts/base-images/* "$place/kafka/"
    "$engine" build --quiet --build-arg "BASE=$python_image" --tag "$kafka_image" "$place/kafka" >/dev/null
}

[[ $# -gt 0 ]] || set -- python kafka
for wanted in "$@"; do
    case $wanted in
        python) there "$python_image" || pulled "$python_image" || stand_in_of_python ;;
        kafka) there "$kafka_image" || pulled "$kafka_image" || stand_in_of_kafka ;;
        *) say "$wanted is neither 'python' nor 'kafka'"; exit 64 ;;
    esac
done
say "ready ($engine, ${SECONDS} s)"
