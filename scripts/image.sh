#!/usr/bin/env bash
# Builds the image brew:VERSION from the Dockerfile, with the first container engine that answers.
# Usage: scripts/image.sh [NAME[:TAG]]; ENGINE=podman picks one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'image: %s\n' "$*" >&2; }

version=$(sed -nE 's/^version = "([^"]+)"$/\1/p' pyproject.toml | head -n 1)
[[ -n $version ]] || { say "pyproject.toml has no line version = \"...\""; exit 3; }
name=${1:-brew:$version}

# shellcheck source=scripts/engine.sh
source scripts/engine.sh
if ! engine=$(find_engine); then
    say "On a machine that has one, run:"
    say "    docker build --tag $name ."
    exit 3
fi
ENGINE=$engine scripts/base-images.sh python

revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
say "building $name with $engine"
# Podman's own format leaves the Dockerfile's HEALTHCHECK out, with a warning; Docker knows no other than this.
BUILDAH_FORMAT=docker "$engine" build --tag "$name" \
    --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$revision" .
"$engine" run --rm "$name" --version
say "$name is built; try: $engine run --rm --network host $name run --master none --bootstrap localhost:9092"
