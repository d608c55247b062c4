# Every target works as the first command after a clone; all it needs is Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test browser test-browser lint bench docs dist clean install

# torch comes first and by its exact version: anything newer pulls in gigabytes of GPU libraries.
$(VENV)/base: pyproject.toml constraints.txt
	@echo "installing into $(VENV), once: 1.7 GB, most of it torch; this takes some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/pip install -q -e ".[report,pretrained,onnx]" -c constraints.txt
	touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/pip install -q -e ".[dev]" -c constraints.txt
	touch $@

install: $(VENV)/base

# The main job: several methods on the embedded task, one table.
demo: $(VENV)/base
	rm -rf runs/demo
	$(BIN)/protolith sweep --config demo --methods fedavg,fpl,i2pfl,fedapc,strata --out runs/demo --report
	@echo "FedCode needs twice as many rounds and is left out; with it: $(BIN)/protolith sweep --config demo --methods fedavg,fpl,i2pfl,fedapc,fedcode,strata --rounds 40 --out runs/all"
	@echo "on your own images, in folders photos/SITE/CLASS/image: $(BIN)/protolith data check photos, then $(BIN)/protolith run --task photos --out runs/first, which takes a pretrained network and the settings that fit"

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto

# A browser for the tests of the report; where it cannot be installed, those tests skip.
browser:
	command -v chromium chromedriver || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q chromium chromium-driver; } || true

test-browser: browser $(VENV)/dev
	$(BIN)/python -m pytest tests/report/test_browser.py

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Speed and memory as ratios, beside the committed ones. DATA: a directory with Office-Caltech10.
DATA ?=
bench: $(VENV)/base
	$(BIN)/pip install -q -e ".[formats]" -c constraints.txt
	$(BIN)/python -m benchmarks.speed --data "$(DATA)" --out runs/bench.json --against results/bench.json

# The documentation as a site in build/site; a broken link is an error.
docs: $(VENV)/base
	$(BIN)/pip install -q -e ".[docs]" -c constraints.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

dist: $(VENV)/dev
	rm -rf dist build/lib build/bdist*  # what an earlier build left would be packed again
	$(BIN)/python -m build --wheel --no-isolation -o dist .

clean:
	rm -rf $(VENV) build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
