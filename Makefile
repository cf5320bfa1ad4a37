# dsort: everything here works on a fresh machine that has Python 3.11 or newer.
# Another Python than the one found: make PYTHON=/path/to/python3 ...

VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.bench-installed

# A process of pytest has whole files of tests, in the order in which they are collected.
# Schemathesis is used as a library; its plugin takes a while to load.
PYTEST = $(BIN)/python -m pytest -n $(or $(TESTS_AT_ONCE),auto) -p no:schemathesis

# How packages are installed: by uv where it is there, else by pip.
INSTALL = $(shell command -v uv >/dev/null && echo uv pip install --quiet --python $(BIN)/python \
	|| echo $(BIN)/python -m pip install --quiet --disable-pip-version-check)
# pip would compile 5,000 modules, of which a job imports 1,000; Python compiles those itself.
QUICKLY = $(shell command -v uv >/dev/null || echo --no-compile)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all chaos service-chaos check format man docs wheels bench lock clean

help:
	@echo "make demo      make some shards, shuffle them, say where the result is (in demo/)"
	@echo "make test      run the tests; of slow matrices a sample (TESTS_AT_ONCE=3: processes)"
	@echo "make test-all  run all tests, with all cases of slow matrices"
	@echo "make chaos     break many random jobs (CHAOS_SEEDS=200; CHAOS_SEED=7: one again)"
	@echo "make service-chaos  kill services, jobs and databases (CHAOS_KILLS=500)"
	@echo "make check     formatting, lint, types, architecture"
	@echo "make format    put the formatting right"
	@echo "make docs      write the reference pages again, build the site in site/"
	@echo "make man       write the man pages in docs/man again"
	@echo "make wheels    build the wheels of dsort-shards and dsort-client in dist/"
	@echo "make bench     measure dsort against others, 45 minutes (in bench-data/)"
	@echo "make lock      choose new versions of what development needs (takes uv)"
	@echo "make clean     remove all that these commands made, $(VENV) too"

demo: $(RUNS)
	rm -rf demo
	$(BIN)/dsort gen-shards --root demo 'images/samples-{00..18}.tar' \
	    --fcount 100 --fsize 50KB --fext jpg,cls
	$(BIN)/dsort shuffle --root demo images shuffled --shard-size 10MB --seed 42
	$(BIN)/dsort verify --root demo shuffled
	$(BIN)/dsort ls --root demo shuffled
	@echo
	@echo "The shuffled shards are in demo/shuffled, the shards they were made of in demo/images."

test: $(INSTALLED)
	$(PYTEST) --second-try --ignore=tests/test_architecture.py --ignore=tests/test_words.py

test-all: $(INSTALLED)
	$(PYTEST) --all

chaos: $(INSTALLED)
	CHAOS_SEEDS=$(or $(CHAOS_SEEDS),200) $(PYTEST) --all tests/job/faults/test_chaos.py

service-chaos: $(INSTALLED)
	$(BIN)/python -m tests.support.service_chaos --kills $(or $(CHAOS_KILLS),500)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_words.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

man: $(INSTALLED)
	$(BIN)/python -m docs.generate
	@echo "The man pages are in docs/man; to read one: man -M docs/man dsort-start"

docs: $(INSTALLED)
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/; to read it: $(BIN)/python -m http.server --directory site"

wheels: $(INSTALLED)
	$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist
	cd packages/dsort-client && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist

bench: $(BENCH_INSTALLED)
	code=0; $(BIN)/python -m benchmarks --results benchmarks/results $(BENCH) || code=$$?; \
	    $(BIN)/python -m benchmarks.plots && exit $$code

lock:
	uv pip compile --upgrade --generate-hashes --universal --python-version 3.11 \
	    --extra all --extra dev \
	    --no-emit-index-url --custom-compile-command "make lock" --quiet \
	    --output-file requirements-dev.lock pyproject.toml
	printf 'hatchling\neditables\n' | uv pip compile --upgrade --generate-hashes --universal \
	    --python-version 3.11 --no-annotate --constraint requirements-dev.lock \
	    --no-emit-index-url --custom-compile-command "make lock" --quiet \
	    --output-file requirements.lock pyproject.toml -
	uv pip compile --upgrade --generate-hashes --no-annotate --python-version 3.12 \
	    --python-platform x86_64-manylinux_2_28 --constraint requirements-dev.lock --extra all \
	    --no-emit-index-url --custom-compile-command "make lock" --quiet \
	    --output-file cluster/requirements.lock pyproject.toml cluster/requirements.in

clean:
	rm -rf $(VENV) demo bench-data dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNS): pyproject.toml requirements.lock
	@for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "$$python -m venv $(VENV)"; \
	        $$python -m venv $(VENV) && exit 0; \
	        echo "make: $$python cannot make a virtual environment;" \
	            "on Debian and Ubuntu the package python3-venv is missing" >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "make: dsort needs Python 3.11 or newer, but found none (looked for:" \
	    "$(or $(PYTHON),python3.13 python3.12 python3.11 python3));" \
	    "name yours with make PYTHON=/path/to/python3" >&2; \
	exit 1
	$(INSTALL) $(QUICKLY) --require-hashes --requirement requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(RUNS) requirements-dev.lock
	$(INSTALL) --require-hashes --requirement requirements-dev.lock
	@touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(INSTALL) --no-build-isolation --editable '.[bench]'
	@touch $@
