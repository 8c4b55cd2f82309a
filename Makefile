# Every target works from a fresh clone; the first one makes .venv, later ones reuse it.

VENV := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-debezium lint format lock coverage system
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(VENV)/warmer demo

# The last line is pytest's summary, its exit status is the verdict.
test: system lint
	$(VENV)/pytest -n 2

lint: system $(INSTALLED)
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports --no-logo
	luacheck --quiet warmer/store/lua

format: $(INSTALLED)
	$(VENV)/ruff check --fix
	$(VENV)/ruff format

coverage: system $(INSTALLED)
	$(VENV)/pytest -n 2 --cov --cov-report=term

# make bench-read runs tests/bench/read.py
bench-%: $(INSTALLED)
	$(VENV)/python -m tests.bench.$(subst -,_,$*)

# A real Debezium on a real PostgreSQL: 200 MB of jars, and Java, which `make test` spares.
test-debezium: system $(INSTALLED)
	.ci/debezium
	$(VENV)/pytest -rP tests/debezium/scenarios.py

# Remakes .ci/requirements.lock from pyproject.toml, newest versions within its bounds.
lock: $(INSTALLED)
	$(VENV)/uv pip compile pyproject.toml --quiet --upgrade --universal \
	  --python-version 3.11 --extra demo --group dev --group bench \
	  --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links \
	  --output-file .ci/requirements.lock

system:
	@.ci/system

$(INSTALLED): pyproject.toml .ci/requirements.lock .ci/venv
	.ci/venv
	@touch $@
