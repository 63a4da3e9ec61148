# Two commands matter: `make reproduce` and `make test`. Both build .venv on first use; the second adds the tools to it.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= logical
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/heatbath/__init__.py)
# The versions to install: `make test CONSTRAINTS=constraints-oldest.txt` takes the oldest that pyproject.toml admits.
CONSTRAINTS ?= constraints.txt

.PHONY: reproduce test lint types tests pages docs package benchmark format clean

reproduce: .venv/ready
	$(BIN)/heatbath reproduce

test: lint types tests

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

# A worker for each core, and one thread for each worker: more would fight over the cores.
tests: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Writes the numbers of the records into the pages that docs/pages has templates of, and draws their pictures.
pages: .venv/ready
	$(BIN)/python docs/pages/render.py
	$(BIN)/python docs/pages/pictures.py

# Offline, with warnings as errors, into a folder of the version. The tutorials are executed.
docs: .venv/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q docs out/docs/$(VERSION)
	@echo "The site: out/docs/$(VERSION)/index.html"

# Wheel and source distribution in out/dist, and the wheel used in an environment of its own, away from this folder.
package: .venv/dev
	rm -rf out/dist out/clean
	$(BIN)/python -m build --quiet --outdir out/dist
	$(PYTHON) -m venv out/clean
	out/clean/bin/python -m pip install --quiet -r $(CONSTRAINTS)
	out/clean/bin/python -m pip install --quiet -c $(CONSTRAINTS) "$$(ls $(CURDIR)/out/dist/*.whl)[paper]"
	cd out/clean && bin/heatbath --version && bin/heatbath reproduce figure1 --scale smoke --store runs --out report --quiet

benchmark: .venv/dev
	$(BIN)/python benchmarks/optimizer_step.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/thermometer.py
	$(BIN)/python benchmarks/optax_step.py
	$(BIN)/python benchmarks/callbacks.py

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A stamp for what `reproduce` needs, and one each for what developing and the site need on top of it.
# The constraints go in first and alone, so that nothing that depends on torch can choose another build of it.
.venv/ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[paper]'
	touch $@

.venv/dev: .venv/ready
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[docs]'
	touch $@

clean:
	rm -rf .venv out docs/gallery docs/reference/command-line.md .mypy_cache .pytest_cache .ruff_cache
