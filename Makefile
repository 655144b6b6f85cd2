# Every target sets up its environment by itself; a second call installs nothing.
PYTHON ?= python3
MEMBERS ?= 64
ZOO ?= zoos/digits-optunet
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# The environment of quickstart, a fraction of the other's size.
SMALL ?= .venv-quickstart

.PHONY: quickstart posterior-mnist report dist-check test test-fast test-all docs tutorials pictures links lint format explorer explorer-check bench bench-list gpu clean
.DEFAULT_GOAL := quickstart

$(READY): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) from constraints.txt"
# not compiled: most of the 25,000 modules are never imported, and pip compiles them one after the other
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $(READY)

ifneq ($(SMALL),$(VENV))
$(SMALL)/.ready: pyproject.toml constraints.txt .ci/small_environment.py
	@$(PYTHON) .ci/small_environment.py $(SMALL)
	@touch $@
endif

quickstart: $(SMALL)/.ready  ## train a zoo of OptuNets on handwritten digits, derive, verify, stream and draw it
	@$(SMALL)/bin/python -m builders quickstart --members $(MEMBERS) --to $(ZOO)

dist-check: $(READY)  ## build the wheel and the sdist, and try both in empty environments
	@$(PY) .ci/dist_check.py

posterior-mnist: $(READY)  ## draws of six approximate posteriors of OptuNet on MNIST, and the paper's tables beside ours
	@$(PY) -m builders posteriors mnist-optunet --members cards/mnist-optunet --to zoos/mnist-optunet-posteriors

report: $(READY)  ## one HTML page, in report/: what is reproduced of three papers; DATA=folder, ONLY="figure-4 table-1"
	@$(PY) -m builders report $(if $(DATA),--data $(DATA)) $(addprefix --only ,$(ONLY))

# Workers take tests from one another when they run out, so that one long file does not keep a core to itself.
# Half as many workers again as cores: tests wait for servers, disks and processes a fifth of the time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((3 * (os.cpu_count() or 1) + 1) // 2)')
# Workers, and the programs that tests start, would compile every module again where no bytecode is written.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(PY) -m pytest -q -n $(WORKERS) --dist worksteal

test: $(READY)  ## every test, offline, on a CPU; properties on up to 8 examples, costly ones on 6
	@$(PYTEST)

test-fast: $(READY)  ## what takes no servers, processes or training
	@$(PYTEST) -m "not slow"

test-all: $(READY)  ## every test with every example, every fault on every request
	@CKPTZOO_TESTS=all $(PYTEST)

docs: $(READY)  ## the documentation, in site/: any warning is an error; no network, and no request from any page
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	@echo site/index.html

tutorials: $(READY)  ## what pages show of programs, written again: outputs of tutorials, commands, figures, diagrams
	@$(PY) -m tests.support.tutorials
	@$(PY) docs/commands.py
	@$(PY) docs/forms.py
	@$(PY) docs/catalogue.py
	@$(PY) docs/recipes.py
	@$(PY) docs/benchmarks.py
	@$(PY) docs/diagrams.py

pictures: $(READY)  ## the pictures of docs/ and cards/ drawn again by the commands on the pages; DATA=folder, ONLY="mass modes explorer" these
	@$(if $(DATA),CKPTZOO_DATA=$(abspath $(DATA))) $(PY) docs/pictures.py $(ONLY)

links: $(READY)  ## addresses outside that pages name; needs a network
	@$(PY) docs/links.py

lint: $(READY)  ## format, lint, types and the architecture's contracts
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/pyright

format: $(READY)
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

# The bundle is committed, because an installation from a clone has no npm.
WEB := ckptzoo/explorer/web
explorer:  ## build the script and the style sheet of the explorer from its sources; needs npm
	@cd $(WEB) && npm ci --ignore-scripts --silent && npm run --silent check && npm run --silent build

explorer-check:  ## build them elsewhere and compare every byte with what is committed; needs npm
	@cd $(WEB) && npm ci --ignore-scripts --silent && npm run --silent check && rm -rf node_modules/.bundle \
		&& node build.mjs node_modules/.bundle && diff -r bundle node_modules/.bundle && echo "The bundle is that of its sources."

# Pages show what was measured, also where a program failed.
bench: $(READY)  ## measure what changed since it was measured, ONLY="layers mmd" these, AGAIN=1 all; tables in docs/
	@$(PY) -m benchmarks $(ONLY) $(if $(AGAIN),--again); status=$$?; $(PY) docs/benchmarks.py && exit $$status

bench-list: $(READY)  ## the programs that bench runs: minutes of each on two idle cores, and when it was measured
	@$(PY) -m benchmarks $(ONLY) --list

MINUTES ?= 8
OUT ?= bench-results/gpu
gpu:  ## on a machine with a GPU, with the Python it has: measure, test and train for MINUTES; what is worth most in OUT
	@$(PYTHON) -m benchmarks.gpu --minutes $(MINUTES) --out $(OUT) $(if $(DATA),--data $(DATA)) \
		$(if $(STAGES),--stages $(STAGES)) $(if $(WORK),--work $(WORK)) $(if $(FROM),--from $(FROM)) $(GPU_OPTIONS)

clean:
	@rm -rf $(VENV) $(SMALL) zoos report bench-results site dist
