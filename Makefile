# Every target sets up what it needs on a fresh machine: a virtual environment, the pinned packages, system packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo dist docs lock wheelhouse test test-long mutants lint check browser clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $(INSTALLED)

# In an environment of its own, with what a user installs and no developers' tools.
demo: .venv-demo/installed
	rm -rf demo
	.venv-demo/bin/sfumato demo --out demo

.venv-demo/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install -q -c constraints.txt .
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check src tests benchmarks docs/tools
	$(BIN)/ruff format --check src tests benchmarks docs/tools
	$(BIN)/mypy

# Numbers of the pages against their files, links, commands, imports: a line for each finding, and each old result.
check: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python docs/tools/check.py

# The site in site/, read from disk: open site/index.html. A link or an anchor that leads nowhere is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The sdist and the wheel.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

# What pip checks with --require-hashes: every package that a user's installation needs, by its hash.
lock: $(INSTALLED)
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --extra dicom --extra eval --extra sign --extra web -c constraints.txt \
	  --generate-hashes --no-annotate --no-header -o requirements.lock

# Sfumato and every package that it needs, for machines without a network (docs/how-to/install-offline.md).
wheelhouse: $(INSTALLED)
	rm -rf wheelhouse
	$(BIN)/python -m pip wheel -q -c constraints.txt -w wheelhouse '.[dicom,eval,sign,web]'

# The pages are tested in a real browser.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; \
	else \
	  echo "The browser tests need Chromium. Install it as root (apt-get install chromium), then run make again." >&2; exit 1; \
	fi

# In CI a test that failed is run once more; tests/conftest.py notes those that pass then, and .ci/run prints them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(if $(filter true,$(CI)),--reruns 1)

test: $(INSTALLED)
	$(MAKE) --jobs=2 --output-sync lint check
	$(PYTEST)

# The browser, journeys through the command line, several processes, commands of the documentation; minutes.
test-long: $(INSTALLED) browser
	$(PYTEST) -m long

# Plants known defects one at a time and runs the test that must fail for each.
mutants: $(INSTALLED)
	$(BIN)/python mutants/run.py

clean:
	rm -rf $(VENV) .venv-demo .mypy_cache .ruff_cache .hypothesis demo dist site wheelhouse
