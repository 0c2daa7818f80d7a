#!/usr/bin/env bash
# Builds the wheel into dist/ (or the folder given), from a copy of the sources that git knows or would know: what an
# earlier build left behind can't get in. The same sources give the same bytes. SHA256SUMS tells what was built, and
# NAME-VERSION.cdx.json what it is made of: the packages it needs, in the versions that were tested (CycloneDX).
# Usage: scripts/wheel.sh [FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'wheel: %s\n' "$*" >&2; }

out=${1:-dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
parts=(pyproject.toml README.md LICENSE brew pipeline operations downstream proof sandbox)
python=$PWD/.venv/bin/python
[[ -x $python ]] || { say "there is no .venv; run make setup first"; exit 3; }

place=$(mktemp -d "${TMPDIR:-/tmp}/brew-wheel-XXXXXX")
trap 'rm -rf "$place"' EXIT
trap 'exit 143' TERM

sources() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard -- "${parts[@]}" |
            while IFS= read -rd '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done
    else
        find "${parts[@]}" -type f -not -name '*.pyc' -print0
    fi
}
mkdir "$place/sources" "$place/built"
sources | tar --create --null --files-from=- --mode=u=rw,go=r | tar --extract --directory "$place/sources"

# Times inside the wheel: the last commit's, or a fixed day where there is no history.
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || true)
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}

# Without isolation: setuptools is one of the pinned packages of .venv, so nothing is fetched.
if ! "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation \
    --wheel-dir "$place/built" "$place/sources" >"$place/log" 2>&1; then
    cat "$place/log" >&2
    say "the wheel could not be built; run make setup, which installs the pinned setuptools"
    exit 3
fi
name=$(basename "$place"/built/*.whl)
"$python" scripts/sbom.py "$place/built/$(cut -d- -f1,2 <<<"$name").cdx.json" || exit 3
rm -f "$out"/*.cdx.json
mv "$place"/built/*.whl "$place"/built/*.cdx.json "$out/"
(cd "$out" && sha256sum ./*.whl ./*.cdx.json | sed 's# \./# #' >SHA256SUMS)
for wheel in "$out"/*.whl; do printf '%s\n' "$wheel"; done
