# make demo: install, train a cheetah for a minute, evaluate it, draw its learning curve.
# make test: install, check style and types, run the tests.

PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo

.PHONY: demo test lint types tests clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo   install Kemeny into .venv, train ATRPO on HalfCheetah-v3, evaluate it, draw its learning curve"
	@echo "make test   install Kemeny into .venv, check style and types, run the tests"
	@echo "make clean  remove the virtual environment and the demo run"

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Kemeny needs Python 3.11 or newer. Call make with PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,video]'
	-@$(BIN)/python -W ignore -m compileall -q -j 0 .venv/lib # as pip would, but on all cores
	@touch $@

demo: .venv/.installed
	@rm -rf $(DEMO)
	$(BIN)/kemeny train HalfCheetah-v3 --algorithm atrpo --steps 300000 --seed 0 --eval-max-steps 1000 --out $(DEMO)
	$(BIN)/kemeny evaluate $(DEMO) --max-steps 10000
	$(BIN)/kemeny plot $(DEMO) -o $(DEMO)/curve.png
	@echo
	@echo "The run directory is $(DEMO): config.json, metrics.jsonl, evaluations.jsonl, checkpoints/, TensorBoard events."
	@echo "Its learning curve is the picture $(DEMO)/curve.png."
	@echo "Try next:"
	@echo "  $(BIN)/kemeny train HalfCheetah-v3 --steps 1000000 --out runs/cheetah    a policy that runs"
	@echo "  $(BIN)/kemeny train HalfCheetah-v3 --algorithm trpo --gamma 0.99 --steps 1000000 --out runs/trpo"
	@echo "  $(BIN)/kemeny plot runs/cheetah runs/trpo -o compare.png"
	@echo "  $(BIN)/kemeny --help"

test: lint types tests

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/pyright

tests: .venv/.installed
	$(BIN)/pytest -n 2 -m "not exact" --ignore tests/test_docs.py
	$(BIN)/pytest -n 2 tests/test_docs.py # pages in processes of their own: after all other tests one ended a worker
	XLA_FLAGS=--xla_cpu_multi_thread_eigen=false $(BIN)/pytest -n 2 -m exact

clean:
	rm -rf .venv $(DEMO)
