#!/usr/bin/env bash
# The crash story, told with the same make targets that everybody uses, on a broker that lives only for it.
# Every step's result is checked against what the story says; the first that differs ends the demo with exit code 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

orders=${SEED_COUNT:-30}
# shellcheck source=scripts/story.sh
source scripts/story.sh

own_place demo

# counts NUMBER MEANING: the last output speaks of exactly so many records.
counts() { says "(^|[^0-9,.])$1 records" "$2"; }

tell "Start a broker for this demo: Apache Kafka, one node, on a free port."
run 0 .venv/bin/python -m sandbox up --quick --port 0 --dir "$place"
BOOTSTRAP=$(address_of Kafka <"$output")
export BOOTSTRAP
printf '%s$ export BOOTSTRAP=%s%s\n' "$dim" "$BOOTSTRAP" "$plain"

tell "1. Create the topics and write $orders orders."
run 0 make topic-create-all
run 0 make seed SEED_COUNT="$orders"

tell "2. The pipeline enriches, writes to the output log, and crashes on purpose right before its commit: exit code 2."
run 2 make run-pipeline-crash CRASH_PROB=1.0 # make's own exit code is 2 as well, whatever its command's was
says '\] .* 2$' "the pipeline ended with exit code 2"
says 'crash before commit: [1-9][0-9]* records already in output log' "it reports how many uncommitted records it left"
left=$(sed -nE 's/.*crash before commit: ([0-9]+) records.*/\1/p' "$output" | head -n 1)

tell "3. Those $left records are in the log, but not committed. A read_committed reader sees none of them..."
run 0 make run-downstream
counts 0 "0 records for read_committed readers"
says "(^|[^0-9])$left records? (is|are) above" "and it reports that $left are above the last stable offset"

tell "   ...while a read_uncommitted reader sees all $left of them."
run 0 make run-downstream-ru
counts "$left" "$left records for read_uncommitted readers"

tell "4. Run it again: it fences the crashed run's transactions at once and does the work."
run 0 make run-pipeline-crash CRASH_PROB=0

tell "5. Now every order is in the output once. The crash left only $left aborted records, hidden from read_committed..."
run 0 make run-downstream
counts "$orders" "$orders records for read_committed readers"
says '(^|[^0-9])0 duplicates' "0 duplicates"
run 0 make run-downstream-ru
counts "$((orders + left))" "$orders + $left records in the log"

tell "6. Kafka's own offsets agree: the group is at the end, and every record is accounted for."
run 0 make group-describe
says '^│ all +│.*│ +0 │ +0 │$' "nothing is left to read, and nothing waits"
run 0 make end-offsets

tell "7. Verify order by order: exactly once, correctly enriched, in sequence."
run 0 make verify

printf '\n%sDemo finished in %s s. Next: make up, then the same commands against localhost:9092; or BOOTSTRAP=yours.%s\n' \
    "$bold" "$SECONDS" "$plain"
