# The verbs of this project; `make` alone prints them. Everything runs inside .venv, which the
# first verb makes. ARGS passes options on: make diff ARGS='rms_norm -p T=7'
#
#   PYTHON=python3.12   the interpreter of a new .venv, 3.11 or newer
#   CUDA=12, CUDA=13    install CuPy for that CUDA; CUDA=none installs none. By default the driver
#                       decides: without one, kernels run on the CPU and CuPy stays out.

PYTHON ?= python3
CUDA ?= auto
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORE := .venv/.installed-$(CUDA)
DEV := .venv/.installed-dev
COMPILE := .venv/.installed-compile

.DEFAULT_GOAL := help
.PHONY: help setup diff demo check test compile gpu bench report format clean

help:  ## print these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(CORE) $(DEV)  ## make .venv with everything that development needs

diff: $(CORE)  ## the main job: every kernel against its oracle, on the backend that is there
	$(BIN)/dsv4-lab kernel-diff $(ARGS)

demo: $(CORE)  ## a small trained model writes a function body, with and without its drafter
	$(BIN)/dsv4-lab demo $(ARGS)

check: $(CORE) $(DEV)  ## format, lint, types, architecture; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	find cuda -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' | sort \
	  | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python -m lab.report.readme --check
	$(BIN)/python -m pytest -q tests/test_architecture.py

test: $(CORE) $(DEV)  ## every test that needs no GPU
	$(BIN)/python -m pytest -n auto --dist worksteal -p no:benchmark \
	  -m 'not gpu and not gpu2 and not speed and not stress' $(ARGS)

compile: $(CORE) $(COMPILE)  ## every kernel for every architecture; no GPU needed
	$(BIN)/dsv4-lab compile --all $(ARGS)

gpu: $(CORE) $(DEV)  ## the contract tests on a GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

bench: $(CORE) $(DEV)  ## time every kernel on the backend that is there
	$(BIN)/python -m pytest --benchmark-only $(ARGS)

report: $(CORE)  ## write the kernel table of the README and docs/limits.md from docs/measured
	$(BIN)/python -m lab.report.readme
	$(BIN)/python -m lab.report.limits

format: $(CORE) $(DEV)  ## format Python and CUDA sources in place
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .
	find cuda -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' \
	  | xargs $(BIN)/clang-format -i

clean:  ## remove build products and tool caches; records and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find cuda dsv4 lab oracle tests -name __pycache__ -prune -exec rm -rf {} +

# A CuPy that the interpreter has already is used as it is: the .venv then sees its packages.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "$(PYTHON) is older than Python 3.11 or missing; name another: make PYTHON=python3.12" >&2; \
	  exit 2; }
	@if $(PYTHON) -c 'import cupy' 2> /dev/null; then site=--system-site-packages; fi; \
	  $(PYTHON) -m venv $$site .venv || { echo \
	  "no .venv could be made; on Debian and Ubuntu install the package python3-venv" >&2; \
	  rm -rf .venv; exit 2; }

$(CORE): pyproject.toml | $(BIN)/python
	@extra=$$(sh .ci/extra $(CUDA) $(BIN)/python) && echo "installing dsv4-lab$$extra" \
	  && $(PIP) --editable ".$$extra"
	@touch $@

$(DEV): pyproject.toml | $(CORE)
	@echo 'installing dsv4-lab[dev]' && $(PIP) --editable '.[dev]'
	@touch $@

$(COMPILE): pyproject.toml | $(CORE)
	@$(BIN)/python -c 'import cupy' 2> /dev/null \
	  || { echo 'installing dsv4-lab[compile]' && $(PIP) --editable '.[compile]'; }
	@touch $@
