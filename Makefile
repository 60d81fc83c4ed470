# Every target does its own set-up. Needs Python 3.11+, Java 17 (Spark, DynamoDB Local) and make;
# npm where the KafkaJS and DynamoDB Local suites should run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := .cache/tools/.installed
PYTEST_FLAGS ?=
# What asks the modules that can be compiled, and nothing slow beside them.
COMPILED_TESTS ?= tests/compiled tests/core/records tests/core/log tests/core/replication \
	tests/node/compaction \
	tests/node/connections tests/node/test_data_plane.py \
	tests/node/test_recovery.py tests/node/test_wire_fetch.py tests/node/test_wire_produce.py
# Most tests wait for servers, so there are more workers than cores. A file's tests stay together:
# what they share is started once. The longest files come first (tests/support/longest_files.py).
TEST_WORKERS ?= 3
WORKERS := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup tools demo test test-compiled test-slow test-localstack lint format types docs template node-bundle job-bundle wheel bench bench-peers scaling soak chaos attack clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## make .venv with everything needed for development

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

tools: $(TOOLS)  ## install the servers and clients that the tests talk to, under .cache/tools

$(TOOLS): $(STAMP) $(wildcard tools/*)
	$(BIN)/python -m tools.install
	touch $@

demo: $(STAMP)  ## flights through the whole product: produce, consume, tier, evict, read with Spark
	$(BIN)/python -m tools.demo

test: $(STAMP) $(TOOLS)  ## the default suite, under 12 minutes on 2 cores
	@# Compiling takes one core, for the while that tests leave it.
	nice $(BIN)/python -m tools.compiled & \
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_FLAGS); \
	status=$$?; wait; exit $$status
	$(MAKE) test-compiled

test-compiled: $(STAMP)  ## the tests of the hot path again, on its compiled modules
	$(BIN)/python -m tools.compiled
	PYTHONPATH=$(CURDIR)/.cache/compiled $(BIN)/python -m pytest $(WORKERS) $(PYTEST_FLAGS) $(COMPILED_TESTS)

test-slow: $(STAMP) $(TOOLS)  ## the tests marked slow
	$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

test-localstack: $(STAMP) $(TOOLS)  ## the bucket and its events on LocalStack, which the default suite asks too
	$(BIN)/python -m pytest -m localstack $(PYTEST_FLAGS)

lint: $(STAMP)  ## ruff, its formatter, and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code as lint wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

docs: $(STAMP)  ## docs/configuration.md and docs/internals/metadata-items.md, from what is declared
	$(BIN)/python -m tools.configuration
	$(BIN)/python -m tools.metadata_items

template: $(STAMP) $(TOOLS)  ## validate and lint the AWS templates, build functions and layer; no Docker, no account
	$(BIN)/python -m tools.sam

node-bundle: $(STAMP)  ## dist/tidelog-node.tar.gz, what the cluster's machines run
	$(BIN)/python -m tools.node_bundle

job-bundle: $(STAMP)  ## dist/jobs, what Spark jobs on EMR Serverless run
	$(BIN)/python -m tools.job_bundle

wheel: $(STAMP)  ## dist/*.whl with the hot path compiled, for this platform and Python; needs a C compiler
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --no-build-isolation --no-deps -w dist .

bench: $(STAMP) $(TOOLS)  ## what a node costs in every way, and the goals beside Kafka and Tansu; writes bench/results
	$(BIN)/python -m bench.node
	$(BIN)/python -m bench.replicated
	$(BIN)/python -m bench.offset_commits
	$(BIN)/python -m bench.group_joins
	$(BIN)/python -m bench.take_over
	$(BIN)/python -m bench.cold_reads
	$(BIN)/python -m bench.partitions
	$(BIN)/python -m bench.spark_source
	$(BIN)/python -m bench.peers --quick

bench-peers: $(STAMP) $(TOOLS)  ## Tidelog beside Apache Kafka and Tansu in 25 minutes: tables, CSV, plots; PEERS_FLAGS='--only latency'
	$(BIN)/python -m bench.peers $(PEERS_FLAGS)

scaling: $(STAMP)  ## how costs grow with what lies idle beside them, and whether they may: SCALING_FLAGS='--only topics --quick'
	$(BIN)/python -m bench.scaling $(SCALING_FLAGS)

soak: $(STAMP)  ## one node under load for half an hour, then whether it is as it was: SOAK_FLAGS='--seconds 600 ...'
	$(BIN)/python -m bench.soak $(SOAK_FLAGS)

chaos: $(STAMP)  ## a cluster under faults, then the checker: SECONDS=60 SEED= CHAOS_FLAGS='--nodes 3 ...'
	$(BIN)/python -m tools.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(CHAOS_FLAGS)

attack: $(STAMP)  ## what took nodes down once, done to three of them again, and a table: ATTACK_FLAGS='--only 3 --size 0.1'
	$(BIN)/python -m tests.attack $(ATTACK_FLAGS)

clean:  ## remove what the targets made
	rm -rf $(VENV) .cache
