# Everything from nothing but make and Python 3.11 or later. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench up lock clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first Python that is recent enough and can make virtual environments; PYTHON=… chooses another.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$name" && break; \
	done)

help: ## show this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

setup: $(STAMP) ## make the virtual environment, or bring it up to date

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup: no Python 3.11 or later with venv and ensurepip was found; set PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $(STAMP)

demo: setup ## show the whole way from prices to published results
	$(BIN)/finaz demo

test: setup ## run all tests, against a real PostgreSQL and a real broker (Apache Kafka where java and mvn are found)
	$(BIN)/pytest --numprocesses 3 --dist worksteal

lint: setup ## check style, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## put style right where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure, side by side with others
	$(BIN)/finaz bench

up: setup ## start everything on this machine, until Ctrl-C
	$(BIN)/finaz up

lock: setup ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-config --quiet \
		--custom-compile-command 'make lock' --output-file requirements.lock

clean: ## remove what builds and tools left; the virtual environment stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .bench
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
