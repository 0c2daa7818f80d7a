# Every command of the house. `make` or `make help` lists them.
#
# Variables come from the command line or the environment. What is empty is not passed on: the programs' own defaults
# (protocol/names.py, each program's --help) hold. Only these belong to the targets alone:
seed: SEED_COUNT ?= 30
run-pipeline-crash: CRASH_PROB ?= 1.0
prove-report: RESULTS ?= docs/proof/results.json

SHELL := /bin/bash
.DEFAULT_GOAL := help

PY := .venv/bin/python

# $(call option,--name,VARIABLE): the option, quoted, when the variable has a value; `local[*]` stays as it is.
option = $(if $(strip $($2)),$1 '$(subst ','\'',$(strip $($2)))')
# $(call flag,--name,VARIABLE): the flag, unless the variable is empty, 0, no or false.
flag = $(if $(filter-out 0 no false,$(strip $($2))),$1)

bootstrap = $(call option,--bootstrap,BOOTSTRAP)
topics = $(call option,--input,INPUT_TOPIC) $(call option,--output,OUTPUT_TOPIC) $(call option,--dead-letter,DLQ_TOPIC)
group = $(call option,--group,GROUP_ID)
crash = $(call option,--crash-prob,CRASH_PROB) $(call option,--crash-point,CRASH_POINT) $(call option,--crash-mode,CRASH_MODE)
run = $(bootstrap) $(topics) $(group) $(call option,--master,MASTER) $(call option,--reader,READER) \
      $(call flag,--follow,FOLLOW) $(call flag,--stand-by,STAND_BY)

.PHONY: help
help: ## this list
	@awk -f scripts/help.awk $(firstword $(MAKEFILE_LIST))

## Start here
.PHONY: demo setup up down
demo: setup ## the crash story, told on a broker of its own      make demo
	@exec scripts/demo.sh
setup: ## Python environment, JVM parts; quick when all is there  make setup
	@scripts/setup.sh
up: setup ## a real Kafka on localhost:9092                       make up BROKERS=3
	@exec $(PY) -m sandbox up $(call option,--brokers,BROKERS)
down: setup ## stop it                                            make down
	@exec $(PY) -m sandbox down

## The main job
.PHONY: topic-create-all seed run-pipeline run-pipeline-crash run-downstream run-downstream-ru
topic-create-all: setup ## the topics that are missing            make topic-create-all PARTITIONS=8
	@exec $(PY) -m proof topics $(bootstrap) $(topics) $(call option,--partitions,PARTITIONS)
seed: setup ## orders to work on                                  make seed SEED_COUNT=1000 SEED_TRANSACTIONAL=1
	@exec $(PY) -m proof seed $(bootstrap) $(call option,--topic,INPUT_TOPIC) $(call option,--count,SEED_COUNT) \
	    $(call flag,--transactional,SEED_TRANSACTIONAL)
run-pipeline: setup ## enrich what is there, exactly once         make run-pipeline BOOTSTRAP=kafka:9092 FOLLOW=1
	@exec $(PY) -m pipeline run $(run)
run-pipeline-crash: setup ## the same, dying on purpose           make run-pipeline-crash CRASH_PROB=0.3 CRASH_POINT=mid-produce
	@exec $(PY) -m pipeline run $(run) $(crash)
run-downstream: setup ## count what read_committed readers see    make run-downstream OUTPUT_TOPIC=brew.orders.enriched
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_committed
run-downstream-ru: setup ## count what read_uncommitted ones see  make run-downstream-ru
	@exec $(PY) -m downstream count $(bootstrap) $(call option,--topic,OUTPUT_TOPIC) --isolation read_uncommitted

## Look and prove
.PHONY: group-describe end-offsets verify prove-report
group-describe: setup ## the group's positions, LSO, end, lag     make group-describe GROUP_ID=brew-enricher
	@exec $(PY) -m proof group-describe $(bootstrap) $(group) $(call option,--topic,INPUT_TOPIC)
end-offsets: setup ## per partition: visible, aborted, control    make end-offsets
	@exec $(PY) -m proof end-offsets $(bootstrap)
verify: setup ## every visible order exactly once, or say why not make verify
	@exec $(PY) -m proof verify $(bootstrap) $(topics) $(group)
prove-report: setup ## page and picture of a campaign's results    make prove-report RESULTS=results.jsonl
	@exec $(PY) -m proof report $(RESULTS) --out docs/proof/report.html --picture docs/proof/report.png \
	    --summary-md docs/proof/summary.md

## Prove
.PHONY: demo-torn
demo-torn: setup ## the hole that others leave open, frame by frame  make demo-torn
	@exec scripts/demo-torn.sh
.PHONY: prove prove-all soak mutants
prove: setup ## break writers, brokers, network: 8 minutes        make prove
	@exec $(PY) -m proof campaign --cells prove --slack 2 $(call option,--out,PROVE_OUT)
prove-all: setup ## the whole fault matrix, three seeds: hours     make prove-all PROVE_OUT=results
	@exec $(PY) -m proof campaign --cells 'F*' --seeds 1,2,3 --kills 100 --minutes 5 --resume $(call option,--out,PROVE_OUT)
soak: setup ## an hour of random mixtures of faults               make soak
	@exec $(PY) -m proof campaign --cells soak --minutes 60 $(call option,--out,PROVE_OUT)
mutants: setup ## bugs put in on purpose, each has to be seen   make mutants MUTANTS=no-locate
	@exec $(PY) -m tests.mutants kill $(call option,--bootstrap,BOOTSTRAP) $(MUTANTS)

## Work on the house
.PHONY: test lint bench
test: setup ## unit, integration and scenario tests               make test TESTS=tests/unit
	@exec $(PY) -m pytest $(TESTS)
lint: setup ## style, types, import arrows, shell files           make lint
	@exec scripts/lint.sh
bench: setup ## measure throughput, start and memory              make bench
	@exec $(PY) benchmarks/run.py

# VARIABLES  BOOTSTRAP    brokers, host:port[,...]         INPUT_TOPIC OUTPUT_TOPIC DLQ_TOPIC GROUP_ID
#            SEED_COUNT   orders                           SEED_TRANSACTIONAL=1  in transactions, every third aborted
#            CRASH_PROB   0 to 1, per transaction          CRASH_POINT CRASH_MODE  where, and who dies
#            MASTER       local[*] spark://... yarn k8s:// READER  connector
#            FOLLOW=1     until SIGTERM                    PARTITIONS  of new topics
#            BROKERS      of make up: 1 or 3               TESTS  of make test: files or folders
#            RESULTS      of make prove-report: files     PROVE_OUT  of make prove: where results go
#            MUTANTS      of make mutants: names; none: all
