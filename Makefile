# Every target sets up what it needs in .venv; a second run finds it there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TRITON36 := $(VENV)/triton-3.6.0

# What a stamp installs. Stamps are per set of extras.
EXTRAS_demo := demo
EXTRAS_bench := demo,bench
EXTRAS_test := test,dev,demo

.DEFAULT_GOAL := help
.PHONY: help venv demo test checks test-long test-gpu random random-gpu sanitize-gpu sanitize-cpu filecheck \
	triton36 lint format typecheck bench bench-cpu bench-host bench-gpt clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | \
		sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("flexc needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing flexc[$(EXTRAS_$*)] into $(VENV), which takes a minute or two"
	$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS_$*)]'
	@touch $@

# A second triton, without torch or anything else, in a folder of its own: put
# first on PYTHONPATH it takes the place of the newest.
$(TRITON36)/installed: | $(BIN)/python
	$(PIP) --no-deps --target $(TRITON36) triton==3.6.0
	@touch $@

venv: $(VENV)/installed-test ## create .venv with everything that development needs

demo: $(VENV)/installed-demo ## compile a dozen attention variants, run a real model, train one
	$(BIN)/python -m bench.demo

# `make test` runs one in EVERY of the parameters of each test; `make test-long` runs all.
EVERY = 10
PYTEST = $(BIN)/python -m pytest --durations=25 --every=$(EVERY)

# Two processes run beside each other: threads that wait for each other would spin.
test: export OMP_NUM_THREADS = 1
test: venv ## linters, types, IR tests, emission under triton 3.6.0, a sample of all tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target checks $(PARTS) others
	$(PYTEST) tests/$(LAST)

# Tests that run beside the checks, in processes of their own: the longest first.
PARTS = unit/runtime codegen property unit/passes unit/test_distributed.py unit/integrations \
	unit/frontend
LAST = unit/interpreters

.PHONY: $(PARTS) others
$(PARTS): venv
	$(PYTEST) tests/$@

others: venv
	$(PYTEST) tests $(addprefix --ignore=tests/,$(PARTS) $(LAST))

checks: venv ## linters, types, IR tests, emission under triton 3.6.0
	@$(MAKE) --no-print-directory --jobs=1 lint
	@$(MAKE) --no-print-directory --jobs=1 typecheck
	@$(MAKE) --no-print-directory --jobs=1 filecheck
	@$(MAKE) --no-print-directory --jobs=1 triton36

test-long: venv ## the tests with thousands of generated examples, slow ones included
	$(BIN)/python -m pytest -m '' --hypothesis-profile=long --timeout=3600
	@$(MAKE) --no-print-directory triton36 TRITON36_TESTS='not cpp and not emitted_source' TRITON36_EVERY=1

test-gpu: venv ## the tests that need a GPU
	$(BIN)/python -m pytest tests/gpu -m gpu

random-gpu: venv ## two thousand random calls on a GPU against double precision
	$(BIN)/python -m tests.random_calls --device cuda --calls 2000

random: venv ## five thousand random calls on a CPU against double precision
	$(BIN)/python -m tests.random_calls

sanitize-cpu: venv ## calls of a CPU whose kernels check themselves (gcc's sanitizers)
	$(BIN)/python -m tests.support.sanitize --all
	$(BIN)/python -m tests.support.sanitize --all --machine amx

bench-cpu: $(VENV)/installed-bench ## flexc beside torch on a CPU: a table, JSON and a plot
	$(BIN)/python -m bench.cpu

sanitize-gpu: venv ## two dozen calls on a GPU under compute-sanitizer
	$(BIN)/python -m tests.gpu.sanitize --tools memcheck racecheck synccheck

filecheck: venv ## tests of printed IR and of emitted source, by lit
	$(BIN)/lit -v tests/filecheck

# A sample; `make test-long` has all.
TRITON36_TESTS = not cpp and not emitted_source and not golden and not sm100 and not gfx942
TRITON36_EVERY = 5

ifeq ($(shell uname -s),Linux)
triton36: venv $(TRITON36)/installed ## emission tests under triton 3.6.0
	PYTHONPATH=$(TRITON36) $(BIN)/python -m pytest tests/codegen -k "$(TRITON36_TESTS)" --every=$(TRITON36_EVERY)
else
triton36:
	@echo "triton is for Linux: left out here"
endif

lint: venv ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: venv ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

typecheck: venv ## pyright
	$(BIN)/pyright

bench: $(VENV)/installed-bench ## flexc beside torch, cuDNN and FA4 on a GPU: a table, JSON and a plot; ten minutes
	$(BIN)/python -m bench.gpu

bench-host: $(VENV)/installed-bench ## what a call costs beside its kernel: host time, and back to back
	$(BIN)/python -m bench.host

bench-gpt: $(VENV)/installed-bench ## steps of a GPT of 124M parameters on a GPU, beside torch's flex attention
	$(BIN)/python -m bench.train_gpt --profile

clean: ## remove .venv and everything that tools leave behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf tests/filecheck/Output tests/filecheck/.lit_test_times.txt
