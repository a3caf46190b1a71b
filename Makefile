# Targets: run (the first one), chat-free and offline after the first time; test; check (what CI runs); fix.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= Explain in three sentences why the sky is blue.
RUN_FLAGS ?= --max-tokens 256

.DEFAULT_GOAL := help
.PHONY: help run test check fix clean

help:
	@echo "make run [PROMPT=…]   install, bring the default model, answer a prompt"
	@echo "make test             install the test extras and run all tests"
	@echo "make check            format, lint, types, import contracts, tests: what CI runs"
	@echo "make fix              format and repair what can be repaired"
	@echo "make clean            remove the virtual environment and caches"

run: $(VENV)/.installed
	@$(BIN)/edgedec run --stats $(RUN_FLAGS) -- "$$EDGEDEC_PROMPT"
run: export EDGEDEC_PROMPT = $(PROMPT)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check edgedec tests scripts
	$(BIN)/ruff check edgedec tests scripts
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

fix: $(VENV)/.installed-dev
	$(BIN)/ruff format edgedec tests scripts
	$(BIN)/ruff check --fix edgedec tests scripts

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.installed: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py $(VENV)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py $(VENV) --dev
	@touch $(VENV)/.installed $@
