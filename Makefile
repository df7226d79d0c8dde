# evkf: everything a developer does, by name. Needs Python 3.11-3.13, make and a package index.

# The interpreter the virtual environment is made with. If this one does not fit and
# was not chosen on the command line, python3.13, python3.12 and python3.11 are tried.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Worker processes of the test run; JOBS=0 runs the tests in one process.
JOBS ?= 2
# Folder of the real recordings that long checks read; EVKF_DATA names it too.
DATA ?= $(EVKF_DATA)
# More for pytest, such as PYTEST_FLAGS="-k filter -x".
PYTEST_FLAGS ?=
# Options of `make bench`: parts, or BENCH="--quick --out out/bench".
BENCH ?=
# More for the resolver, such as LOCK_FLAGS=--upgrade or LOCK_FLAGS="--upgrade-package jax".
LOCK_FLAGS ?=

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/evkf/__init__.py)

# Stamps: an install reruns only when what it was made from has changed.
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
PACKAGE_STAMP := $(VENV)/.stamp-package-$(VERSION)

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --no-emit-index-url --no-annotate \
	--custom-compile-command 'make lock' $(LOCK_FLAGS)

PYTHON_FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
ifeq ($(filter command environment,$(firstword $(origin PYTHON))),)
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11
else
PYTHONS := $(PYTHON)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup dev demo test bench long numbers docs figures audit release lint format lock clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(PACKAGE_STAMP) ## make .venv with the locked run-time packages and evkf itself

dev: $(DEV_STAMP) $(PACKAGE_STAMP) ## setup, and the locked development tools

demo: setup ## two minutes of simulated spikes, live, on a page; KEEP=1 keeps it up
	@$(BIN)/evkf demo --force

test: lint ## lint, and run the tests
	@echo "== pytest"
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadscope --no-loadscope-reorder $(PYTEST_FLAGS)

bench: setup ## measure speed, every figure beside its target (BENCH=--quick: see that it runs)
	@$(BIN)/python benchmarks/bench.py --out results/bench --force $(BENCH)

long: dev ## run the long checks; each prints its figures and fails when one falls short
	@test -n "$(DATA)" || { echo "name the folder of recordings: make long DATA=/path" >&2; exit 2; }
	@$(BIN)/python benchmarks/bench.py --out results/bench --force
	@$(BIN)/python -m pytest -q -n $(JOBS) -m long
	@EVKF_CASES=200 $(BIN)/python -m pytest -q -n $(JOBS) tests/filters/evkf/test_optimum.py tests/filters/evkf/test_optimum_products.py
	@$(BIN)/python benchmarks/import_time.py --json results/import_time.json
	@$(BIN)/python benchmarks/adversarial.py --json results/adversarial.json
	@$(BIN)/python benchmarks/vdp_learning.py --json results/vdp_learning.json
	@$(BIN)/python benchmarks/attractors.py --json results/attractors.json
	@$(BIN)/python benchmarks/learning_cost.py --json results/learning_cost.json
	@$(BIN)/python benchmarks/losses.py --json results/losses.json
	@$(BIN)/python benchmarks/gpfa.py --json results/gpfa.json
	@$(BIN)/python benchmarks/filters_linear.py --json results/filters_linear.json
	@$(BIN)/python benchmarks/filters_rnn.py --json results/filters_rnn.json
	@$(BIN)/python benchmarks/filters_vdp.py --json results/filters_vdp.json
	@$(BIN)/python benchmarks/nwb_memory.py --json results/nwb_memory.json
	@$(BIN)/python benchmarks/cluster.py --json results/cluster.json
	@$(BIN)/python benchmarks/journal.py --json results/live/journal.json
	@$(BIN)/python benchmarks/live_fuzz.py --json results/live/fuzz.json
	@$(BIN)/python benchmarks/live_faults.py --json results/live/faults.json
	@$(BIN)/python benchmarks/live_soak.py --json results/live/soak.json
	@$(BIN)/python benchmarks/live_latency.py --json results/live/latency.json
	@$(BIN)/python benchmarks/live_kill.py --json results/live/kill.json
	@$(BIN)/python benchmarks/live_serve.py --json results/live/serve.json
	@$(BIN)/python benchmarks/closed_loop.py --json results/live/closed_loop.json
	@$(BIN)/python benchmarks/rig_transports.py --json results/live/rig_transports.json
	@$(BIN)/python benchmarks/web_safety.py --json results/live/web_safety.json
	@$(BIN)/python benchmarks/page_fps.py --json results/live/page_fps.json
	@$(BIN)/evkf reproduce reaching --data $(DATA) --out results/reaching --force
	@$(BIN)/python benchmarks/centre_out.py $(DATA)/chewie_centre_out_100ms.npz --json results/centre_out.json

numbers: setup ## put the numbers of results/ into README.md and docs/
	@$(BIN)/python docs/fill_in.py

docs: dev ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

figures: dev ## draw the figures of the tutorials anew, into docs/img/
	@cd docs/img && for script in ../../examples/*.py; do echo "$$script"; ../../$(BIN)/python $$script || exit 1; done

audit: dev ## look up known vulnerabilities of what is locked, as far as this machine can ask
	@$(BIN)/python benchmarks/audit.py

release: dev ## build wheel and sdist, and try them in clean environments, extra by extra
	@test -x $(BIN)/uv || $(PIP) install uv
	@$(BIN)/python benchmarks/release.py

lint: dev ## check style, format, types and architecture
	@echo "== ruff check"
	@$(BIN)/ruff check
	@echo "== ruff format"
	@$(BIN)/ruff format --check
	@echo "== pyright"
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --project pyright.core.json
	@echo "== lint-imports"
	@$(BIN)/lint-imports --no-logo

format: dev ## rewrite the sources in the agreed style
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

lock: $(VENV)/pyvenv.cfg ## resolve the locks in requirements/ again
	@test -x $(BIN)/uv || { echo "installing the resolver (uv)"; $(PIP) install uv; }
	@mkdir -p requirements
	@$(COMPILE) --extra storage --extra xarray --extra hdf5 --extra nwb --extra live --extra web --group build -o requirements/run.txt > /dev/null
	@$(COMPILE) --extra storage --extra xarray --extra hdf5 --extra nwb --extra live --extra web --group build --group dev -c requirements/run.txt -o requirements/dev.txt > /dev/null
	@grep -c '==' requirements/run.txt requirements/dev.txt | sed 's/:/: /; s/$$/ packages/'

clean: ## remove .venv, caches and build products
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@for p in $(PYTHONS); do \
	  if $$p -c '$(PYTHON_FITS)' > /dev/null 2>&1; then \
	    echo "creating $(VENV) with $$($$p --version)"; \
	    exec $$p -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "evkf needs Python 3.11, 3.12 or 3.13 with the venv module; tried: $(PYTHONS)." >&2; \
	echo "Install one of these, or name it: make setup PYTHON=/path/to/python3.12" >&2; \
	exit 1

$(RUN_STAMP): requirements/run.txt $(VENV)/pyvenv.cfg
	@echo "installing the run-time packages (requirements/run.txt)"
	@$(PIP) install -r requirements/run.txt
	@touch $@

$(DEV_STAMP): requirements/dev.txt $(RUN_STAMP)
	@echo "installing the development tools (requirements/dev.txt)"
	@$(PIP) install -r requirements/dev.txt
	@touch $@

# Named after the version, so that a new version refreshes the installed metadata.
$(PACKAGE_STAMP): pyproject.toml $(RUN_STAMP)
	@echo "installing evkf $(VERSION) (editable)"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.stamp-package-*
	@touch $@
