# The two commands that a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test install lint clean

demo: $(VENV)/.installed
	$(BIN)/automl launch examples/digits.yaml

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) artifacts automl.db* mlflow.db* .pytest_cache .mypy_cache .ruff_cache
