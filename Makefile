# PairBus: every task in one word. `make` alone lists them.
# Needs Python 3.11 or newer and nothing else; each target sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.dev.stamp
CONFORMANCE_STAMP := $(VENV)/.conformance.stamp
DOCS_STAMP := $(VENV)/.docs.stamp
BROWSER_STAMP := $(VENV)/.browser.stamp

# Python keeps what it has compiled, even where the environment (a container image, often) says otherwise: the tests start
# hundreds of processes, and each would compile every module again, which takes longer than all else that it does to start.
export PYTHONDONTWRITEBYTECODE :=

# How many tests run beside each other: one more than the two processors, because brokers and databases are waited for.
JOBS ?= 3
# Simulation: SEEDS worlds, or the one world SEED with its history printed.
SEEDS ?= 300
SEED ?=
# Options of the model of many cells: --check, --measure.
MODEL ?=
# Options of the benchmark of other loads: --only topics, --full.
LOADS ?=
# How often the soak kills the broker, and how long the fuzzer looks.
KILLS ?= 200
FUZZ_SECONDS ?= 60

# The form that the tests run on: pure, which is the reference, or compiled (see `make fast`).
FORM ?= pure
# One order of sets everywhere: what failed once fails again.
PYTEST = PAIRBUS_FORM=$(FORM) PYTHONHASHSEED=0 $(BIN)/python -m pytest
# The short form leaves out what takes minutes and what needs more than Python: Node.js, a built Qpid Proton. The order of
# the tests is mixed, the same way each time; ORDER=n mixes it differently.
ORDER ?= 4711
SHORT_MARKS := not slow and not soak and not browser and not conformance_js
SHORT := --randomly-seed=$(ORDER) -m "$(SHORT_MARKS)" --ignore-glob="tests/conformance/test_proton*.py" --ignore=tests/conformance/test_uamqp.py
# Conformance tests wait for locks and schedules of seconds most of the time, so more of them run beside each other.
WAITING_JOBS ?= 6

# What `make check` runs.
CHECKED := tests/unit tests/typing tests/property tests/contract tests/simulation

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types imports check test contract integration conformance sim soak soak-cluster soak-scale soak-spark soak-strangers fuzz fast slow compiled browser \
        bench-broker bench-loads bench-settle bench-pairing bench-spark bench-scale bench demo docs site dist lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Build .venv from the locked requirements (a moment when nothing changed)

$(STAMP): requirements/dev.lock pyproject.toml tools/setup.sh
	@PYTHON=$(PYTHON) tools/setup.sh
	@touch $@

$(CONFORMANCE_STAMP): $(STAMP) requirements/conformance.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/conformance.lock
	@touch $@

$(BROWSER_STAMP): $(STAMP) requirements/browser.lock
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/browser.lock
	@touch $@

$(DOCS_STAMP): $(STAMP) requirements/docs.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

fmt: $(STAMP) ## Format the code and apply the linter's safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## Lint and check the formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Type-check, strictly
	$(BIN)/mypy

imports: $(STAMP) ## Check that the rooms depend one way
	$(BIN)/lint-imports

check: lint types imports ## What to run while you work: units, properties, contracts, a few worlds (a minute on two cores)
	HYPOTHESIS_PROFILE=quick PAIRBUS_SEEDS=few $(PYTEST) -q -n $(JOBS) --randomly-seed=$(ORDER) -m "not long and $(SHORT_MARKS)" $(CHECKED)

test: lint types imports ## Everything a change must pass (minutes)
	$(PYTEST) $(SHORT) -n $(JOBS) --dist loadscope --no-loadscope-reorder --ignore=tests/conformance tests
	$(PYTEST) $(SHORT) -n $(WAITING_JOBS) tests/conformance

contract: $(STAMP) ## One suite over every store
	$(PYTEST) -n $(JOBS) tests/contract

integration: $(STAMP) ## Real sockets, real processes, real kills; the documents' commands
	@tools/system.sh chromium=chromium
	$(PYTEST) -n $(JOBS) --dist loadscope --no-loadscope-reorder tests/integration

conformance: $(CONFORMANCE_STAMP) ## The official Python SDK (on uAMQP too) and JavaScript SDK, and Qpid Proton, in full
	@tools/system.sh node=nodejs npm=npm
	@command -v npm >/dev/null || { echo "make conformance runs the JavaScript SDK too: install Node.js 18 or newer with npm (Debian: apt install nodejs npm)"; exit 1; }
	$(PYTEST) -n $(WAITING_JOBS) tests/conformance

browser: $(BROWSER_STAMP) ## The live page in a real Chromium, which must be installed; SHOTS=dir keeps pictures
	@tools/system.sh chromium=chromium
	PAIRBUS_SCREENSHOTS=$(SHOTS) $(PYTEST) -m browser tests/integration

sim: $(STAMP) ## The whole broker with failures of disk, network and clock: SEEDS=n worlds, or SEED=n replays one
	PAIRBUS_SEEDS=$(SEEDS) PAIRBUS_SEED=$(SEED) $(PYTEST) $(if $(SEED),-s,-n $(JOBS)) --timeout=0 tests/simulation

soak: $(STAMP) ## Load while the broker is killed KILLS=n times, then proof that nothing was lost
	$(BIN)/python tests/soak/kill.py --kills $(KILLS)

soak-cluster: $(STAMP) ## Nodes over PostgreSQL with a standby: the owner is killed KILLS=n times (100), other strikes between; PROMOTION=patroni|built-in
	PYTHONPATH=. $(BIN)/python tests/soak/cluster.py --kills $(if $(filter file,$(origin KILLS)),100,$(KILLS)) $(if $(PROMOTION),--promotion $(PROMOTION))

soak-spark: $(STAMP) ## 100,000 parked messages delivered by Spark while its driver and workers are killed
	PYTHONPATH=. $(BIN)/python tests/soak/spark_syphon.py

soak-scale: $(STAMP) ## A million queued messages, a restart, 5,000 idle connections (needs a C compiler)
	$(BIN)/python tests/soak/scale.py

soak-strangers: $(STAMP) ## 10,000 peers without a key one after the other and 1,000 at once, beside a client that measures
	$(BIN)/python tests/soak/strangers.py

fuzz: $(STAMP) ## Hostile bytes for FUZZ_SECONDS=n
	$(BIN)/python -m tools.fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m tests.fuzz.fuzz_amqp --seconds $(FUZZ_SECONDS)

fast: $(STAMP) ## Compile this checkout, so that .venv/bin/pairbus runs compiled (minutes; needs a C compiler)
	@$(BIN)/python -m tools.compiled fast

slow: $(STAMP) ## Remove what `make fast` put into this checkout
	@$(BIN)/python -m tools.compiled slow

compiled: FORM = compiled
compiled: fast ## Everything that `make test` runs, on the compiled form (needs a C compiler)
	PAIRBUS_SEEDS=few $(PYTEST) $(SHORT) -n $(JOBS) --dist loadscope --no-loadscope-reorder --ignore=tests/conformance tests
	$(PYTEST) $(SHORT) -n $(WAITING_JOBS) tests/conformance

bench-broker: $(STAMP) ## Messages per second, beside the peers that are installed; STORE=postgresql: beside itself with that store
	$(BIN)/python -m bench.broker $(if $(STORE),--store $(STORE))

bench-loads: $(STAMP) ## Topics, sessions, large messages, a long backlog and other loads, beside a plain queue; LOADS="--only topics" for one
	@$(BIN)/python -m bench.loads $(LOADS)

bench-settle: $(STAMP) ## What waiting for each settlement costs
	@$(BIN)/python -m bench.settle

bench-pairing: $(STAMP) ## What pairing costs and how fast it reacts, beside the official SDK alone
	@$(BIN)/python -m bench.pairing

bench-spark: $(STAMP) ## The Spark syphon beside the in-process one and the plain SDK; bill and certificate beside one process
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.bill

bench-scale: $(STAMP) ## A model of 100,000 namespaces from measured costs; MODEL="--check" runs its small end here too
	@$(BIN)/python -m bench.scale $(MODEL)

bench: bench-broker bench-loads bench-settle bench-pairing bench-spark bench-scale ## All benchmarks

demo: $(STAMP) ## The whole story in a minute: an outage, the backlog, the drain, the bill, the proof
	@$(BIN)/python -m pairbus demo

docs: $(STAMP) ## Write the generated pages, check the documents: links hold, commands run
	$(BIN)/python -m tools.reference
	$(BIN)/python tools/promises.py
	$(PYTEST) tests/integration/package/test_docs.py

site: $(DOCS_STAMP) ## Build the documents as a site into build/site, strictly
	$(BIN)/python -m mkdocs build --strict

dist: $(STAMP) ## Build into dist/: the source distribution, the pure wheel, and the compiled wheel for this platform
	PAIRBUS_FORM=pure $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist .
	PAIRBUS_FORM=compiled $(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist .

lock: $(STAMP) ## Write requirements/*.lock again
	tools/lock.sh --upgrade

clean: ## Remove what the targets made, but for .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage htmlcov
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
