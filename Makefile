# make predict       the answer of the README, from the base install
# make check         the daily loop, under 90 s: quick tests, types, style; no torch, no browser
# make test          the whole test suite, under ten minutes
# make verify        longer proofs: verify-exact, then verify-measured
# make verify-exact  both engines agree, accuracy gates; their results do not depend on other work on the machine
# make verify-measured  predictions against real runs, and speed: needs a quiet machine for twenty minutes
# make system-deps   installs Debian packages that some tests need; needs root if one is missing

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

.PHONY: predict check check-units check-style test verify verify-exact verify-measured system-deps clean

predict: $(VENV)/.base-installed
	@$(BIN)/ladder-sim predict --model 405b --nodes 2

# Both at once: mypy takes one core, tests the other.
check: $(VENV)/.test-installed
	@$(MAKE) --no-print-directory --jobs=2 --output-sync check-style check-units

check-units: $(VENV)/.test-installed
	$(BIN)/python -m pytest -m "not slow and not torch and not browser and not root and not quality" $(PYTEST_ARGS) tests ladder_sim

check-style: $(VENV)/.test-installed
	$(BIN)/python -m pytest -m quality tests/project

test: $(VENV)/.test-installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

verify: verify-exact verify-measured

verify-exact: $(VENV)/.test-installed
	$(BIN)/python benchmarks/engines_agree.py
	$(BIN)/ladder-sim validate --level microbench --max-error 2
	$(BIN)/ladder-sim validate --level protocol-a --max-error 2
	$(BIN)/ladder-sim validate --level protocol-b --max-error 2.5
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/traces.py

verify-measured: $(VENV)/.test-installed
	$(BIN)/python benchmarks/trace_rewire.py
	$(BIN)/python benchmarks/crosscheck.py
	$(BIN)/python benchmarks/crosscheck.py --lab
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/explorer_page.py
	$(BIN)/python benchmarks/explorer_load.py

# A stamp is remade when what it installed from has changed. setuptools comes first and builds without isolation, so
# that the build backend is the pinned one too.
$(VENV)/.base-installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) setuptools wheel
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.test-installed: $(VENV)/.base-installed
	$(PIP_INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

DEBIAN_PACKAGES := chromium chromium-driver iproute2

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

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
