# Every target does its own set-up. Needs Python 3.11+, Java 17 (Spark, DynamoDB Local) and make,
# npm for the suites of KafkaJS and DynamoDB Local, and go for that of franz-go.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := .cache/tools/.installed
PYTEST_FLAGS ?=
# The tests that use the compiled modules, without slow ones.
COMPILED_TESTS ?= tests/compiled tests/core/records tests/core/log tests/core/replication \
	tests/core/tier/test_index_file.py tests/core/tier/test_key_hashes.py \
	tests/core/tier/test_segment_scan.py tests/core/diskless/test_wal_objects.py \
	tests/core/diskless/test_chain_writer.py tests/core/diskless/test_noted_ranges.py \
	tests/core/diskless/test_put_pace.py \
	tests/node/compaction \
	tests/node/connections tests/node/test_data_plane.py \
	tests/node/replication/test_answers_in_turns.py \
	tests/node/replication/test_following_sessions.py \
	tests/node/test_recovery.py tests/node/wire/test_fetch.py tests/node/wire/test_produce.py
# The tests that differ where the kernel has TLS.
KTLS_TESTS := tests/node/connections/test_kernel_tls_transport.py tests/node/connections/test_key_updates.py \
	tests/node/security/test_tls_large_requests.py tests/node/security/test_kernel_tls.py \
	tests/node/security/test_tls_clients.py tests/node/authentication/test_login_transports.py
# The tests that use real clients: librdkafka, Java, aiokafka, kafka-python, KafkaJS, franz-go, Kafka's
# tools, MirrorMaker and Kafka Streams.
CLIENT_TESTS ?= tests/clients tests/kafka tests/node/test_clients.py tests/node/transactions/test_clients.py \
	tests/node/coordinator/test_group_clients.py tests/node/coordinator/test_consumer_clients.py \
	tests/node/coordinator/test_share_clients.py tests/node/authentication/test_real_clients.py \
	tests/node/security/test_tls_clients.py tests/sdk/test_interop.py
# Most tests wait for servers, so there are more workers than cores: of two cores four workers use nine
# tenths. One worker runs all tests of a file, and of some folders, so their servers start once. The
# longest come first (tests/support/longest_files.py).
TEST_WORKERS ?= 6
# Workers collect files, so pytest cannot tell which share of the tests is done.
WORKERS := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -o console_output_style=classic
# Nodes and stores flush their files. On a disk the tests wait for each other's flushes; with enough
# memory, ``/dev/shm`` is faster.
TEST_FOLDERS ?= $(or $(TMPDIR),/tmp)

.PHONY: help setup tools demo test prepared test-compiled test-slow test-packages test-docs test-localstack test-ktls test-aws test-kafka test-exports test-ecosystem test-diskless-clients test-console lint format types docs site template checkov test-machine node-bundle job-bundle wheel bench bench-peers bench-secure bench-sustained scaling soak chaos simulate-diskless logins fuzz attack clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## create .venv with the development packages

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

tools: $(TOOLS)  ## install the servers and clients that the tests talk to, under .cache/tools

$(TOOLS): $(STAMP) $(filter-out tools/__pycache__,$(wildcard tools/*))
	$(BIN)/python -m tools.install
	touch $@

demo: $(STAMP)  ## flights through the whole product: produce, consume, tier, evict, read with Spark
	$(BIN)/python -m tools.demo

test: $(STAMP) $(TOOLS)  ## the default suite, about a quarter of an hour on 2 cores
	@# The modules are compiled beside the tests, at low priority. Files of tests that fail are kept.
	TMPDIR=$$(mktemp -d $(TEST_FOLDERS)/t.XXXX) || exit 1; export TMPDIR; \
	nice $(BIN)/python -m tools.compiled & \
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_FLAGS); \
	status=$$?; wait; \
	if [ $$status -eq 0 ]; then rm -rf $$TMPDIR; else echo "the tests' files are in $$TMPDIR"; fi; \
	exit $$status
	$(MAKE) test-compiled

prepared: $(STAMP) $(TOOLS)  ## what the default suite starts with: compiled modules and kernels, and bytecode of all tests
	$(BIN)/python -m tools.compiled
	$(BIN)/python -c 'from tidelog.arrow.native.stored_code import machine_code; machine_code()'
	$(BIN)/python -m pytest --collect-only -q >.cache/collected || { tail -n 200 .cache/collected; exit 1; }

test-compiled: $(STAMP)  ## the tests of the hot path again, on its compiled modules
	$(BIN)/python -m tools.compiled
	PYTHONPATH=$(CURDIR)/.cache/compiled $(BIN)/python -m pytest $(WORKERS) $(PYTEST_FLAGS) $(COMPILED_TESTS)

test-slow: $(STAMP) $(TOOLS)  ## the tests marked slow
	$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

test-packages: $(STAMP) $(TOOLS)  ## build the wheel, the image and the chart, and use them; needs root, go, mvn and the packages that docs/install.md names
	$(BIN)/python -m pytest -m packages --timeout 3600 $(PYTEST_FLAGS)

test-docs: $(STAMP) $(TOOLS)  ## run every shell block of the documentation, beside the clusters that it is about
	$(BIN)/python -m pytest -m "slow or not slow" $(PYTEST_FLAGS) tests/docs

test-localstack: $(STAMP) $(TOOLS)  ## the tests that use LocalStack; the default suite has them too
	$(BIN)/python -m pytest -m localstack $(PYTEST_FLAGS)

test-ktls: $(STAMP)  ## the tests of kernel TLS, on a kernel that has it, in an emulated machine; needs qemu
	TIDELOG_CONFIG_SSL_KTLS_ENABLE=true $(BIN)/python -m tools.kernel_machine \
		$(BIN)/python -m pytest -v --timeout 900 $(PYTEST_FLAGS) $(KTLS_TESTS)

test-aws: $(STAMP) $(TOOLS)  ## stacks, functions and stores on MiniStack, LocalStack and DynamoDB Local, slow ones too
	$(BIN)/python -m pytest -m "slow or not slow" tests/aws $(WORKERS) $(PYTEST_FLAGS)

test-diskless-clients: $(STAMP) $(TOOLS)  ## the suites of Kafka's clients, with diskless as the default of new topics, slow ones too
	TIDELOG_CONFIG_LOG_DISKLESS_ENABLE=true $(BIN)/python -m pytest -m "slow or not slow" --timeout 900 \
		$(PYTEST_FLAGS) $(CLIENT_TESTS)

test-ecosystem: $(STAMP) $(TOOLS)  ## Connect, Debezium, Flink, Streams, MirrorMaker, kaskade and clients on nodes that are killed; writes docs/ecosystem.md
	$(BIN)/python -m tools.ecosystem install
	$(BIN)/python -m pytest -m "slow or not slow" --junitxml=.cache/ecosystem.xml $(PYTEST_FLAGS) $$($(BIN)/python -m tools.ecosystem tests); \
		status=$$?; $(BIN)/python -m tools.ecosystem report .cache/ecosystem.xml; exit $$status

test-exports: $(STAMP) $(TOOLS)  ## exports, backfills and the sink of Spark: killed, interrupted, without permission, on a REST catalog
	$(BIN)/python -m pytest -m "slow or not slow" --timeout 900 $(PYTEST_FLAGS) tests/spark/jobs/export tests/spark/jobs/erasure \
		tests/spark/jobs/formats/test_iceberg_job.py tests/spark/jobs/test_backfill.py tests/spark/sink \
		tests/spark/streaming/test_stream_crash.py tests/aws/test_export_to_s3.py

test-kafka: $(STAMP) $(TOOLS)  ## the same requests to a node and to Apache Kafka, slow ones too
	$(BIN)/python -m pytest -m "slow or not slow" tests/kafka $(PYTEST_FLAGS)

test-console: $(STAMP) $(TOOLS)  ## the console, in Chromium too
	$(BIN)/python -m pytest -m "slow or not slow" tests/console $(PYTEST_FLAGS)

lint: $(STAMP)  ## ruff, its formatter, and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(STAMP)  ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

docs: $(STAMP)  ## generate the pages of docs that are made from code
	$(BIN)/python -m tools.configuration
	$(BIN)/python -m tools.metrics
	$(BIN)/python -m tools.metadata_items
	$(BIN)/python -m tools.cli_reference
	$(BIN)/python -m tools.api_reference
	$(BIN)/python -m tools.error_reference
	$(BIN)/python -m tools.alert_reference
	$(BIN)/python -m tools.limit_reference
	$(BIN)/python -m tools.timeout_reference
	$(BIN)/python -m tools.dashboard

site: $(STAMP)  ## build the documentation as a site, into .cache/site
	$(BIN)/mkdocs build --strict

template: $(STAMP) $(TOOLS)  ## validate and lint the AWS templates, build functions and layer; no Docker, no account
	$(BIN)/python -m tools.sam

checkov: $(STAMP)  ## what checkov finds in the AWS templates; docs/deploy.md says what is accepted
	$(BIN)/python -m tools.checkov

test-machine: $(STAMP) $(TOOLS)  ## boot a machine of the cluster in namespaces of this one: its script, its units; needs root
	$(BIN)/python -m pytest -m slow tests/aws/test_user_data.py

node-bundle: $(STAMP)  ## build dist/tidelog-node.tar.gz, compiled, for the cluster's machines; needs a C compiler
	$(BIN)/python -m tools.node_bundle

job-bundle: $(STAMP)  ## build dist/jobs for Spark jobs on EMR Serverless
	$(BIN)/python -m tools.job_bundle

wheel: $(STAMP)  ## build dist/*.whl with the compiled hot path, for this platform and Python; needs a C compiler
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --no-build-isolation --no-deps -w dist .

bench: $(STAMP) $(TOOLS)  ## measure a node, and compare it with Kafka and Tansu; writes bench/results
	$(BIN)/python -m bench.node
	$(BIN)/python -m bench.replicated
	$(BIN)/python -m bench.offset_commits
	$(BIN)/python -m bench.group_joins
	$(BIN)/python -m bench.take_over
	$(BIN)/python -m bench.cold_reads
	$(BIN)/python -m bench.partitions
	$(BIN)/python -m bench.spark_source
	$(BIN)/python -m bench.peers --quick

bench-peers: $(STAMP) $(TOOLS)  ## compare Tidelog with Apache Kafka and Tansu in 25 minutes: tables, CSV, plots; PEERS_FLAGS='--only latency'
	$(BIN)/python -m bench.peers $(PEERS_FLAGS)

bench-sustained: $(STAMP) $(TOOLS)  ## three whole runs of one and three nodes beside Apache Kafka in 10 minutes; writes bench/results/sustained
	$(BIN)/python -m bench.sustained $(SUSTAINED_FLAGS)

bench-secure: $(STAMP) $(TOOLS)  ## measure what TLS, ACLs and quotas cost, beside Apache Kafka; writes bench/results/secure
	$(BIN)/python -m bench.secure $(SECURE_FLAGS)

scaling: $(STAMP)  ## measure how costs grow with idle topics, groups and clients, and check the growth: SCALING_FLAGS='--only topics --quick'
	$(BIN)/python -m bench.scaling $(SCALING_FLAGS)

soak: $(STAMP)  ## load one node for half an hour, then check that it uses no more than before: SOAK_FLAGS='--seconds 600 ...'
	$(BIN)/python -m bench.soak $(SOAK_FLAGS)

chaos: $(STAMP)  ## run a cluster under faults, then check its history: SECONDS=60 SEED= CHAOS_FLAGS='--nodes 3 ...'
	$(BIN)/python -m tools.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(CHAOS_FLAGS)

simulate-diskless: $(STAMP)  ## chains of diskless topics through 10,000 schedules: DISKLESS_SCHEDULES= DISKLESS_BASE= DISKLESS_SEED=
	$(BIN)/python -m pytest -m slow -s tests/simulation/diskless $(PYTEST_FLAGS)

logins: $(STAMP) $(TOOLS)  ## log in by every mechanism with every client, right and wrong, slow ones too
	$(BIN)/python -m pytest -m "slow or not slow" tests/clients/logins $(PYTEST_FLAGS)

fuzz: $(STAMP)  ## send a million random frames before and after logins, in the open and in TLS
	$(BIN)/python -m pytest -m slow tests/node/authentication/test_login_fuzzing.py $(PYTEST_FLAGS)

attack: $(STAMP)  ## repeat the attacks that once took nodes down; prints a table: ATTACK_FLAGS='--only 3 --size 0.1'
	$(BIN)/python -m tests.attack $(ATTACK_FLAGS)

clean:  ## remove .venv and .cache
	rm -rf $(VENV) .cache
