#!/usr/bin/env bash
# The torn transaction, shown on a broker that lives only for it: both writers behind the wire proxy, frame by frame.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/story.sh
source scripts/story.sh

own_broker torn
printf '%s\n\n' "$told"
.venv/bin/python -m proof torn --bootstrap "$BOOTSTRAP" --tries 2 --show
printf '\nThat took %s s. For numbers: python -m proof torn --tries 100 (--writer strict --tries 1000).\n' "$SECONDS"
