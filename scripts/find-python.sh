#!/usr/bin/env bash
# Prints the path of the Python that the environment is made with: PYTHON's, or the best on PATH.
# An interpreter's build decides a sixth of what a record costs (docs/decisions/0009): the first one that was built with
# optimisations is taken, before any that comes earlier on PATH and was not.
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }
refuse() { say "$*"; exit 3; }

judge() { "$1" "${BASH_SOURCE[0]%/*}/judge_python.py" >/dev/null 2>&1; } # 0: will do; 10: slowly; else: will not do

judged=0
if [[ -n ${PYTHON:-} ]]; then
    judge "$PYTHON" || judged=$?
    [[ $judged -eq 0 || $judged -eq 10 ]] ||
        refuse "PYTHON is '$PYTHON', which is not Python 3.11 or later with ensurepip (Debian: python3-venv); unset it, or set it to one."
    command -v "$PYTHON"
    exit
fi
slow=
while read -r candidate; do
    judged=0
    judge "$candidate" </dev/null || judged=$?
    if [[ $judged -eq 0 ]]; then
        printf '%s\n' "$candidate"
        exit
    fi
    [[ $judged -ne 10 ]] || slow=${slow:-$candidate}
done < <(type -aP python3 python3.13 python3.12 python3.11 python)
[[ -n $slow ]] ||
    refuse "Python 3.11 or later with ensurepip was not found on PATH; install one (Debian: python3-venv), or set PYTHON to it."
say "$slow was built without --enable-optimizations, and PATH has no other: each record takes about a sixth more CPU time"
printf '%s\n' "$slow"
