# make predict       the first answer of docs/start.md, from the base install
# make check         the daily loop, under 90 s on two cores: quick tests, types, style; no torch, no browser
# make test          the whole test suite, about half an hour on two idle cores
# make verify-exact  both engines agree, accuracy gates; their results do not depend on other work on the machine
# make gpu-evidence  measures a borrowed machine with GPUs, under 40 minutes, into one archive; goes on if it was killed
#                    PAPER=1 the table of the Ladder Residual paper, an hour
# make loop          examples/loop.py: run, time, simulate, predict and check on two CPU cores, three minutes
# make docs          the documentation site, in site/; fails on a broken link or anchor
# make browser       sees to a Chromium for the tests; make test does it first
# make system-deps   installs Debian packages that some tests need; needs root if one is missing
# make dist          wheel, source archive and SBOM into dist/; their metadata suits an index, and the wheel predicts in
#                    an environment of its own

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# processes that share the tests; with 0 pytest runs them itself, as --pdb needs
WORKERS ?= 2
# folder and archive of gpu-evidence, and further options of `ladder-sim calibrate evidence`
PAPER ?=
EVIDENCE ?= measured$(if $(PAPER),-paper)
EVIDENCE_ARGS ?=

BIN := $(VENV)/bin
# not quiet: the first install downloads for minutes, and pip shows how far it is
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt
# A worker that is done takes tests from the end of another's: most files stay whole, and with them their fixtures.
PYTEST := $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

.PHONY: predict check test docs verify-exact gpu-evidence loop browser system-deps dist

predict: $(VENV)/.base-installed
	@$(BIN)/ladder-sim predict --model 405b --nodes 2
	@echo "To go on: source $(BIN)/activate; ladder-sim --help" >&2

check: $(VENV)/.test-installed
	$(PYTEST) -m "not slow and not torch and not browser and not root" tests ladder_sim

# With arguments the choice of tests is the caller's.
test: $(VENV)/.test-installed $(if $(PYTEST_ARGS),,browser)
	$(PYTEST) $(PYTEST_ARGS)

docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

verify-exact: $(VENV)/.test-installed
	$(BIN)/python benchmarks/engines_agree.py
	$(BIN)/ladder-sim validate --level microbench --max-error 2
	$(BIN)/ladder-sim validate --level protocol-a --max-error 2
	$(BIN)/ladder-sim validate --level protocol-b --max-error 2.5
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/traces.py

loop: $(VENV)/.runtime-installed
	$(BIN)/python -m examples.loop

gpu-evidence: $(VENV)/.runtime-installed
	$(BIN)/ladder-sim calibrate evidence --out $(EVIDENCE) $(if $(PAPER),--paper) $(EVIDENCE_ARGS)

# A stamp is remade when what it installed from has changed. setuptools comes first and builds without isolation, so
# that the build backend is the pinned one too.
$(VENV)/.base-installed: pyproject.toml constraints.txt
	@echo "Installing ladder-sim and its base packages into $(VENV): 300 MB, about a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) setuptools wheel
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.test-installed: $(VENV)/.base-installed
	@echo "Installing the test extra into $(VENV): with torch several GB, some minutes the first time"
	$(PIP_INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/.docs-installed: $(VENV)/.base-installed
	@echo "Installing the docs extra into $(VENV)"
	$(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@

$(VENV)/.runtime-installed: $(VENV)/.base-installed
	@echo "Installing the runtime extra into $(VENV): with torch several GB, some minutes the first time"
	$(PIP_INSTALL) --no-build-isolation --editable '.[runtime]'
	@touch $@

# As root Debian's; otherwise the one that is there; otherwise playwright's own.
browser: $(VENV)/.test-installed
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then $(MAKE) --no-print-directory system-deps; fi
	@$(BIN)/python -m tests.support.browser 2>/dev/null || $(BIN)/python -m playwright install chromium || { \
		echo "The tests need Chromium, and playwright could not download one. Either run: sudo make system-deps" >&2; \
		echo "Or leave these tests out: make test PYTEST_ARGS='-m \"not browser\"'" >&2; \
		exit 1; \
	}

DEBIAN_PACKAGES := chromium iproute2

system-deps:
	@missing=""; \
	for package in $(DEBIAN_PACKAGES); do \
		dpkg-query --show --showformat='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' \
			|| missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then \
		echo "system-deps: present: $(DEBIAN_PACKAGES)"; \
	else \
		echo "system-deps: installing$$missing"; \
		apt-get update --quiet=2 \
			&& DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $$missing; \
	fi

# The wheel is built from the source archive. The environment has the base install alone, not even pip: the SBOM is of it.
RELEASE := build/release
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' ladder_sim/__init__.py)

dist:
	rm -rf dist build
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check install --constraint constraints.txt build cyclonedx-bom twine
	$(RELEASE)/tools/bin/python -m build
	$(RELEASE)/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv --without-pip $(RELEASE)/bare
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check --python $(RELEASE)/bare/bin/python \
		install --constraint constraints.txt dist/*.whl
	cd $(RELEASE) && bare/bin/ladder-sim predict --model 405b --nodes 2
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml >$(RELEASE)/pyproject.toml
	$(RELEASE)/tools/bin/cyclonedx-py environment --pyproject $(RELEASE)/pyproject.toml --output-reproducible \
		--output-file dist/ladder_sim-$(VERSION).cdx.json $(RELEASE)/bare
