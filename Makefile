# make setup      virtual environment in .venv with `vidpipe` and `trainer` in it
# make demo       footage -> cached latents -> a small trained model -> a sample (SOURCE=FOLDER for your own footage)
# make test       the tests that CI runs; make test-long the deep ones; make lint ruff and mypy
SHELL := bash
VENV ?= .venv
# cpu, or cuda on a machine with an NVIDIA GPU
EXTRA ?= cpu
OUT ?= demo
SOURCE ?=
PYTEST_ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRA)

.PHONY: setup demo test test-long lint
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	bash scripts/setup.sh $(VENV) $(EXTRA)
	@touch $@

demo: $(STAMP)
	bash scripts/demo.sh $(BIN) $(OUT) "$(SOURCE)"

test: $(STAMP)
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest --long --timeout 3600 -m long $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
