#!/usr/bin/env bash
# Beyond Kafka's border, from an order to the cent in a database: on Kafka, PostgreSQL and Redis that live only for it.
# Every step's result is checked against what the story says; the first that differs ends the demo with exit code 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

orders=${SEED_COUNT:-300}
# shellcheck source=scripts/story.sh
source scripts/story.sh

own_place brew-demo "${TMPDIR:-/tmp}"
chmod 711 "$place" # PostgreSQL does not run as root
trap '.venv/bin/python -m sandbox stores down --wipe --dir "$place" >/dev/null || true; clean_up' EXIT

killed=137 # what a shell says of a program that died of SIGKILL

# downstream EXIT_CODE WORDS...: a pattern's own command line.
downstream() {
    local expected=$1
    shift
    run "$expected" .venv/bin/python -m downstream "$@"
}

# field NAME: a number of the last output's JSON.
field() { sed -nE "s/^ *\"$1\": \"?([0-9.]+)\"?,?\$/\1/p" "$output" | head -n 1; }

tell "Start servers for this demo on free ports: Apache Kafka, PostgreSQL with fsync on, Redis with appendfsync always."
run 0 .venv/bin/python -m sandbox up --quick --port 0 --dir "$place"
BOOTSTRAP=$(address_of Kafka <"$output")
run 0 .venv/bin/python -m sandbox stores up --dir "$place"
DATABASE_URL=$(address_of postgres <"$output")
REDIS_URL=$(address_of redis <"$output")
export BOOTSTRAP DATABASE_URL REDIS_URL
printf '%s$ export BOOTSTRAP=%s DATABASE_URL=%s REDIS_URL=%s%s\n' \
    "$dim" "$BOOTSTRAP" "$DATABASE_URL" "$REDIS_URL" "$plain"

tell "1. $orders orders, enriched exactly once. This is where Kafka's transaction ends."
run 0 make topic-create-all
run 0 make seed SEED_COUNT="$orders"
run 0 make run-pipeline MASTER=none
says "^$orders records: $orders enriched" "$orders orders are enriched"

tell "2. The ledger books them into PostgreSQL, and is killed after it wrote rows and before it commits them."
# Named partitions: nobody waits until the group has noticed that the dead member is dead.
downstream $killed ledger --partitions 0,1,2,3 --batch 40 --crash-point before-commit --crash-prob 0.4 --crash-seed 2
downstream 0 ledger --check
says '[1-9][0-9]* records waiting' "some orders are booked, others wait; the position is between them"
says '^proven: every output one row' "rows and position agree exactly"

tell "   Killed again, this time while the COMMIT is in flight: the client does not know whether it took place."
downstream $killed ledger --partitions 0,1,2,3 --batch 40 --crash-point commit-in-flight --crash-seed 1

tell "   The next run reads the position from the database, continues there, and books the rest."
run 0 make run-ledger
downstream 0 ledger --check --json
says '"verdict": "proven"' "every order has one row"
[[ $(field records) -eq $orders && $(field rows) -eq $orders && $(field waiting) -eq 0 ]] ||
    fail "$(field rows) rows for $(field records) orders, $(field waiting) waiting"
cents=$(field cents)
[[ -n $cents && $(field booked_cents) == "$cents" ]] || fail "$(field booked_cents) of $cents cents are booked"
printf '%s✓ %s cents in the topic, %s cents in the balances%s\n' "$green" "$cents" "$(field booked_cents)" "$plain"

tell "3. The receiver gives points for orders, and is killed after its database commit, before the commit to Kafka."
downstream $killed receive --partitions 0,1,2,3 --batch 40 --crash-point after-commit --crash-prob 0.4 --crash-seed 2
downstream 0 receive --partitions 0,1,2,3
says '[1-9][0-9]* known already' "redelivered messages had no effect"
downstream 0 receive --partitions 0,1,2,3 --again
says "^$orders messages, 0 effects, $orders known already" "all messages read again: no effect at all"
downstream 0 receive --check
says "^$orders messages .* $orders effects, 0 of them duplicates" "one effect for every message"

tell "   The same in Redis, claim and effect in one script, and Redis itself is killed."
downstream 0 receive --store redis-script --partitions 0,1,2,3 --group demo-script
run 0 .venv/bin/python -m sandbox stores kill redis --dir "$place"
run 0 .venv/bin/python -m sandbox stores restart redis --dir "$place"
downstream 0 receive --store redis-script --partitions 0,1,2,3 --group demo-script --again
says "^$orders messages, 0 effects, $orders known already" "it kept every acknowledged claim"
downstream 0 receive --store redis-script --group demo-script --check
says '^proven: one effect' "one effect for every message"

tell "   The usual way, with claim and effect apart: killed after an effect, it repeats it. The check reports it: exit 1."
downstream $killed receive --store redis --partitions 0,1,2,3 --group demo-weak --claim-s 1 --crash-point before-commit
downstream 0 receive --store redis --partitions 0,1,2,3 --group demo-weak --claim-s 1
downstream 1 receive --store redis --group demo-weak --check
says '^[1-9][0-9]* receiver-duplicate$' "a duplicate, reported as such"

tell "4. Running totals, killed after the commit of their changelog and before their state on disk changes."
# In small steps, so that the partition has something left to count, and its state is needed again.
downstream $killed totals --max-offsets 10 --state-dir "$place/state" --crash-point after-commit
downstream 0 totals --state-dir "$place/state"
says '^restored partition [0-9]+: [1-9]' "the state was rebuilt from the changelog, and the rest is counted"
downstream 0 totals --state-dir "$place/state" --recompute
says "^equal: .* totals of $orders orders" "changelog, state and results equal the totals of the orders"

tell "5. Verify the pipeline's output, order by order."
run 0 make verify

printf '\n%sDemo finished in %s s: %s orders, %s cents, nothing lost, nothing duplicated. Next: make kills, make prove.%s\n' \
    "$bold" "$SECONDS" "$orders" "$cents" "$plain"
