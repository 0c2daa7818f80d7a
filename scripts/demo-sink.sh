#!/usr/bin/env bash
# The sink's story, on a broker that lives only for it: Spark's own Kafka sink doubles rows after a kill, ours does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/story.sh
source scripts/story.sh

own_broker sink
.venv/bin/python scripts/demo_sink.py --bootstrap "$BOOTSTRAP"
printf '\nThat took %s s. How it works: docs/guide/sink.md\n' "$SECONDS"
