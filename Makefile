# The two commands: `make app` serves the apps, `make test` runs every test. Both create .venv on first use, with python3
# and pip alone, and both install exactly the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install -q --disable-pip-version-check
LOCK := build/lock-venv
APP ?= explorer
MEASURED ?= ../shared/data/measured
REFIT := build/refit

.PHONY: help app test bench refit lock clean

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roofkit needs Python 3.11 or newer; try: make PYTHON=python3.12 app")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.app: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), about a minute on first use"
	$(BIN)/python $(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with what the tests need, about two minutes on first use"
	$(BIN)/python $(PIP) -c constraints.txt -e ".[test,calibrate]"
	@touch $(VENV)/.app $@

app: $(VENV)/.app  ## serve the step explorer and open the browser; make app APP=NAME for another page
	$(BIN)/roofkit app $(APP)

test: $(VENV)/.test  ## library, widgets, packaging, notebooks and, where Chromium is, the served app
	$(BIN)/python -m pytest

bench: $(VENV)/.test  ## the performance targets, measured on this machine and printed as a table
	$(BIN)/python -m pytest -q tests/benchmarks -o python_files='bench_*.py' --benchmark-columns=min,median,rounds --benchmark-sort=name

refit: $(VENV)/.test  ## make every shipped constant and error again from MEASURED=folder; half an hour on two quiet cores, kept in build/refit
	@test -d "$(MEASURED)" || { echo "no folder $(MEASURED); make refit MEASURED=folder of measured tables"; exit 1; }
	for pass in constants errors; do \
		$(BIN)/python -m roofkit.evidence.refit "$(MEASURED)" $(REFIT) || exit 1; \
		for part in calibration evidence energy; do if [ -d $(REFIT)/$$part ]; then cp $(REFIT)/$$part/* data/roofkit_data/$$part/; fi; done; \
	done  # twice: errors of whole steps are those of the shipped constants, which the first pass has just replaced; its fits are kept
	$(BIN)/python -m roofkit.evidence.siblings aiconfigurator-core data/roofkit_data/evidence/siblings.csv || echo "errors of sibling GPUs kept as they are"

lock:  ## refresh constraints.txt: newest versions in a clean environment; run make test before committing it
	rm -rf $(LOCK)
	$(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/python $(PIP) -e ".[test,calibrate,aiconfigurator,lab]"
	$(LOCK)/bin/python -m pip check
	$(LOCK)/bin/python -m pip freeze --exclude-editable > $(LOCK)/frozen
	{ sed -n '/^#/p' constraints.txt; grep -E '^[A-Za-z0-9._-]+==[^ +]+$$' $(LOCK)/frozen; } > $(LOCK)/constraints
	mv $(LOCK)/constraints constraints.txt
	rm -rf $(LOCK)

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .benchmarks
