#!/usr/bin/env bash
# Style, types, import arrows, shell files; runs all of them and fails if one did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

failed=0
check() {
    if "$@"; then return; fi
    printf 'lint: failed: %s\n' "$*" >&2
    failed=1
}

bin=.venv/bin
check $bin/ruff check
check $bin/ruff format --check
check $bin/mypy
check $bin/lint-imports
if command -v shellcheck >/dev/null; then
    check shellcheck scripts/*.sh .ci/run
fi
exit $failed
