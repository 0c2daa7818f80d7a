#!/usr/bin/env bash
# Builds the documentation site into build/site (or the folder given): the repository's pages, in the repository's
# own folders, so that every link between them is one on the site, too. A dead link or anchor is an error.
# Usage: scripts/docs.sh [FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p "${1:-build/site}"
out=$(cd "${1:-build/site}" && pwd)
place=$(mktemp -d "${TMPDIR:-/tmp}/brew-docs-XXXXXX")
trap 'rm -rf "$place"' EXIT
trap 'exit 143' TERM

mkdir "$place/pages"
cp mkdocs.yml "$place/"
cp -R docs README.md CHANGELOG.md CONTRIBUTING.md LICENSE "$place/pages/"
for folder in benchmarks models; do # pages and figures that others link to
    mkdir "$place/pages/$folder"
    find "$folder" -maxdepth 1 \( -name '*.md' -o -name '*.json' -o -name '*.svg' -o -name '*.png' \) \
        -exec cp {} "$place/pages/$folder/" \;
done
mv "$place/pages/docs/nav.yml" "$place/pages/.nav.yml"

# Both ask for a newer something or speak for another product; neither is news about these pages.
export NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true
# Not --quiet: then --strict would not hear of warnings.
if ! .venv/bin/python -m mkdocs build --strict --config-file "$place/mkdocs.yml" --site-dir "$out" >"$place/log" 2>&1; then
    grep -v '^INFO' "$place/log" >&2
    printf 'docs: the pages have errors, see above; no site was built\n' >&2
    exit 1
fi
printf '%s\n' "$out/index.html"
