# The vocabulary of this project. PYTHON names the interpreter that .venv is made from.
PYTHON ?= python3
BIN := .venv/bin
SET_UP := $(PYTHON) scripts/set_up.py
PYTEST := $(BIN)/python -m pytest

.PHONY: help demo check test test-maven test-delta test-cluster test-package test-versions test-oldest test-later test-connect test-peers test-faults fuzz soak bench docs constraints clean

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

# What a target collects: looking at all tests takes each of its processes ten seconds.
WITH_SPARK := tests/spark tests/cli/test_object_store.py tests/test_docs.py
WITH_DELTA := tests/tables tests/spark/test_cluster_delta.py tests/spark/test_follow_delta.py

test: check ## lint, types, and every test that needs no Maven package
	$(PYTEST) -n 3 -m "not spark and not maven and not faults and not peers and not thorough and not browser and not cluster and not package and not connect"
	$(PYTEST) -n 3 -m "(thorough or browser) and not spark and not maven and not faults"
	$(PYTEST) -n 2 --dist loadfile -m "spark and not maven and not faults" $(WITH_SPARK)

test-maven: ## tests that need packages from a Maven repository; each says why where it is skipped
	@$(SET_UP) test
	@$(PYTEST) -m maven tests/spark tests/windows; code=$$?; if [ $$code -ne 0 ] && [ $$code -ne 5 ]; then exit $$code; fi

test-delta: ## tests of the engine on Spark, in an environment with the Spark that Delta's jars are for
	@$(SET_UP) test
	@$(SET_UP) delta
	.bench/envs/delta/bin/python -m pytest -n 2 --dist loadfile -m maven --durations=10 $(WITH_DELTA)

KINESIS_LOCAL := kinesis-local@0.6.2

test-peers: ## the local Kinesis beside moto and kinesis-local, which npm installs into .bench/peers
	@$(SET_UP) test
	@if command -v npm >/dev/null; then mkdir -p .bench/peers && \
	npm install --silent --no-audit --no-fund --prefix .bench/peers $(KINESIS_LOCAL) || \
	echo "$(KINESIS_LOCAL) could not be installed: its tests are skipped."; \
	else echo "There is no npm: the tests beside $(KINESIS_LOCAL) are skipped."; fi
	$(PYTEST) -m peers tests/kinesis

test-cluster: ## a standalone Spark of three processes, whose Python lacks headpond
	@$(SET_UP) test
	$(PYTEST) -m cluster tests/spark

test-package: ## headpond as a wheel, in an environment with nothing but what it requires
	@$(SET_UP) test
	@$(SET_UP) package
	$(PYTEST) -m package tests/packaging

SOME_SPARK := tests/spark/test_source.py tests/spark/test_source_secrets.py tests/spark/test_measured_run.py tests/spark/test_follow.py tests/spark/test_join.py

test-versions: test-oldest test-later ## the oldest Spark that is supported, and the newest Python that is there

test-oldest: ## the oldest Spark that is supported
	@$(SET_UP) test
	@$(SET_UP) delta
	.bench/envs/delta/bin/python -m pytest -n 2 --dist loadfile -m "spark and not maven and not faults" $(SOME_SPARK)

test-later: ## the newest Python that is there
	@$(SET_UP) test
	@$(SET_UP) later
	@if [ -x .bench/envs/later/bin/python ]; then \
	.bench/envs/later/bin/python -m pytest -n 3 -m "not spark and not maven and not faults and not peers and not thorough and not browser and not cluster and not package and not connect" && \
	.bench/envs/later/bin/python -m pytest -m "spark and not maven and not faults" tests/spark/test_follow.py; \
	else echo "There is no newer Python here: its tests are skipped."; fi

test-connect: ## what works over Spark Connect, and what is refused
	@$(SET_UP) test
	@$(SET_UP) connect
	.bench/envs/connect/bin/python -m pytest -m connect tests/spark

test-faults: ## random kills, minutes long
	@$(SET_UP) test
	$(PYTEST) -n 2 --dist loadfile -m faults tests/spark tests/windows

fuzz: ## feed mutated aggregates to the KPL decoder; FUZZ_SECONDS bounds it
	@$(SET_UP) fuzz
	@mkdir -p .bench/fuzz/corpus
	$(BIN)/python tests/fuzz/fuzz_kpl.py -max_total_time=$(or $(FUZZ_SECONDS),600) -artifact_prefix=.bench/fuzz/ .bench/fuzz/corpus

soak: ## pipelines and a join under random faults and kills, then the accounts; SOAK_SECONDS bounds it
	@$(SET_UP) test
	@$(BIN)/python tests/soak/soak.py

FIGURES := .bench/figures

bench: ## every benchmark (AREAS="kpl qldb": those), beside its peers where they can be had; writes docs/performance-figures.md
	@$(SET_UP) test
	@$(BIN)/python bench/figures.py run $(FIGURES) $(AREAS)
	@$(BIN)/python bench/figures.py page $(FIGURES) docs/performance-figures.md

docs: ## build the documentation into site/
	@$(SET_UP) test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

constraints: ## resolve every pinned version anew
	@$(SET_UP) constraints

clean: ## remove .venv and everything that was built
	rm -rf .venv .bench site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
