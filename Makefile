# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
# Tests start hundreds of processes, which should not compile all of our modules each.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup demo test test-all test-most test-cases attack check-style check-types check-tables tables new-rule compat golden bench screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv and install everything

$(READY): pyproject.toml constraints.txt
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unstuck needs Python 3.11 or newer; set PYTHON=python3.11")'
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,plots,lsp]' --group dev
	@touch $(READY)

demo: $(READY) ## diagnose a training script that does not learn
	@$(BIN)/python -m unstuck.dev demo

test: $(READY) check-style check-types check-tables ## style, types, generated tables and the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: test-most test-cases ## the tests and the long matrices, in two halves that can run apart

test-most: $(READY) check-style check-types check-tables ## all tests but the diagnoses of broken scripts
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/cases

test-cases: $(READY) ## diagnose every broken script of tests/cases, and its fixed twin
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/cases

attack: $(READY) ## spoil files in trials with 300 random scripts, kill 200 of them: make attack ATTACK="--isolation landlock"
	$(BIN)/python bench/attack.py $(ATTACK)

check-style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(READY)
	$(BIN)/python -m mypy

check-tables: $(READY)
	$(BIN)/python -m unstuck.dev tables --check

tables: $(READY) ## rewrite the generated tables in README and docs
	$(BIN)/python -m unstuck.dev tables

new-rule: $(READY) ## write a rule pair: make new-rule CODE=O99 NAME=my-rule FAMILY=convergence
	@test -n "$(CODE)" || { echo "Say which: make new-rule CODE=O99 NAME=my-rule FAMILY=convergence"; exit 2; }
	$(BIN)/python -m unstuck.dev new-rule $(CODE) $(NAME) $(FAMILY)

golden: $(READY) ## compare what a refactoring must not change: make golden ONLY="lint help" ACCEPT=1
	$(BIN)/python -m unstuck.dev golden $(if $(ACCEPT),--accept) $(ONLY)

compat: $(READY) ## try other Pythons and torches; slow, several GB: make compat ONLY="3.12:2.13.0" PYTHONS=/folder/of/pythons
	PYTHONS="$(PYTHONS)" $(BIN)/python -m unstuck.dev compat $(ONLY)

screenshots: $(READY) ## pictures of every section of the page, in build/screenshots; needs Chromium
	$(BIN)/python -m tests.view.screenshots

bench: $(READY) ## measure start-up, lint speed and the watch, as ratios
	$(BIN)/python bench/start.py
	$(BIN)/python bench/lint.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/isolation.py
	$(BIN)/python bench/surface.py
	$(BIN)/python bench/manager.py
	$(BIN)/python bench/view.py

clean: ## remove everything that was generated
	rm -rf $(VENV) .unstuck .mypy_cache .ruff_cache .hypothesis build dist
