# The two commands: `make app` serves the apps, `make test` runs every test. Both create .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
APP ?= explorer

.PHONY: app test bench lock clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roofkit needs Python 3.11 or newer; try: make PYTHON=python3.12 app")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test,calibrate]"
	@touch $@

app: $(STAMP)  ## serve the step explorer and open the browser; make app APP=name for another page
	$(BIN)/roofkit app $(APP)

test: $(STAMP)  ## library, widgets, packaging, notebooks and, where Chromium is, the served app
	$(BIN)/python -m pytest -q

bench: $(STAMP)  ## the performance targets of CONTRIBUTING.md, printed as a table
	$(BIN)/python -m pytest -q tests/benchmarks -o python_files='bench_*.py' --benchmark-columns=min,median,rounds --benchmark-sort=name

lock:  ## refresh constraints.txt: newest versions in a clean environment; run make test before committing it
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install -q --disable-pip-version-check -e ".[test,calibrate,lab]"
	$(VENV)-lock/bin/python -m pip check
	{ sed -n '/^#/p' constraints.txt; $(VENV)-lock/bin/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ +]+$$'; } > constraints.tmp
	mv constraints.tmp constraints.txt
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock dist build .pytest_cache .hypothesis .benchmarks
