# Every target works as the first command after a clone; all it needs is Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint dist clean install

# torch comes first and by its exact version: anything newer pulls in gigabytes of GPU libraries.
$(VENV)/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/pip install -q -e . -c constraints.txt
	touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/pip install -q -e ".[dev]" -c constraints.txt
	touch $@

install: $(VENV)/base

# The main job: several methods on the embedded task, one table.
demo: $(VENV)/base
	rm -rf runs/demo
	$(BIN)/protolith sweep --config demo --methods fedavg,fpl,i2pfl,fedapc,fedcode --out runs/demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation -o dist .

clean:
	rm -rf $(VENV) build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
