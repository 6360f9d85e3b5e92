# `make demo` and `make check` set up everything they need in .venv, with nothing but Python >= 3.11, make and pip.
PYTHON ?= python3
VENV ?= .venv
TOOLS_VENV ?= .venv-tools
BIN := $(VENV)/bin
LOWEST ?= .venv-lowest
JOBS ?= auto
SEED ?= 0
MUTANTS ?= 210
OLDER_VERLS ?= 0.8.0 0.9.0

# Real profiles beside the checkout, when they are there: with this set, a skipped test is a failure.
ifneq ($(wildcard ../shared/data/README.md),)
export TRACEKIT_REAL_DATA ?= $(abspath ../shared/data)
endif

# Tests start Python many times: let it keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: page firefox pictures docs test-logs demo check check-all check-lowest lint prose types contracts test test-slow tools nsys test-tools test-verls format sanitize wheels fuzz mutate bench reports clean

demo: $(VENV)/.demo
	$(BIN)/tracekit analyze examples/verl_cpu/outputs/profile

check: lint types contracts test

check-all: check test-slow

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml capture/pyproject.toml setup.py $(wildcard tracekit/*/*.c tracekit/*/*.h tracekit/readers/*/*.c tracekit/readers/*/*.h) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml capture/pyproject.toml setup.py $(wildcard tracekit/*/*.c tracekit/*/*.h tracekit/readers/*/*.c tracekit/readers/*/*.h) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -e ./capture
	touch $@ $(VENV)/.demo

lint: $(VENV)/.dev prose
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Phrases that readers stumble over, in pages, messages, docstrings and templates, against the budgets in tests/terms.toml.
prose: $(VENV)/.dev
	$(BIN)/python tests/prose.py

types: $(VENV)/.dev
	MYPY_NUM_WORKERS=$(JOBS) $(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow'

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow

# The program of the HTML page: packages into build/, page.js and page.css from their sources, tests in node, Chromium and Firefox.
page:
	firefox=$$(bash tests/firefox_program.sh $(if $(CI),--install)) && export TRACEKIT_FIREFOX=$$firefox && \
	  cd tracekit/render/explorer/web && npm run --silent setup && npm run --silent build && npm test --silent && npm run --silent browser

firefox:
	bash tests/firefox_program.sh --install

# The pictures of the page in docs/, of an example, taken in Chromium: after `make demo` and `make page`.
pictures:
	node tests/explorer/take_pictures.mjs docs/pictures

# What only some tests need: verl, torch, Ray and nvtx in an environment of their own, and nsys where it can be had.
# nvtx 0.2.12 and later records nothing under the nsys of Debian. verl asks for much that its profiler never imports.
tools: $(TOOLS_VENV)/.ready

$(TOOLS_VENV)/.ready: Makefile pyproject.toml capture/pyproject.toml setup.py $(wildcard tracekit/*/*.c tracekit/*/*.h tracekit/readers/*/*.c tracekit/readers/*/*.h)
	$(PYTHON) -m venv $(TOOLS_VENV)
	$(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ray]' -e ./capture \
	  torch==2.13.0 ray==2.60.0 nvtx==0.2.11 'tensordict>=0.8,!=0.9.0,<=0.10.0' 'transformers>=5.5.3,!=5.6.0,<5.11' codetiming hydra-core orjson uvicorn fastapi datasets torchdata cachetools peft TransferQueue==0.1.11
	$(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	touch $@

nsys:
	bash tests/nsys_program.sh --install

# The tests of capture in verl's worker groups, of `--engine ray` on a cluster and of nsys itself; under CI nsys is installed.
test-tools: tools
	modules=$$($(TOOLS_VENV)/bin/python tests/support/tools.py) && \
	  clusters=$$($(TOOLS_VENV)/bin/python tests/support/tools.py clusters) && \
	  nsys=$$(bash tests/nsys_program.sh $(if $(CI),--install)) && \
	  export TRACEKIT_NSYS=$$nsys TRACEKIT_TOOLS="verl ray compiler namespaces $${nsys:+nsys}" && \
	  $(TOOLS_VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile $$modules && \
	  $(TOOLS_VENV)/bin/python -m pytest -n 1 $$clusters

# `tracekit log` into the systems themselves, and addresses of stores on this machine, in an environment of their own.
test-logs:
	$(PYTHON) -m venv $(VENV)-logs
	$(VENV)-logs/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' tensorboard wandb mlflow-skinny sqlalchemy alembic \
	  'moto[server]' s3fs aiohttp paramiko asyncssh
	TRACEKIT_TOOLS='logs stores' $(VENV)-logs/bin/python -m pytest tests/logs tests/stores

# The site, into build/site: a warning (a link that leads nowhere, a page that is in no menu) is an error, notebooks are run.
docs: $(VENV)-docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict
	TRACEKIT_TOOLS=docs $(VENV)-docs/bin/python -m pytest tests/docs

$(VENV)-docs/.ready: pyproject.toml setup.py $(wildcard tracekit/*/*.c tracekit/*/*.h tracekit/readers/*/*.c tracekit/readers/*/*.h)
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

# capture beside verl's own profiler, role by role and mode by mode, in several versions of verl; and verl's trainer asked for a
# profile while it runs. Too long for every change: the nightly workflow runs it.
test-verls: tools
	for version in $(OLDER_VERLS); do \
	  $(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(TOOLS_VENV)/verls/$$version verl==$$version || exit 1; \
	done
	TRACEKIT_VERLS=$(TOOLS_VENV)/verls TRACEKIT_TOOLS=verl \
	  $(TOOLS_VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile tests/capture/test_matrix.py tests/capture/test_ppo_run.py

# The fast tests with the lowest versions that pyproject.toml allows, in a venv of their own; but for those of the import
# contracts, whose tool wants newer ones.
check-lowest: $(LOWEST)/.test
	$(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow' --ignore tests/test_layers.py

$(LOWEST)/.test: pyproject.toml setup.py tests/lowest.txt $(wildcard tracekit/*/*.c tracekit/*/*.h tracekit/readers/*/*.c tracekit/readers/*/*.h)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c tests/lowest.txt -e '.[test]' -e ./capture
	touch $@

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The C scanner under address and undefined-behaviour sanitizers, in a copy of the tree with a venv of its own.
sanitize: $(VENV)/.dev
	PYTHON=$(PYTHON) bash tests/sanitize.sh

# Pinned by hash for Python 3.11 on Linux x86-64; elsewhere: make wheels RELEASE_TOOLS='build abi3audit …'.
RELEASE_TOOLS = --require-hashes -r .github/release-tools.txt

# What is published: both wheels, built, repaired, checked and tried; every C file compiled for every platform of the wheels.
wheels:
	$(PYTHON) -m venv $(VENV)-wheels
	$(VENV)-wheels/bin/python -m pip install --quiet --disable-pip-version-check $(RELEASE_TOOLS)
	VENV=$(VENV)-wheels PATH=$(abspath $(VENV)-wheels)/bin:$$PATH bash tests/cross/wheels.sh

fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz_readers.py --cases 20000 --seed $(SEED)

# Do tests notice wrong arithmetic? Mutants of the numeric modules, drawn by SEED; 85 % have to be killed.
mutate: $(VENV)/.dev
	$(BIN)/python tests/mutate.py --sample $(MUTANTS) --seed $(SEED)

bench: $(VENV)/.dev
	$(BIN)/python tests/benchmarks/run.py
	$(BIN)/python tests/benchmarks/analyze_run.py

# Reports of all examples, into build/reports/; the two samples of reports/ are replaced too.
reports: $(VENV)/.dev
	$(BIN)/python examples/render_reports.py

clean:
	rm -rf build dist *.egg-info $(VENV) $(TOOLS_VENV) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
