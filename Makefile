# Everything runs in .venv, which is made on first use. Another Python: make PYTHON=python3.13 setup

PYTHON      ?= python3
PYTEST_ARGS ?= -n 2 --dist loadfile
VENV        := .venv
BIN         := $(VENV)/bin
CODE        := src tests docs/hooks $(sort $(dir $(wildcard benchmarks/*.py examples/*.py)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # two installs into one .venv at a time would spoil it
.PHONY: help quickstart setup lint format test test-all bench docs docs-serve clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

quickstart: $(VENV)/.samples ## Install what training needs and train on the embedded digits, into runs/quickstart
	$(BIN)/samegrad train --out runs/quickstart

setup: $(VENV)/.installed ## Install the package with everything for development into .venv

lint: $(VENV)/.installed ## Check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE) || $(BIN)/mypy --no-incremental $(CODE)  # it has crashed when its cache was cold

format: $(VENV)/.installed ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint ## Run lint and the tests, without the slow ones and those for GPUs; in one process: PYTEST_ARGS=
	$(BIN)/python -m pytest -m "not slow and not gpu" $(PYTEST_ARGS)

test-all: lint ## Run lint and all tests; those for GPUs skip themselves where there is none
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.samples ## Measure start-up, a step, loading, checkpoints, sums, shares; with Fashion-MNIST: make bench DATA_DIR=...
	$(BIN)/python benchmarks/bench_start.py
	$(BIN)/python benchmarks/bench_step.py
	$(BIN)/python benchmarks/bench_loading.py $(if $(DATA_DIR),--data-dir '$(DATA_DIR)')
	$(BIN)/python benchmarks/bench_checkpoint.py
	$(BIN)/python benchmarks/bench_collectives.py
	$(BIN)/python benchmarks/bench_shares.py

docs: $(VENV)/.docs ## Build the documentation into site/; start with site/index.html, no network is needed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open site/index.html in a browser."

docs-serve: $(VENV)/.docs ## Show the documentation on http://127.0.0.1:8000, built anew when a file changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

clean: ## Remove caches and build output; .venv and runs stay
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests docs $(wildcard benchmarks examples) -type d -name __pycache__ -prune -exec rm -rf {} +

# Four stamps. Development includes what quickstart and docs need, so it sets theirs too; any order works.

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing samegrad and its development tools into $(VENV). With PyTorch to fetch, this takes minutes."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.samples $(VENV)/.docs $@

$(VENV)/.samples: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing samegrad and its sample data into $(VENV). With PyTorch to fetch, this takes minutes."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[samples]'
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing samegrad and what builds its documentation into $(VENV). With PyTorch to fetch, this takes minutes."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. Install Python 3.11 or newer," \
	       "or name one: make PYTHON=python3.13 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "samegrad needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	       "Name a newer one: make PYTHON=python3.13 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the modules venv and ensurepip. On Debian and Ubuntu install the package" \
	       "$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" \
	       "(or python3-venv), then run make again." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
