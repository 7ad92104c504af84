# The two commands that a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
PIP_FLAGS ?=
WORKERS ?= 3 # for two cores: tests of processes that start and end wait a good deal
CHAOS_MINUTES ?= 1
# Tests start hundreds of processes, each of which would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install $(PIP_FLAGS) --quiet --constraint constraints.txt
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: demo test test-fast test-slow coverage test-gpu test-gpu-studies chaos docs screenshots install install-dev lint clean

demo: $(VENV)/.installed
	$(BIN)/automl launch examples/digits.yaml

# Tests that have to run alone stand in a group of their own, which one worker runs one after the other.
test: $(VENV)/.installed-dev
	$(PYTEST)

# Tests of less than a second that start no process, for whoever edits.
test-fast: $(VENV)/.installed-dev
	$(PYTEST) -m 'small and not slow'

# Statistics over many studies, and long rows of trials; `make test` runs a smaller part of each.
test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow

# Lines and branches of the product that `make test` runs, in all processes that end by themselves. Takes twice as long.
coverage: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadgroup -o timeout=900
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# What only a GPU can show of the trainer. It needs torch, numpy, psutil and pytest; GPU_PYTHON names the Python that has them.
# One GPU has eight minutes; with more of them there are more tests, so give them more.
GPU_PYTHON ?= $(BIN)/python
GPU_SECONDS ?= 480
test-gpu:
	$(GPU_PYTHON) -c "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'make test-gpu: no GPU is visible to torch here')"
	timeout --kill-after 5 $(GPU_SECONDS) env AUTOML_TEST_GPU_SECONDS=$$(( $(GPU_SECONDS) - 60 )) \
		$(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini --confcutdir tests/gpu --rootdir . tests/gpu \
		--ignore tests/gpu/test_whole_studies.py

# Whole studies on a GPU, several at a time; they need what `make test` needs.
GPU_WORKERS ?= 8
test-gpu-studies: $(VENV)/.installed-dev
	env AUTOML_TEST_GPU_SECONDS=3600 $(BIN)/python -m pytest -n $(GPU_WORKERS) \
		-c tests/gpu/pytest.ini --confcutdir tests/gpu --rootdir . tests/gpu/test_whole_studies.py

# Real small studies while their processes, store and disk fail; then an audit. `benchmarks/README.md` has more of it.
chaos: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/chaos.py --minutes $(CHAOS_MINUTES) --seed 1 --store sqlite
	$(BIN)/python benchmarks/chaos.py --minutes $(CHAOS_MINUTES) --seed 2 --store postgresql

# The documentation site, into build/site; a dead link or anchor is an error.
docs: $(VENV)/.installed-dev
	env PYTHONPATH=. $(BIN)/zensical build --clean --strict

# The pictures of README and docs, from the report of the demo; needs Chromium.
screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.screenshots

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.support.plain_words
	$(BIN)/mypy

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# What a user needs; the tests' tools come with `.installed-dev`.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) artifacts automl.db* mlflow.db* .pytest_cache .mypy_cache .ruff_cache
