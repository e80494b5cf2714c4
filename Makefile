# Two commands: `make up` serves a model through a real prefill + decode pair, `make test` runs lint, types and tests.
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := python sgl-kernel test benchmark setup.py

.PHONY: help up down install test lint types docs build clean

help:
	@echo "make up     install, build the demo model, start prefill + decode + gateway, ask one question"
	@echo "make down   stop them"
	@echo "make test   install, then lint, types and tests"
	@echo "make docs   regenerate the generated pages"
	@echo "make build  wheel and sdist in dist/"

$(VENV)/installed: pyproject.toml setup.py tools/find-python
	python="$$(tools/find-python)" && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --editable '.[dev]'
	touch $@

install: $(VENV)/installed

up: install
	$(BIN)/sglang-pd up --detach --ask "What is the capital of France?"

down: install
	$(BIN)/sglang-pd down

lint: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: install
	$(BIN)/mypy python/sglang_pd python/sglang sgl-kernel/python benchmark

test: lint types
	$(BIN)/pytest

docs: install
	$(BIN)/python -m sglang_pd.environ > docs/environment.md
	$(BIN)/python -m sglang.srt.disaggregation.reliable.families > docs/metrics.md
	cd test && "$(abspath $(BIN))/python" -m harness.streams.picture ../docs/overlap.md

build: install
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info python/*.egg-info
