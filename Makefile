# `make demo`, `make test` and `make docs` each do all the set-up they need and are quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

.PHONY: demo test docs dist check-dist test-lowest quick lint types layers format bench clean

demo: $(READY)
	$(BIN)/quernel demo --out demo --force

# Tests of one file go to one process, so that what they share is made once.
test: lint types layers
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# An environment of its own with exactly the lower bounds that pyproject.toml declares.
test-lowest: $(READY)
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(BIN)/python tools/lowest.py app onnx dask > $(VENV)-lowest/pins.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --editable . --requirement $(VENV)-lowest/pins.txt
	$(VENV)-lowest/bin/python -W ignore tools/smoke.py

quick: lint types layers
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks

# The site, in build/docs: every example of the gallery is run, and warnings are errors. Pages of names that are gone go.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	rm -rf docs/api
	$(BIN)/python -m sphinx -b html -d build/doctrees --fail-on-warning --keep-going -q docs build/docs
	@echo "The site is in build/docs: open build/docs/index.html"

# Wheel and source distribution, in dist.
dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# What was built, in an empty environment of $(PYTHON): without extras, the demo, tests of the source distribution.
check-dist: dist
	$(BIN)/python tools/check_dist.py --python $(PYTHON)

clean:
	rm -rf $(VENV) $(VENV)-lowest demo build dist docs/api docs/auto_gallery .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "quernel needs Python 3.11 or newer; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# pip older than 25.1 cannot read dependency groups; the marker file makes set-up run once per change of pyproject.toml.
$(READY): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[app]" --group dev
	touch $@
