# Every target sets up what it needs on a fresh machine: a virtual environment, the pinned packages, system packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $(INSTALLED)

demo: $(INSTALLED)
	rm -rf demo
	$(BIN)/sfumato demo --out demo

lint: $(INSTALLED)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

test: $(INSTALLED) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis demo
