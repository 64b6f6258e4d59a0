# The vocabulary of this project. PYTHON names the interpreter that .venv is made from.
PYTHON ?= python3
BIN := .venv/bin
SET_UP := $(PYTHON) scripts/set_up.py
PYTEST := $(BIN)/python -m pytest

.PHONY: help demo check test test-maven test-delta test-peers test-faults fuzz soak bench docs constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: ## set up, then the whole pipeline on embedded parts: local Kinesis, Spark, tables
	@$(SET_UP) run --java-if-needed
	@$(BIN)/headpond demo

check: ## lint and types
	@$(SET_UP) test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check ## lint, types, and every test that needs no Maven package
	$(PYTEST) -n 3 -m "not spark and not maven and not faults and not peers and not thorough and not browser"
	$(PYTEST) -n 3 -m "(thorough or browser) and not spark and not maven and not faults"
	$(PYTEST) -m "spark and not maven and not faults"

test-maven: ## tests that need packages from a Maven repository; each says why where it is skipped
	@$(SET_UP) test
	@$(PYTEST) -m maven; code=$$?; if [ $$code -ne 0 ] && [ $$code -ne 5 ]; then exit $$code; fi

test-delta: ## tests of the engine on Spark, in an environment with the Spark that Delta's jars are for
	@$(SET_UP) test
	@$(SET_UP) delta
	.bench/envs/delta/bin/python -m pytest -m maven

KINESIS_LOCAL := kinesis-local@0.6.2

test-peers: ## the local Kinesis beside moto and kinesis-local, which npm installs into .bench/peers
	@$(SET_UP) test
	@if command -v npm >/dev/null; then mkdir -p .bench/peers && \
	npm install --silent --no-audit --no-fund --prefix .bench/peers $(KINESIS_LOCAL) || \
	echo "$(KINESIS_LOCAL) could not be installed: its tests are skipped."; \
	else echo "There is no npm: the tests beside $(KINESIS_LOCAL) are skipped."; fi
	$(PYTEST) -m peers

test-faults: ## random kills, minutes long
	@$(SET_UP) test
	$(PYTEST) -m faults

fuzz: ## feed mutated aggregates to the KPL decoder; FUZZ_SECONDS bounds it
	@$(SET_UP) fuzz
	@mkdir -p .bench/fuzz/corpus
	$(BIN)/python tests/fuzz/fuzz_kpl.py -max_total_time=$(or $(FUZZ_SECONDS),600) -artifact_prefix=.bench/fuzz/ .bench/fuzz/corpus

soak: ## a long run under random faults (not there yet)
	@echo "make soak is not there yet: it comes with the QLDB tables and the windowed join that it is to run beside the rest." >&2; exit 2

bench: ## every benchmark, with its peers where they can be installed
	@$(SET_UP) test
	@for driver in bench/*/run.py; do echo "== $$driver"; $(BIN)/python $$driver || exit 1; done

docs: ## build the documentation into site/
	@$(SET_UP) test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

constraints: ## resolve every pinned version anew
	@$(SET_UP) constraints

clean: ## remove .venv and everything that was built
	rm -rf .venv .bench site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
