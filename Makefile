# The vocabulary of this project. PYTHON names the interpreter that .venv is made from.
PYTHON ?= python3
BIN := .venv/bin
SET_UP := $(PYTHON) scripts/set_up.py
PYTEST := $(BIN)/python -m pytest
# Hundreds of processes load the same modules in a run: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check quick test test-thorough test-oldest test-newest test-package test-all test-faults fuzz soak audit bench docs screenshots package constraints clean

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

# pyproject.toml says what the markers mean; a test holds that the targets leave no test out.
quick: check ## lint, types, and the tests without a JVM that take moments: while you work
	$(PYTEST) -n 2 -m "not (spark or maven or slow or thorough or elsewhere)"

test: check ## lint, types, and every capability once, Spark included: before you push
	$(PYTEST) -n 2 -m "not (spark or maven or thorough or elsewhere)"
	$(PYTEST) -n 2 --dist loadfile -m "spark and not (maven or thorough or elsewhere)"

FROM_NPM := kinesis-local@0.6.2 azurite@3.35.0

test-thorough: ## long properties, random kills, clusters, other stand-ins for Kinesis and Azure, pages in a browser
	@$(SET_UP) test
	@mkdir -p .bench/peers
	npm install --silent --no-audit --no-fund --prefix .bench/peers $(FROM_NPM)
	@# Four at a time: many wait for a process that was killed, or for a time to pass.
	$(PYTEST) -n 4 -m "thorough and not (spark or maven or elsewhere)"
	$(PYTEST) -n 2 --dist loadfile -m "thorough and spark and not (maven or elsewhere)"

SOME_SPARK := tests/spark/test_events.py tests/spark/test_source.py tests/spark/test_source_secrets.py tests/spark/test_follow.py \
	tests/spark/test_join.py::test_an_outer_join_over_several_batches tests/spark/test_join.py::test_inspecting_and_rescaling_a_checkpoint

test-oldest: ## the oldest packages: the quick tests, what needs Maven (Delta's reader, Kafka Streams as peer), Spark Connect, the main jobs
	@$(SET_UP) test
	@$(SET_UP) oldest
	.bench/envs/oldest/bin/python -m pytest -n 2 --ignore tests/house -m "not (spark or maven or slow or thorough or elsewhere)"
	.bench/envs/oldest/bin/python -m pytest -n 2 --dist loadfile -m maven
	.bench/envs/oldest/bin/python -m pytest -m elsewhere tests/spark
	.bench/envs/oldest/bin/python -m pytest -n 2 --dist loadfile -m "spark and not (maven or thorough or elsewhere)" $(SOME_SPARK)

test-newest: ## the newest Python that is there: the quick tests, and following a stream
	@$(SET_UP) test
	@$(SET_UP) newest
	.bench/envs/newest/bin/python -m pytest -n 2 --ignore tests/house -m "not (spark or maven or slow or thorough or elsewhere)"
	.bench/envs/newest/bin/python -m pytest -m "spark and not (maven or thorough or elsewhere)" tests/spark/test_follow.py

test-package: ## headpond as a wheel, in an environment with nothing but what it requires
	@$(SET_UP) test
	@$(SET_UP) package
	$(PYTEST) -m elsewhere tests/packaging

test-all: test test-thorough test-oldest test-package test-newest soak docs audit ## everything

test-faults: ## Kinesis: random schedules of splits, merges, kills, replaced credentials and faults, FAULT_ROUNDS of each
	@$(SET_UP) test
	HEADPOND_FAULT_ROUNDS=$(or $(FAULT_ROUNDS),10) $(PYTEST) -n 2 tests/kinesis/test_schedules.py tests/spark/test_kill.py
	$(PYTEST) tests/spark/test_source_faults.py

fuzz: ## mutated records through the whole path (FUZZ_RECORDS), and aggregates to the KPL decoder (FUZZ_SECONDS)
	@$(SET_UP) fuzz
	$(BIN)/python -m tests.fuzz.whole_path --records $(or $(FUZZ_RECORDS),1000000)
	@mkdir -p .bench/fuzz/corpus
	$(BIN)/python -m tests.fuzz.fuzz_kpl -max_total_time=$(or $(FUZZ_SECONDS),60) -artifact_prefix=.bench/fuzz/ .bench/fuzz/corpus

soak: ## pipelines and a join under random faults and kills, then the accounts; SOAK_SECONDS bounds it
	@$(SET_UP) test
	@$(BIN)/python -m tests.soak.soak

audit: ## known vulnerabilities of what is pinned, where the advisories can be reached
	@$(SET_UP) audit
	@$(BIN)/python scripts/audit.py

FIGURES := .bench/figures

bench: ## every benchmark (AREAS="kpl qldb": those), beside its peers where they can be had; writes docs/performance-figures.md and its chart
	@$(SET_UP) test
	@$(BIN)/python bench/figures.py run $(FIGURES) $(AREAS)
	@$(BIN)/python bench/figures.py page $(FIGURES) docs/performance-figures.md
	@$(BIN)/python bench/figures.py chart docs/performance-figures.md docs/assets

docs: ## build the documentation into site/
	@$(SET_UP) test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: ## the pictures of the docs, from real runs, with headless Chromium
	@$(SET_UP) test
	@$(BIN)/python scripts/screenshots.py docs/assets

package: ## the wheel, the source archive and the release notes, checked, into dist/
	@$(SET_UP) test
	@$(BIN)/python scripts/package.py dist

constraints: ## resolve every pinned version anew
	@$(SET_UP) constraints

clean: ## remove .venv and everything that was built
	rm -rf .venv .bench site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
