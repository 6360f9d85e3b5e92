# `make demo` and `make check` set up everything they need in .venv, with nothing but Python >= 3.11, make and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= auto

# Real profiles beside the checkout, when they are there: with this set, a skipped test is a failure.
ifneq ($(wildcard ../shared/data/README.md),)
export TRACEKIT_REAL_DATA ?= $(abspath ../shared/data)
endif

# Tests start Python many times: let it keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check check-all lint types contracts test test-slow format sanitize fuzz bench reports clean

demo: $(VENV)/.demo
	$(BIN)/tracekit analyze examples/verl_cpu/outputs/profile

check: lint types contracts test

check-all: check test-slow

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml setup.py $(wildcard tracekit/readers/*.c tracekit/readers/*.h) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml setup.py $(wildcard tracekit/readers/*.c tracekit/readers/*.h) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.demo

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	MYPY_NUM_WORKERS=$(JOBS) $(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow'

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The C scanner under address and undefined-behaviour sanitizers, in a copy of the tree with a venv of its own.
sanitize: $(VENV)/.dev
	PYTHON=$(PYTHON) bash tests/sanitize.sh

fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz_readers.py --cases 20000 --seed 0

bench: $(VENV)/.dev
	$(BIN)/python tests/benchmarks/run.py

reports: $(VENV)/.dev
	$(BIN)/python examples/render_reports.py

clean:
	rm -rf build dist *.egg-info $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
