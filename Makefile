# Every command of the project. `make` lists those for users, `make help-all` all of them.
#
# Variables come from the command line or the environment. Empty ones are not passed on, so that the programs' own defaults
# (brew/names.py, each program's --help) apply. URLs may hold passwords: the programs read those from the environment, since
# any user can read a command line. Only these belong to the targets:
seed: SEED_COUNT ?= 30
run-pipeline-crash: CRASH_PROB ?= 1.0
prove: CELLS ?= prove
prove-report: RESULTS ?= $(wildcard docs/proof/results.json docs/proof/claims-races.json docs/proof/kills.json)
claims-races: RACES_OUT ?= docs/proof/claims-races.json
kills: KILLS_OUT ?= $(if $(KILLS)$(STORES),,docs/proof/kills.json)
prove-all: KILLS ?= 100
# Folders of their own: with --resume, results of fewer kills would count, and without it, those of hours are deleted.
prove-all: PROVE_OUT ?= proof-results/all
soak: PROVE_OUT ?= proof-results/soak
# Most tests wait for brokers and JVMs most of the time: three keep two cores busy, four press claims past their heartbeats.
test: TEST_WORKERS ?= 3
test-secure: TEST_WORKERS ?= 3
test-secure: TESTS ?= tests/scenarios

SHELL := /bin/bash
.DEFAULT_GOAL := help

PY := .venv/bin/python

# $(call option,--name,VARIABLE): the option, quoted, when the variable has a value; `local[*]` stays as it is.
option = $(if $(strip $($2)),$1 '$(subst ','\'',$(strip $($2)))')
# $(call flag,--name,VARIABLE): the flag, unless the variable is empty, 0, no, false or off.
flag = $(if $(filter-out 0 no No NO false False FALSE off Off OFF,$(strip $($2))),$1)

bootstrap = $(call option,--bootstrap,BOOTSTRAP) $(call option,--client-config,CLIENT_CONFIG)
topics = $(call option,--input,INPUT_TOPIC) $(call option,--output,OUTPUT_TOPIC) $(call option,--dead-letter,DLQ_TOPIC)
group = $(call option,--group,GROUP_ID)
live = $(bootstrap) $(topics) $(group) $(call option,--status-url,STATUS_URL) $(call option,--proof,PROOF)
counting = $(call option,--unique-by,UNIQUE_BY)
consume = $(call option,--topic,OUTPUT_TOPIC) $(group) $(call flag,--follow,FOLLOW)
crash = $(call option,--crash-prob,CRASH_PROB) $(call option,--crash-point,CRASH_POINT) $(call option,--crash-mode,CRASH_MODE)
tiers = $(call option,--tiers,TIERS) $(call option,--profiles-topic,PROFILES_TOPIC)
run = $(bootstrap) $(topics) $(group) $(tiers) $(call option,--master,MASTER) $(call option,--reader,READER) \
      $(call flag,--follow,FOLLOW) $(call flag,--stand-by,STAND_BY) $(call flag,--share,SHARE)

.PHONY: help help-all
help: ## list the ten targets that a user needs
	@awk -v only='demo up seed preflight run-pipeline verify lag explain ui down' -f scripts/help.awk $(firstword $(MAKEFILE_LIST))
help-all: ## list every target and variable                 make help-all
	@awk -f scripts/help.awk $(firstword $(MAKEFILE_LIST))

## Start here
.PHONY: demo setup up down
demo: setup ## run the crash story on a broker of its own        make demo
	@exec scripts/demo.sh
setup: ## install the Python environment and JVM parts            make setup
	@scripts/setup.sh
up: setup ## start Kafka on localhost:9092                        make up BROKERS=3
	@exec $(PY) -m sandbox up $(call option,--brokers,BROKERS) $(call flag,--secure,SECURE)
down: setup ## stop Kafka; WIPE=1 also removes its data           make down WIPE=1
	@exec $(PY) -m sandbox down $(call flag,--wipe,WIPE)

## The main job
.PHONY: topic-create-all seed seed-customers run-pipeline run-pipeline-crash run-downstream run-downstream-ru
topic-create-all: setup ## create the topics that are missing     make topic-create-all PARTITIONS=8
	@exec $(PY) -m proof topics $(bootstrap) $(topics) $(call option,--customers,PROFILES_TOPIC) \
	    $(call option,--partitions,PARTITIONS)
seed: setup ## write orders to the input topic                    make seed SEED_COUNT=1000 SEED_TRANSACTIONAL=1
	@exec $(PY) -m proof seed $(bootstrap) $(call option,--topic,INPUT_TOPIC) $(call option,--count,SEED_COUNT) \
	    $(call flag,--transactional,SEED_TRANSACTIONAL)
seed-customers: setup ## write customer profiles, for TIERS=profiles make seed-customers CUSTOMERS=1000000
	@exec $(PY) -m proof seed-customers $(bootstrap) $(call option,--topic,PROFILES_TOPIC) \
	    $(call option,--customers,CUSTOMERS) $(call option,--seed,SEED) $(call option,--updates,UPDATES) \
	    $(call option,--tombstones,TOMBSTONES)
run-pipeline: setup ## enrich the orders, exactly once            make run-pipeline BOOTSTRAP=kafka:9092 FOLLOW=1
	@exec $(PY) -m pipeline run $(run)
run-pipeline-crash: setup ## the same, with crashes on purpose    make run-pipeline-crash CRASH_PROB=0.3 CRASH_POINT=mid-produce
	@exec $(PY) -m pipeline run $(run) $(crash)
run-downstream: setup ## count what read_committed readers see    make run-downstream OUTPUT_TOPIC=brew.orders.enriched
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_committed $(counting)
run-downstream-ru: setup ## count what read_uncommitted readers see make run-downstream-ru
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_uncommitted $(counting)

## Downstream consumers
.PHONY: demo-downstream setup-stores run-ledger run-receive run-totals run-call kills restarts bench-ledger bench-restore bench-virtual
demo-downstream: setup-stores ## demo with databases; installs packages as root  make demo-downstream
	@exec scripts/demo-downstream.sh
setup-stores: setup ## install PostgreSQL and Redis (Debian), as root make setup-stores
	@exec scripts/setup-packages.sh stores
run-ledger: setup ## book orders into PostgreSQL, exactly once   make run-ledger DATABASE_URL=postgresql://brew@localhost/brew
	@exec $(PY) -m downstream ledger $(bootstrap) $(consume)
run-receive: setup ## one effect per message, in the store STORE  make run-receive STORE=redis-script REDIS_URL=redis://localhost
	@exec $(PY) -m downstream receive $(bootstrap) $(consume) $(call option,--store,STORE)
run-totals: setup ## totals per customer and tier, exactly once  make run-totals RECOMPUTE=1
	@exec $(PY) -m downstream totals $(bootstrap) $(consume) $(call flag,--recompute,RECOMPUTE)
run-call: setup ## post each order, VIRTUAL calls at a time   make run-call CALL_URL=http://localhost:8080/orders VIRTUAL=16
	@exec $(PY) -m downstream call $(bootstrap) $(consume) $(call option,--virtual-partitions,VIRTUAL)
kills: setup-stores ## 200 kills around each store's commit, checked make kills KILLS=20 STORES=ledger
	@exec $(PY) -m tests.kills $(call option,--kills,KILLS) $(call option,--out,KILLS_OUT) $(STORES)
restarts: setup-stores ## restart a broker under each following program   make restarts RESTARTS=50
	@RESTARTS='$(RESTARTS)' RESTART_BY='$(RESTART_BY)' exec $(PY) -m pytest -q tests/scenarios/test_broker_restarts.py
bench-ledger: setup-stores ## orders per second, in batches and row by row make bench-ledger
	@exec $(PY) benchmarks/patterns.py ledger
bench-restore: setup ## restore 1,000,000 totals from their changelog make bench-restore
	@exec $(PY) benchmarks/patterns.py restore --json benchmarks/restore.json
bench-virtual: setup ## speed-up with 16 workers at 5 ms per record   make bench-virtual
	@exec $(PY) benchmarks/patterns.py virtual --json benchmarks/virtual.json

## Inspect and prove
.PHONY: preflight lag explain doctor group-describe end-offsets verify prove-report xray-pictures ui top ui-picture
preflight: setup ## check what is unsafe for a run, and why      make preflight BOOTSTRAP=kafka:9092
	@exec $(PY) -m pipeline preflight $(run)
lag: setup ## show what is left, its age, and what blocks it  make lag GROUP_ID=brew-enricher
	@exec $(PY) -m pipeline lag $(bootstrap) $(call option,--input,INPUT_TOPIC) $(group)
explain: setup ## show where an order is, or why it is missing   make explain KEY=gold-000017
	@exec $(PY) -m pipeline explain $(bootstrap) $(topics) $(group) $(if $(KEY),$(call option,--,KEY))
doctor: setup ## find hanging transactions and their owners      make doctor
	@exec $(PY) -m pipeline doctor $(bootstrap) $(group)
group-describe: setup ## show the group's positions, LSO, end and lag make group-describe GROUP_ID=brew-enricher
	@exec $(PY) -m proof group-describe $(bootstrap) $(group) $(call option,--topic,INPUT_TOPIC)
end-offsets: setup ## visible, aborted, control records per partition make end-offsets
	@exec $(PY) -m proof end-offsets $(bootstrap)
verify: setup ## prove that every order came out exactly once    make verify
	@exec $(PY) -m proof verify $(bootstrap) $(topics) $(group) $(tiers)
prove-report: setup ## create page and picture of a campaign's results make prove-report RESULTS=results.jsonl
	@scripts/setup-packages.sh browser
	@exec $(PY) -m proof report $(RESULTS) --out docs/proof/report.html --picture docs/proof/report.png \
	    --summary-md docs/proof/summary.md
xray-pictures: setup ## pictures of the crash story's logs          make xray-pictures
	@exec scripts/xray-pictures.sh
ui: setup ## show the live view in a browser                    make ui
	@exec $(PY) -m pipeline ui $(live)
top: setup ## show the live view on the terminal                 make top
	@exec $(PY) -m pipeline top $(live)
ui-picture: setup ## take a picture of the live view during a run    make ui-picture
	@scripts/setup-packages.sh browser
	@exec scripts/ui-picture.sh

## Prove under faults
.PHONY: demo-sink demo-torn
demo-sink: setup ## a kill duplicates Spark's sink's rows, not ours make demo-sink
	@exec scripts/demo-sink.sh
demo-torn: setup ## show a torn transaction, frame by frame          make demo-torn
	@exec scripts/demo-torn.sh
.PHONY: prove prove-all soak mutants
prove: setup ## break writers, brokers, network; takes minutes    make prove CELLS='F14-* F19-*'
	@scripts/setup-packages.sh stores || echo "cells that need PostgreSQL or Redis will be inconclusive and say so" >&2
	@exec $(PY) -m proof campaign $(foreach cell,$(CELLS),--cells '$(cell)') --slack 5 --at-once 2 $(call option,--out,PROVE_OUT)
prove-all: setup-stores ## whole fault matrix, three seeds; takes hours make prove-all PROVE_OUT=results
	@exec $(PY) -m proof campaign --cells 'F*' --seeds 1,2,3 $(call option,--kills,KILLS) --minutes 5 --resume $(call option,--out,PROVE_OUT)
soak: setup ## run random mixtures of faults for an hour          make soak
	@exec $(PY) -m proof campaign --cells soak --minutes 60 $(call option,--out,PROVE_OUT)
mutants: setup ## check that each injected bug is detected      make mutants MUTANTS=no-locate
	@exec $(PY) -m tests.mutants kill $(call option,--bootstrap,BOOTSTRAP) $(MUTANTS)
.PHONY: mutation
mutation: setup ## mutation-test the modules that decide             make mutation MODULE=kernel
	@exec $(PY) scripts/mutation.py $(call option,--workers,MUTATION_WORKERS) $(call flag,--again,MUTATION_AGAIN) $(MODULE)
.PHONY: claims-races models bench-claims bench-checker
bench-checker: setup ## the checker's records per second and memory make bench-checker
	@exec $(PY) benchmarks/checker.py
bench-claims: setup ## time of the claims' fold, joins and takeovers make bench-claims BOOTSTRAP=kafka:9092
	@exec $(PY) benchmarks/claims.py $(call option,--bootstrap,BOOTSTRAP) --out benchmarks/claims.json
claims-races: setup ## 1,000 races of 8 claimants for 64 partitions  make claims-races BOOTSTRAP=kafka:9092
	@exec $(PY) -m proof claims-races --rounds 1000 $(call option,--out,RACES_OUT) $(bootstrap)
models: ## model-check claims, transaction and sink (spin)             make models
	@scripts/setup-packages.sh models
	@exec scripts/models.sh

## Development
.PHONY: test test-secure lint bench bench-growth bench-micro-batches bench-peers bench-profiles bench-xray
test: setup ## run unit, integration and scenario tests           make test TESTS=tests/unit
	@scripts/setup-packages.sh stores browser metrics models || echo "tests that need what is missing will fail and say so" >&2
	@exec $(PY) -m pytest --numprocesses $(TEST_WORKERS) $(TESTS)
test-secure: setup ## the same with TLS, SCRAM and minimal ACLs  make test-secure TESTS=tests/scenarios/test_story.py
	@scripts/setup-packages.sh stores browser metrics models || echo "tests that need what is missing will fail and say so" >&2
	@exec $(PY) -m pytest --secure --secure-record docs/proof/secure.json --numprocesses $(TEST_WORKERS) $(TESTS)
lint: setup ## check style, types, imports and shell scripts      make lint
	@exec scripts/lint.sh
bench: setup ## rate, CPU, latency and restart against peers      make bench CONTENDERS=pipeline,franz ORDERS=1000000 REPEAT=3
	@exec $(PY) benchmarks/run.py $(call option,--orders,ORDERS) $(call option,--contenders,CONTENDERS) \
	    $(call option,--repeat,REPEAT) $(call flag,--paired,PAIRED) $(call option,--brokers,BENCH_BROKERS)
bench-micro-batches: setup ## time and memory of the sink's small batches make bench-micro-batches
	@exec $(PY) benchmarks/micro_batches.py --json benchmarks/micro_batches.json
bench-profiles: setup ## cost of a million customer profiles          make bench-profiles
	@exec $(PY) benchmarks/profiles.py --json benchmarks/profiles.json
bench-growth: setup ## 10x records, 64 partitions, large orders, slots make bench-growth
	@exec $(PY) benchmarks/growth.py --json benchmarks/growth.json
bench-xray: setup ## time of an X-ray of 10,000,000 offsets           make bench-xray
	@exec $(PY) benchmarks/xray.py --json benchmarks/xray.json
bench-peers: ## build the peers in Java, Go and a venv         make bench-peers
	@exec benchmarks/peers/build.sh

## Containers and clusters
.PHONY: containers test-containers cluster-up cluster-down test-cluster
containers: setup ## set up an engine, base images and our image    make containers
	@scripts/setup-packages.sh containers
	@ENGINE='$(ENGINE)' scripts/base-images.sh
	@ENGINE='$(ENGINE)' exec scripts/image.sh
test-containers: containers ## test the image, compose and manifests  make test-containers
	@exec $(PY) -m pytest --results docs/proof/containers.json $(or $(TESTS),tests/containers)
cluster-up: setup ## start a Spark master and three workers       make cluster-up WORKERS=2
	@exec $(PY) -m sandbox spark up $(call option,--workers,WORKERS)
cluster-down: setup ## stop Spark; WIPE=1 also removes its logs   make cluster-down WIPE=1
	@exec $(PY) -m sandbox spark down $(call flag,--wipe,WIPE)
test-cluster: setup ## test faults on a Spark cluster and on YARN  make test-cluster
	@$(PY) -m sandbox setup-yarn
	@exec $(PY) -m pytest --results docs/proof/cluster.json $(or $(TESTS),tests/cluster)

## Release
.PHONY: wheel image docs reference
wheel: setup ## build the wheel into dist/                        make wheel
	@exec scripts/wheel.sh
image: ## build the driver's image                             make image ENGINE=podman
	@ENGINE='$(ENGINE)' exec scripts/image.sh
docs: setup ## build the documentation site into build/site       make docs
	@exec scripts/docs.sh
reference: setup ## write every option into docs/reference          make reference
	@exec $(PY) scripts/reference.py

# FIRST      BOOTSTRAP    brokers, host:port[,...]
#            INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC GROUP_ID
#            FOLLOW=1     of run-pipeline: run until SIGTERM
#            MASTER       of run-pipeline: local[*] spark://...
#            CLIENT_CONFIG  a file: user, password, certificates
#            SEED_COUNT=1000  of seed             KEY=gold-000017  of explain

# VARIABLES  BOOTSTRAP    brokers, host:port[,...]         INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC GROUP_ID
#            SEED_COUNT   number of orders                 SEED_TRANSACTIONAL=1  write transactions, abort every third
#            UNIQUE_BY    of make run-downstream: source or key, the identity of a record
#            CRASH_PROB   0 to 1, per transaction          CRASH_POINT CRASH_MODE  which step, which process
#            MASTER       local[*] spark://... yarn k8s:// READER  direct connector
#            FOLLOW=1     run until SIGTERM                PARTITIONS  number of partitions of new topics
#            TIERS        of run-pipeline and verify: prefix or profiles    PROFILES_TOPIC  topic of the profiles
#            CUSTOMERS SEED UPDATES TOMBSTONES  of make seed-customers
#            STAND_BY=1   one of several drivers works, the others wait and take over
#            SHARE=1      several drivers divide the partitions; with FOLLOW=1 they rebalance as drivers come and go
#            CLIENT_CONFIG  a file: user, password, certificates (docs/SECURITY.md)    SECURE=1  of make up: enable them
#            WIPE=1       of make down: also remove the data
#            BROKERS      of make up: 1 or 3               TESTS  of make test: files or folders
#            TEST_WORKERS of make test: parallel workers, each with its own broker; 0: one test after another
#            KEY          of make explain: an order's key, or TOPIC/PARTITION/OFFSET
#            DATABASE_URL REDIS_URL EFFECT_URL  URLs of stores, receiver    STORE  of make run-receive: postgres outbox redis redis-script
#            KILLS STORES of make kills: number, stores   KILLS_OUT RACES_OUT  result files of make kills and claims-races
#            RESTARTS     of make restarts: number of restarts    RESTART_BY  kill or stop
#            RESULTS      of make prove-report: files     PROVE_OUT CELLS  of make prove: folder for results, cells to run
#            STATUS_URL   of make ui and top: a running program's /status    PROOF  file of a verify or a campaign
#            MUTANTS      of make mutants: names; empty: all    MODULE  of make mutation: areas or modules; empty: all
#            MUTATION_WORKERS  of make mutation: mutants at a time (1)    MUTATION_AGAIN=1  only mutants that the last run left alive
#            RECOMPUTE=1  of make run-totals: compare only   CALL_URL VIRTUAL  of make run-call: URL, concurrent calls
#            ORDERS CONTENDERS REPEAT PAIRED=1  of make bench: backlogs, contenders, rounds, paired rounds
#            BENCH_BROKERS  of make bench: default,default-young,tuned
#            WORKERS      of make cluster-up: number of workers (3)
#            ENGINE       of make image: docker or podman; empty: the first that responds
