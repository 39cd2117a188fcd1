# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt
STAMP_INPUTS := pyproject.toml constraints.txt
# All tests, on all cores but not on very many: each process compiles for itself.
PYTEST_ARGS ?= --numprocesses=auto --maxprocesses=4 --dist=worksteal

# Real data sets are optional: tests and experiments that need them say so and skip without them.
ifneq ($(wildcard ../shared/data),)
export POLYAD_DATA ?= $(abspath ../shared/data)
endif

# How long to attack, and further arguments, such as --seed 1.
MINUTES ?= 30

.PHONY: demo test lint types pytest fuzz bench docs clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo   fit a model to scikit-learn's digits and write demo/report.html"
	@echo "make test   lint, type-check and run every test"
	@echo "make fuzz   attack with random cases for MINUTES=30 (FUZZ_ARGS='--seed 1 --only inputs')"
	@echo "make bench  write speed ratios against peer packages, in half an hour (FULL=1: all, in hours)"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make clean  remove environments, caches and everything that was generated"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("polyad needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# A stamp for each set of extras: a second run installs nothing.
$(VENV)/.installed-%: $(STAMP_INPUTS) | $(BIN)/python
	@echo "installing polyad[$*] into $(VENV)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable ".[$*]"
	@touch $@

demo: $(VENV)/.installed-report
	@$(BIN)/python examples/digits.py demo

# Types are checked beside the tests: each alone would leave a processor idle for a minute.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

# Processes that tests start use what the first one has made of the modules.
pytest: $(VENV)/.installed-test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

$(BENCH_VENV)/.installed: $(STAMP_INPUTS)
	$(PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --editable ".[bench]"
	@touch $@

bench: $(BENCH_VENV)/.installed
	@$(BENCH_VENV)/bin/python -m benchmarks $(if $(FULL),--full) $(BENCH_ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) $(BENCH_VENV) demo docs/_build docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks examples experiments -name __pycache__ -type d -prune -exec rm -rf {} +
