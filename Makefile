# Rowferry: `make help` lists the targets. All of them work in a fresh clone.

VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
STUBS := $(patsubst proto/%.proto,src/%_pb2.py,$(wildcard proto/rowferry/wire/*.proto))

.DEFAULT_GOAL := help
.PHONY: help size lock setup services demo test test-rest test-all test-unit test-tidb services-spark test-spark services-lake test-lake fmt moments bench bench-page bench-mysql bench-kafka bench-pulsar bench-mysql-sink bench-storage bench-lake bench-search bench-queues bench-postgresql-sink bench-many-feeds bench-tables bench-snapshots bench-memory bench-cluster soak mutants chaos fuzz fuzz-guided audit advisories wheel site docs clean tools
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

size: ## count the lines of src/, without generated stubs
	@find src -name '*.py' ! -name '*_pb2*' -exec cat {} + | wc -l

# --- what must be on the machine: one line says what is missing ----------------------------------

PYTHON_FOUND = $(shell for p in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$p"; break; fi; done)
PYTHON_HAS_VENV = $(shell "$(PYTHON_FOUND)" -c 'import ensurepip, venv; print("yes")' 2>/dev/null)
JAVA_BIN = $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
JAVA_MAJOR = $(shell "$(JAVA_BIN)" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
JAVA_FITS = $(shell [ "$(or $(JAVA_MAJOR),0)" -ge 17 ] && echo yes)

tools:
	$(if $(PYTHON_FOUND),,$(error Rowferry needs Python 3.11 or newer and found none: install it \
	(Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3))
	$(if $(PYTHON_HAS_VENV),,$(error $(PYTHON_FOUND) has no venv module: install it \
	(Debian: apt-get install python3-venv)))
	$(if $(JAVA_FITS),,$(error Rowferry needs Java 17 or newer for Spark and found \
	$(or $(JAVA_MAJOR),none) at $(JAVA_BIN): install it (Debian: apt-get install openjdk-17-jre-headless) \
	or set JAVA_HOME))
	@:

# --- set-up: each step leaves a stamp, so that the second run is quick ----------------------------

setup: $(VENV)/.warm ## create .venv from requirements.lock, generate the gRPC stubs, compile the kernels

$(BIN)/uv: | tools
	@echo "== creating $(VENV)"
	@$(PYTHON_FOUND) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Bytecode is compiled here, since many a machine forbids processes to write it (each worker process
# would compile all libraries again). The package is installed editable and built with the locked
# tools, so that stubs fit the runtime.
$(VENV)/.installed: pyproject.toml requirements.lock hatch_build.py | $(BIN)/uv
	@echo "== installing what requirements.lock names"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes \
		-r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.stubs: $(VENV)/.installed $(wildcard proto/rowferry/wire/*.proto) proto/generate.py
	@echo "== generating the gRPC stubs"
	@$(BIN)/python proto/generate.py
	@touch $@

$(STUBS): $(VENV)/.stubs
	@[ -f $@ ] || $(BIN)/python proto/generate.py

KERNELS := $(wildcard src/rowferry/warm.py src/rowferry/columnar/*.py \
	src/rowferry/mysql/*kernels*.py src/rowferry/mysql/address_text.py \
	$(foreach part,kernels* tokenizer,src/rowferry/flow/encode/*/$(part).py) \
	src/rowferry/flow/encode/kernels/*.py src/rowferry/flow/dispatch/*kernels*.py \
	src/rowferry/flow/decide/*kernels*.py src/rowferry/flow/decide/sha256_lanes.py \
	src/rowferry/flow/capture/range_log/kv*.py src/rowferry/flow/capture/range_log/page.py \
	src/rowferry/flow/capture/binlog/frame/*kernels*.py \
	src/rowferry/flow/capture/binlog/frame/compressed.py \
	src/rowferry/flow/capture/binlog/decode/*.py \
	src/rowferry/refstore/storage/kernels.py src/rowferry/refstore/rows/kv_encode*.py \
	src/rowferry/downstream/verify/*kernels*.py)

$(VENV)/.warm: $(VENV)/.stubs $(STUBS) $(KERNELS) | tools
	@echo "== compiling the kernels"
	@$(BIN)/python -m compileall -q src/rowferry
	@$(BIN)/python -m rowferry.warm --fresh
	@touch $@

# The servers that tests run against; the stamp is beside them, wherever they are kept.
SERVERS := $(or $(ROWFERRY_SERVERS),.cache/servers)

services: $(SERVERS)/.fetched ## fetch the database servers that the tests start

$(SERVERS)/.fetched: $(wildcard src/rowferry/testing/servers/*.py src/rowferry/testing/servers/*/*.py) | $(VENV)/.installed
	@echo "== fetching database servers"
	@$(BIN)/python -m rowferry.testing.servers
	@touch $@

services-spark: | $(VENV)/.installed ## fetch older versions of Spark, 450 MB each
	@$(BIN)/python -m rowferry.testing.servers spark

services-lake: | $(VENV)/.installed ## fetch a Spark 4.1 with the libraries of Delta and Iceberg, 600 MB
	@$(BIN)/python -m rowferry.testing.servers lake

# --- daily work ----------------------------------------------------------------------------------

demo: setup ## run the demonstration: a store, a changefeed, files, a check
	@$(BIN)/rowferry demo

# Files of tests are spread over PROCESSES: one more than there are cores, since many wait for servers.
LANE = $(BIN)/python tests/lanes.py $(if $(PROCESSES),--processes $(PROCESSES))

test: setup services ## style, types and the tests that every change must pass at once
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@$(LANE) first --beside "$(BIN)/mypy"
	@echo "== passed: ruff check, ruff format, mypy (strict, as pyproject.toml says), the first lane of tests"

# Older versions of Spark are fetched meanwhile; who needs one first waits for it.
test-rest: setup services ## all other tests: every integration, kills, histories, moments
	@$(LANE) rest --beside "$(BIN)/python -m rowferry.testing.servers spark"
	@echo "== passed: the other tests"

test-all: test test-rest ## everything

test-unit: setup ## run the tests that need neither Spark nor services
	@$(BIN)/pytest tests/unit tests/arch

# Its server takes long to build, so that its tests run only when they are asked for.
test-tidb: setup services ## build a TiDB, once, for up to 30 minutes; then run the tests against it
	@$(BIN)/python -m rowferry.testing.servers tidb
	@$(BIN)/pytest tests/tidb

test-spark: setup services services-spark ## run what uses Spark with each version of Spark
	@$(BIN)/pytest tests/spark_versions

test-lake: setup services services-lake ## let Spark with Delta and Iceberg read and change lake tables
	@$(BIN)/pytest tests/spark_lake

fmt: setup ## format the code and repair what ruff can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

MOMENTS := PYTHONPATH=tests/moments:tests/integration/binlog $(BIN)/python -m moment_walk

moments: setup services ## try every event in every gap between two calls; ARGS="--scene begin"
	@$(MOMENTS) $(ARGS)

bench: setup ## measure the stages and the whole line, without database servers
	@for file in bench/stages.py bench/masks.py bench/whole.py; do \
		echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

bench-page: setup services services-lake ## measure all that docs/performance.md shows, for hours; ARGS="--only kafka,lake"
	@$(BIN)/python bench/page.py $(ARGS)

bench-mysql: setup services ## measure MySQL sources beside other tools; ARGS="--server mysql --profile"
	@$(BIN)/python bench/mysql.py $(ARGS)

bench-kafka: setup services ## measure feeds to Kafka beside a bare producer; ARGS="--scale 1 --docs"
	@$(BIN)/python bench/kafka.py $(ARGS)

bench-pulsar: setup services ## measure feeds to Pulsar beside the bare client; ARGS="--scale 0.1"
	@$(BIN)/python bench/pulsar_feed.py $(ARGS)

bench-mysql-sink: setup services ## measure feeds into MariaDB beside statements by hand; ARGS="--scale 0.1"
	@$(BIN)/python bench/mysql_sink.py $(ARGS)

bench-storage: setup services ## measure feeds to files and S3 beside bare puts; ARGS="--scale 0.1"
	@$(BIN)/python bench/storage.py $(ARGS)

bench-lake: setup services services-lake ## measure changes into lake tables beside how others merge; ARGS="--rows 1000000 --docs"
	@$(BIN)/python bench/lake.py $(ARGS)

bench-search: setup services ## measure feeds to OpenSearch beside a bare bulk loader; ARGS="--scale 0.1"
	@$(BIN)/python bench/search.py $(ARGS)

bench-queues: setup services ## measure sinks of queueing services beside bare clients; ARGS="--docs"
	@$(BIN)/python bench/queues.py $(ARGS)

bench-postgresql-sink: setup services ## measure the PostgreSQL sink beside a COPY by hand; ARGS="--docs"
	@$(BIN)/python bench/postgresql_sink.py $(ARGS)

bench-many-feeds: setup services ## measure many changefeeds on one server; ARGS="--feeds 50"
	@$(BIN)/python bench/many_feeds.py $(ARGS)

bench-tables: setup services ## measure the same rows in 10 to 10,000 tables; ARGS="--tables 10,1000 --docs"
	@$(BIN)/python bench/many_tables.py $(ARGS)

bench-snapshots: setup services ## measure a snapshot of a large table beside mydumper and others; ARGS="--rows 1000000"
	@$(BIN)/python bench/snapshots.py $(ARGS)

bench-memory: setup services ## measure memory with huge transactions, huge rows, 10,000 tables; ARGS="--gib 2 --docs"
	@$(BIN)/python bench/memory.py $(ARGS)

bench-cluster: setup services ## measure a Spark cluster of one and two workers, and predict larger ones; ARGS="--docs"
	@$(BIN)/python bench/cluster.py $(ARGS)

mutants: setup services ## plant defects one by one and see who notices; ARGS="--only key-split-off"
	@$(BIN)/python tests/mutants/run_mutants.py $(ARGS)

MINUTES ?= 60

soak: setup services ## run 100 changefeeds for an hour, restart everything, look for drift; MINUTES=60 ARGS="--docs"
	@$(BIN)/python bench/soak.py --minutes $(MINUTES) $(ARGS)

SEED ?= 1
chaos: MINUTES = 5

# What properties must hold for all values is tried with new ones, too; not where a history is repeated.
PROPERTIES = $(shell grep -rl "@given\b" tests --include="test_*.py")

chaos: setup services ## fuzz, then compare random histories with what feeds deliver; MINUTES=30 SEED=7 ARGS="--server mysql --sink kafka"
	@$(if $(ARGS),,$(BIN)/pytest -q --dice random $(PROPERTIES))
	@$(if $(ARGS),,$(MAKE) --no-print-directory fuzz SEED=$(SEED))
	@$(BIN)/python -m rowferry.testing.histories --minutes $(MINUTES) --dice $(SEED) $(ARGS)

INPUTS ?= 100000
# Kernels are built anew with a check of every index, apart from those that others use.
FUZZ := PYTHONPATH=tests/fuzz:tests:tests/contract:tests/unit/flow/capture/binlog NUMBA_BOUNDSCHECK=1 \
	NUMBA_CACHE_DIR=$(CURDIR)/.cache/checked-kernels $(BIN)/python

fuzz: setup ## throw damaged inputs at every reader of what others send; INPUTS=100000 SEED=1 ONLY="log: rows" ARGS="--processes 2"
	@$(FUZZ) -m fuzz_run --inputs $(INPUTS) --dice $(SEED) --only "$(ONLY)" $(ARGS)

SECONDS ?= 60

fuzz-guided: setup ## look for inputs that readers in Python stumble over, guided by coverage; SECONDS=60 (each) SEED=1 ONLY="URIs"
	@PYTHONHASHSEED=0 $(FUZZ) -m fuzz_guided --seconds $(SECONDS) --dice $(SEED) --only "$(ONLY)" $(ARGS)

lock: $(BIN)/uv ## write requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --quiet \
		--generate-hashes --no-header --no-annotate --no-emit-index-url -o requirements.lock

audit: $(VENV)/.installed ## check the locked libraries and their licences; write dist/rowferry.cdx.json, what Rowferry is made of
	@$(BIN)/python deploy/audit.py

PIP_AUDIT := pip-audit==2.9.0

advisories: $(BIN)/uv ## ask for known weaknesses of the locked libraries; needs a network
	@$(BIN)/uv tool run $(PIP_AUDIT) --disable-pip --require-hashes --requirement requirements.lock

wheel: $(VENV)/.installed ## build dist/rowferry-*.whl
	@$(BIN)/hatchling build -t wheel

site: $(VENV)/.installed ## build the documentation as a site with search, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean

docs: setup ## write the generated pages in docs/ anew
	@$(BIN)/python docs/generate.py

clean: ## remove .venv, generated stubs and all caches
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .rowferry spark-warehouse dist site
	@rm -f src/rowferry/wire/*_pb2*
	@find src tests bench docs proto -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null; true
