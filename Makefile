# Two commands matter: `make test` and `make reproduce`. Both build .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= logical

.PHONY: test lint types tests reproduce benchmark format clean

test: lint types tests

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

# A worker for each core, and one thread for each worker: more would fight over the cores.
tests: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

reproduce: .venv/ready
	$(BIN)/heatbath reproduce

benchmark: .venv/ready
	$(BIN)/python benchmarks/optimizer_step.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/thermometer.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# constraints.txt goes in first and alone, so that nothing that depends on torch can choose another build of it.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache
