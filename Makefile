# Every command of the house. `make` lists those of users, `make help-all` all of them.
#
# Variables come from the command line or the environment. What is empty is not passed on: the programs' own defaults
# (brew/names.py, each program's --help) hold. Only these belong to the targets alone:
seed: SEED_COUNT ?= 30
run-pipeline-crash: CRASH_PROB ?= 1.0
prove: CELLS ?= prove
prove-report: RESULTS ?= $(wildcard docs/proof/results.json docs/proof/claims-races.json docs/proof/kills.json)
claims-races: RACES_OUT ?= docs/proof/claims-races.json
kills: KILLS_OUT ?= $(if $(KILLS)$(STORES),,docs/proof/kills.json)
prove-all: KILLS ?= 100
# Most tests wait for brokers and JVMs most of the time: three keep two cores busy, four press claims past their heartbeats.
test: TEST_WORKERS ?= 3
test-secure: TEST_WORKERS ?= 3
test-secure: TESTS ?= tests/scenarios

SHELL := /bin/bash
.DEFAULT_GOAL := help

PY := .venv/bin/python

# $(call option,--name,VARIABLE): the option, quoted, when the variable has a value; `local[*]` stays as it is.
option = $(if $(strip $($2)),$1 '$(subst ','\'',$(strip $($2)))')
# $(call flag,--name,VARIABLE): the flag, unless the variable is empty, 0, no or false.
flag = $(if $(filter-out 0 no false,$(strip $($2))),$1)

bootstrap = $(call option,--bootstrap,BOOTSTRAP) $(call option,--client-config,CLIENT_CONFIG)
topics = $(call option,--input,INPUT_TOPIC) $(call option,--output,OUTPUT_TOPIC) $(call option,--dead-letter,DLQ_TOPIC)
group = $(call option,--group,GROUP_ID)
live = $(bootstrap) $(topics) $(group) $(call option,--status-url,STATUS_URL) $(call option,--proof,PROOF)
counting = $(call option,--unique-by,UNIQUE_BY)
consume = $(call option,--topic,OUTPUT_TOPIC) $(group) $(call flag,--follow,FOLLOW)
database = $(call option,--database,DATABASE_URL)
crash = $(call option,--crash-prob,CRASH_PROB) $(call option,--crash-point,CRASH_POINT) $(call option,--crash-mode,CRASH_MODE)
tiers = $(call option,--tiers,TIERS) $(call option,--profiles-topic,PROFILES_TOPIC)
run = $(bootstrap) $(topics) $(group) $(tiers) $(call option,--master,MASTER) $(call option,--reader,READER) \
      $(call flag,--follow,FOLLOW) $(call flag,--stand-by,STAND_BY) $(call flag,--share,SHARE)

.PHONY: help help-all
help: ## the ten targets that a user needs
	@awk -v only='demo up seed preflight run-pipeline verify lag explain ui down' -f scripts/help.awk $(firstword $(MAKEFILE_LIST))
help-all: ## every target and variable                      make help-all
	@awk -f scripts/help.awk $(firstword $(MAKEFILE_LIST))

## Start here
.PHONY: demo setup up down
demo: setup ## the crash story, told on a broker of its own      make demo
	@exec scripts/demo.sh
setup: ## Python environment, JVM parts; quick when all is there  make setup
	@scripts/setup.sh
up: setup ## a real Kafka on localhost:9092                       make up BROKERS=3
	@exec $(PY) -m sandbox up $(call option,--brokers,BROKERS) $(call flag,--secure,SECURE)
down: setup ## stop it; WIPE=1 removes its data, too              make down WIPE=1
	@exec $(PY) -m sandbox down $(call flag,--wipe,WIPE)

## The main job
.PHONY: topic-create-all seed seed-customers run-pipeline run-pipeline-crash run-downstream run-downstream-ru
topic-create-all: setup ## the topics that are missing            make topic-create-all PARTITIONS=8
	@exec $(PY) -m proof topics $(bootstrap) $(topics) $(call option,--customers,PROFILES_TOPIC) \
	    $(call option,--partitions,PARTITIONS)
seed: setup ## orders to work on                                  make seed SEED_COUNT=1000 SEED_TRANSACTIONAL=1
	@exec $(PY) -m proof seed $(bootstrap) $(call option,--topic,INPUT_TOPIC) $(call option,--count,SEED_COUNT) \
	    $(call flag,--transactional,SEED_TRANSACTIONAL)
seed-customers: setup ## profiles, for TIERS=profiles             make seed-customers CUSTOMERS=1000000
	@exec $(PY) -m proof seed-customers $(bootstrap) $(call option,--topic,PROFILES_TOPIC) \
	    $(call option,--customers,CUSTOMERS) $(call option,--seed,SEED) $(call option,--updates,UPDATES) \
	    $(call option,--tombstones,TOMBSTONES)
run-pipeline: setup ## enrich what is there, exactly once         make run-pipeline BOOTSTRAP=kafka:9092 FOLLOW=1
	@exec $(PY) -m pipeline run $(run)
run-pipeline-crash: setup ## the same, dying on purpose           make run-pipeline-crash CRASH_PROB=0.3 CRASH_POINT=mid-produce
	@exec $(PY) -m pipeline run $(run) $(crash)
run-downstream: setup ## count what read_committed readers see    make run-downstream OUTPUT_TOPIC=brew.orders.enriched
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_committed $(counting)
run-downstream-ru: setup ## count what read_uncommitted ones see  make run-downstream-ru
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_uncommitted $(counting)

## Beyond Kafka's border
.PHONY: demo-downstream setup-stores run-ledger run-receive run-totals run-call kills restarts bench-ledger bench-restore bench-virtual
demo-downstream: setup-stores ## into a database; installs packages, as root     make demo-downstream
	@exec scripts/demo-downstream.sh
setup-stores: setup ## PostgreSQL and Redis from Debian, as root    make setup-stores
	@exec scripts/setup-packages.sh stores
run-ledger: setup ## book orders into PostgreSQL, exactly once   make run-ledger DATABASE_URL=postgresql://brew@localhost/brew
	@exec $(PY) -m downstream ledger $(bootstrap) $(consume) $(database)
run-receive: setup ## one effect per message, STORE says where    make run-receive STORE=redis-script REDIS_URL=redis://localhost
	@exec $(PY) -m downstream receive $(bootstrap) $(consume) $(database) $(call option,--store,STORE) \
	    $(call option,--redis,REDIS_URL) $(call option,--effect-url,EFFECT_URL)
run-totals: setup ## totals per customer and tier, exactly once  make run-totals RECOMPUTE=1
	@exec $(PY) -m downstream totals $(bootstrap) $(consume) $(call flag,--recompute,RECOMPUTE)
run-call: setup ## post each order, N calls at a time         make run-call CALL_URL=http://localhost:8080/orders VIRTUAL=16
	@exec $(PY) -m downstream call $(bootstrap) $(consume) $(call option,--url,CALL_URL) \
	    $(call option,--virtual-partitions,VIRTUAL)
kills: setup-stores ## 200 kills around each store's commit, check  make kills KILLS=20 STORES=ledger
	@exec $(PY) -m tests.kills $(call option,--kills,KILLS) $(call option,--out,KILLS_OUT) $(STORES)
restarts: setup-stores ## a broker restarts under each following program  make restarts RESTARTS=50
	@RESTARTS='$(RESTARTS)' RESTART_BY='$(RESTART_BY)' exec $(PY) -m pytest -q tests/scenarios/test_broker_restarts.py
bench-ledger: setup-stores ## orders per second, in batches and by row    make bench-ledger
	@exec $(PY) benchmarks/patterns.py ledger
bench-restore: setup ## 1,000,000 totals back from their changelog    make bench-restore
	@exec $(PY) benchmarks/patterns.py restore --json benchmarks/restore.json
bench-virtual: setup ## what 16 workers gain with 5 ms per record     make bench-virtual
	@exec $(PY) benchmarks/patterns.py virtual --json benchmarks/virtual.json

## Look and prove
.PHONY: preflight lag explain doctor group-describe end-offsets verify prove-report xray-pictures ui top ui-picture
preflight: setup ## what is unsafe for a run, and why            make preflight BOOTSTRAP=kafka:9092
	@exec $(PY) -m pipeline preflight $(run)
lag: setup ## what is left, how old, and who blocks it        make lag GROUP_ID=brew-enricher
	@exec $(PY) -m pipeline lag $(bootstrap) $(call option,--input,INPUT_TOPIC) $(group)
explain: setup ## where one order is, or why it is not there     make explain KEY=gold-000017
	@exec $(PY) -m pipeline explain $(bootstrap) $(topics) $(group) $(if $(KEY),$(call option,--,KEY))
doctor: setup ## transactions that hang, and whose they are      make doctor
	@exec $(PY) -m pipeline doctor $(bootstrap) $(group)
group-describe: setup ## the group's positions, LSO, end, lag     make group-describe GROUP_ID=brew-enricher
	@exec $(PY) -m proof group-describe $(bootstrap) $(group) $(call option,--topic,INPUT_TOPIC)
end-offsets: setup ## per partition: visible, aborted, control    make end-offsets
	@exec $(PY) -m proof end-offsets $(bootstrap)
verify: setup ## every visible order exactly once, or say why not make verify
	@exec $(PY) -m proof verify $(bootstrap) $(topics) $(group) $(tiers)
prove-report: setup ## page and picture of a campaign's results    make prove-report RESULTS=results.jsonl
	@scripts/setup-packages.sh browser
	@exec $(PY) -m proof report $(RESULTS) --out docs/proof/report.html --picture docs/proof/report.png \
	    --summary-md docs/proof/summary.md
xray-pictures: setup ## the crash story's logs, before and after    make xray-pictures
	@exec scripts/xray-pictures.sh
ui: setup ## the live view in a browser                         make ui
	@exec $(PY) -m pipeline ui $(live)
top: setup ## the same on the terminal                           make top
	@exec $(PY) -m pipeline top $(live)
ui-picture: setup ## a picture of the live view at work              make ui-picture
	@scripts/setup-packages.sh browser
	@exec scripts/ui-picture.sh

## Prove
.PHONY: demo-sink demo-torn
demo-sink: setup ## a kill doubles rows of Spark's sink, not ours make demo-sink
	@exec scripts/demo-sink.sh
demo-torn: setup ## the hole that others leave open, frame by frame  make demo-torn
	@exec scripts/demo-torn.sh
.PHONY: prove prove-all soak mutants
prove: setup ## break writers, brokers, network: minutes          make prove CELLS='F14-* F19-*'
	@scripts/setup-packages.sh stores || echo "cells that need PostgreSQL or Redis will be inconclusive and say so" >&2
	@exec $(PY) -m proof campaign $(foreach cell,$(CELLS),--cells '$(cell)') --slack 5 --at-once 2 $(call option,--out,PROVE_OUT)
prove-all: setup-stores ## the whole fault matrix, three seeds: hours make prove-all PROVE_OUT=results
	@exec $(PY) -m proof campaign --cells 'F*' --seeds 1,2,3 $(call option,--kills,KILLS) --minutes 5 --resume $(call option,--out,PROVE_OUT)
soak: setup ## an hour of random mixtures of faults               make soak
	@exec $(PY) -m proof campaign --cells soak --minutes 60 $(call option,--out,PROVE_OUT)
mutants: setup ## bugs put in on purpose, each has to be seen   make mutants MUTANTS=no-locate
	@exec $(PY) -m tests.mutants kill $(call option,--bootstrap,BOOTSTRAP) $(MUTANTS)
.PHONY: mutation
mutation: setup ## single changes to what decides, tests must notice make mutation MODULE=kernel
	@exec $(PY) scripts/mutation.py $(call option,--workers,MUTATION_WORKERS) $(call flag,--again,MUTATION_AGAIN) $(MODULE)
.PHONY: claims-races models bench-claims bench-checker
bench-checker: setup ## records per second of the checker, memory   make bench-checker
	@exec $(PY) benchmarks/checker.py
bench-claims: setup ## fold, newcomer, take-over                  make bench-claims BOOTSTRAP=kafka:9092
	@exec $(PY) benchmarks/claims.py $(call option,--bootstrap,BOOTSTRAP) --out benchmarks/claims.json
claims-races: setup ## 8 claimants, 64 partitions, 1,000 rounds      make claims-races BOOTSTRAP=kafka:9092
	@exec $(PY) -m proof claims-races --rounds 1000 $(call option,--out,RACES_OUT) $(bootstrap)
models: ## claims, the six steps, the sink, all interleavings (spin)   make models
	@scripts/setup-packages.sh models
	@exec scripts/models.sh

## Work on the house
.PHONY: test test-secure lint bench bench-growth bench-micro-batches bench-peers bench-profiles bench-xray
test: setup ## unit, integration and scenario tests               make test TESTS=tests/unit
	@scripts/setup-packages.sh stores browser metrics models || echo "tests that need what is missing will fail and say so" >&2
	@exec $(PY) -m pytest --numprocesses $(TEST_WORKERS) $(TESTS)
test-secure: setup ## the same with TLS, SCRAM, least rights     make test-secure TESTS=tests/scenarios/test_story.py
	@scripts/setup-packages.sh stores browser metrics models || echo "tests that need what is missing will fail and say so" >&2
	@exec $(PY) -m pytest --secure --secure-record docs/proof/secure.json --numprocesses $(TEST_WORKERS) $(TESTS)
lint: setup ## style, types, import arrows, shell files           make lint
	@exec scripts/lint.sh
bench: setup ## rate, CPU, latency, restart beside peers          make bench CONTENDERS=pipeline,franz ORDERS=1000000 REPEAT=3
	@exec $(PY) benchmarks/run.py $(call option,--orders,ORDERS) $(call option,--contenders,CONTENDERS) \
	    $(call option,--repeat,REPEAT) $(call flag,--paired,PAIRED) $(call option,--brokers,BENCH_BROKERS)
bench-micro-batches: setup ## the sink's small batches, time and memory   make bench-micro-batches
	@exec $(PY) benchmarks/micro_batches.py --json benchmarks/micro_batches.json
bench-profiles: setup ## a million customers' profiles, beside none   make bench-profiles
	@exec $(PY) benchmarks/profiles.py --json benchmarks/profiles.json
bench-growth: setup ## 10 times, 64 partitions, large orders, slots   make bench-growth
	@exec $(PY) benchmarks/growth.py --json benchmarks/growth.json
bench-xray: setup ## an X-ray of 10,000,000 offsets                   make bench-xray
	@exec $(PY) benchmarks/xray.py --json benchmarks/xray.json
bench-peers: ## build the peers in Java, Go and a venv         make bench-peers
	@exec benchmarks/peers/build.sh

## Containers and clusters
.PHONY: containers test-containers cluster-up cluster-down test-cluster
containers: setup ## an engine (Debian's Podman), base images, ours make containers
	@scripts/setup-packages.sh containers
	@ENGINE='$(ENGINE)' scripts/base-images.sh
	@ENGINE='$(ENGINE)' exec scripts/image.sh
test-containers: containers ## a broker, the image, compose, pods     make test-containers
	@exec $(PY) -m pytest --results docs/proof/containers.json $(or $(TESTS),tests/containers)
cluster-up: setup ## Spark, a master and three workers            make cluster-up WORKERS=2
	@exec $(PY) -m sandbox spark up $(call option,--workers,WORKERS)
cluster-down: setup ## stop it; WIPE=1 removes its logs, too      make cluster-down WIPE=1
	@exec $(PY) -m sandbox spark down $(call flag,--wipe,WIPE)
test-cluster: setup ## Spark's own cluster and YARN, broken        make test-cluster
	@$(PY) -m sandbox setup-yarn
	@exec $(PY) -m pytest --results docs/proof/cluster.json $(or $(TESTS),tests/cluster)

## Release
.PHONY: wheel image docs reference
wheel: setup ## what pip installs, into dist/                     make wheel
	@exec scripts/wheel.sh
image: ## a driver's image, where an engine answers            make image ENGINE=podman
	@ENGINE='$(ENGINE)' exec scripts/image.sh
docs: setup ## the documentation site, into build/site            make docs
	@exec scripts/docs.sh
reference: setup ## every option, into docs/reference               make reference
	@exec $(PY) scripts/reference.py

# FIRST      BOOTSTRAP    brokers, host:port[,...]
#            INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC GROUP_ID
#            FOLLOW=1     of run-pipeline: until SIGTERM
#            MASTER       of run-pipeline: local[*] spark://...
#            CLIENT_CONFIG  a file: user, password, certificates
#            SEED_COUNT=1000  of seed             KEY=gold-000017  of explain

# VARIABLES  BOOTSTRAP    brokers, host:port[,...]         INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC GROUP_ID
#            SEED_COUNT   orders                           SEED_TRANSACTIONAL=1  in transactions, every third aborted
#            UNIQUE_BY    of make run-downstream: source or key, what makes two records the same
#            CRASH_PROB   0 to 1, per transaction          CRASH_POINT CRASH_MODE  where, and who dies
#            MASTER       local[*] spark://... yarn k8s:// READER  direct connector
#            FOLLOW=1     until SIGTERM                    PARTITIONS  of new topics
#            TIERS        prefix profiles; PROFILES_TOPIC  where profiles are, of run-pipeline and verify
#            CUSTOMERS SEED UPDATES TOMBSTONES  of make seed-customers
#            STAND_BY=1   of several drivers one works, the others wait and take over
#            SHARE=1      several drivers divide the partitions; with FOLLOW=1 they balance as they come and go
#            CLIENT_CONFIG  a file: user, password, certificates (docs/SECURITY.md)    SECURE=1  of make up: with them
#            WIPE=1       of make down: remove the data, too
#            BROKERS      of make up: 1 or 3               TESTS  of make test: files or folders
#            TEST_WORKERS of make test: how many run at once, each with a broker of its own; 0: one after another
#            KEY          of make explain: an order's key, or TOPIC/PARTITION/OFFSET
#            DATABASE_URL REDIS_URL EFFECT_URL  where stores are    STORE  of make run-receive: postgres outbox redis redis-script
#            KILLS STORES of make kills: how many, on which   KILLS_OUT RACES_OUT  where make kills and claims-races write
#            RESTARTS     of make restarts: how often the broker goes    RESTART_BY  kill or stop
#            RESULTS      of make prove-report: files     PROVE_OUT CELLS  of make prove: where results go, what is broken
#            STATUS_URL   of make ui and top: a running program's /status    PROOF  file of a verify or a campaign
#            MUTANTS      of make mutants: names; none: all    MODULE  of make mutation: areas or modules; none: all
#            MUTATION_WORKERS  of make mutation: mutants at a time (1)    MUTATION_AGAIN=1  only what the last run left alive
#            RECOMPUTE=1  of make run-totals: compare only   CALL_URL VIRTUAL  of make run-call: where to, how many at a time
#            ORDERS CONTENDERS REPEAT PAIRED=1  of make bench: backlogs, who runs, rounds, side by side
#            BENCH_BROKERS  of make bench: default,default-young,tuned
#            WORKERS      of make cluster-up: how many (3)
#            ENGINE       of make image: docker or podman; none: the first that answers
