# Everything runs from .venv, made on first use. PYTHON names the interpreter to make it with.

PYTHON ?= python3.11
FUZZ_SECONDS ?= 900
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

PROTOS_VENV := .venv-protos
PROTOS_STAMP := $(PROTOS_VENV)/.installed
# The stubs must import on every protobuf that we allow: see pyproject.toml.
GRPCIO_TOOLS := grpcio-tools==1.80.0
PROTOC = $(PROTOS_VENV)/bin/python -m grpc_tools.protoc -I protos
PROTO_FILES = $(sort $(wildcard protos/specdec/v1/*.proto))

CLIENT_VENV := .venv-client
CLIENT_STAMP := $(CLIENT_VENV)/.installed
# Benchmark clients, each with versions of its own: tests/clients/requirements-*.txt.
BENCH_STAMPS := .venv-aiperf/.installed .venv-vllm-bench/.installed
NODE_CLIENT := tests/clients/node
NODE_STAMP := $(if $(shell command -v npm),$(NODE_CLIENT)/node_modules/.package-lock.json)

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-unit test-clients fuzz lint format docs api-page protos protos-check bench clean

help: ## Print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with everything that serving and the tests need

# torch goes first: on a machine that offers a CPU build it must win over the resolver's choice.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e '.[dev]'
	touch $@

serve: $(STAMP) ## Fetch the demo model if needed, then serve it over HTTP and gRPC
	$(BIN)/specdec models fetch smollm2
	$(BIN)/specdec serve --config deployments/configs/cpu-demo.yaml

test: lint test-unit ## Lint, then every test that needs no extra environment
	$(BIN)/python -m pytest tests/integration tests/serve

test-unit: $(STAMP) ## Unit tests and a short run of the fuzzers: two processes, no Ray
	$(BIN)/python -m pytest tests/unit tests/fuzz --numprocesses 2

fuzz: $(STAMP) ## Fuzz with fresh seeds, FUZZ_SECONDS for each fuzzer (default: 15 minutes)
	SPECDEC_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/fuzz --capture no --timeout 0

test-clients: $(STAMP) $(CLIENT_STAMP) $(BENCH_STAMPS) $(NODE_STAMP) ## Tests of the clients that people use, against one running demo
	SPECDEC_CLIENT_PYTHON=$(abspath $(CLIENT_VENV))/bin/python $(BIN)/python -m pytest tests/clients

$(CLIENT_STAMP): pyproject.toml constraints.txt $(shell find specdec/*.py specdec/client specdec/cli specdec/v1 -name '*.py')
	rm -rf $(CLIENT_VENV)
	$(PYTHON) -m venv $(CLIENT_VENV)
	$(CLIENT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	touch $@

# The files name every package that is needed, so nothing is left to resolve.
$(BENCH_STAMPS): .venv-%/.installed: tests/clients/requirements-%.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r $<
	touch $@

$(NODE_CLIENT)/node_modules/.package-lock.json: $(NODE_CLIENT)/package-lock.json
	cd $(NODE_CLIENT) && npm ci --silent --no-audit --no-fund --ignore-scripts
	touch $@

lint: $(STAMP) protos-check docs ## ruff, mypy, layer contracts, buf, stubs compared with their protos, the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against protos/baseline.binpb

format: $(STAMP) ## Format and fix what ruff can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

protos: $(PROTOS_STAMP) ## Regenerate the stubs in specdec/v1
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO_FILES)

protos-check: $(PROTOS_STAMP)
	rm -rf build/protos && mkdir -p build/protos
	$(PROTOC) --python_out=build/protos --pyi_out=build/protos --grpc_python_out=build/protos $(PROTO_FILES)
	diff -r --exclude=__pycache__ --exclude=__init__.py build/protos/specdec/v1 specdec/v1 \
		|| { echo 'stubs differ from protos/: run make protos'; exit 1; }

$(PROTOS_STAMP): Makefile
	test -x $(PROTOS_VENV)/bin/python || $(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check '$(GRPCIO_TOOLS)'
	touch $@

# Mutes a banner about mkdocs' future.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP) ## Build the documentation site into build/site; a warning is an error
	$(BIN)/mkdocs build --quiet --strict

api-page: $(STAMP) ## Regenerate docs/api.md from the gateway and the protos
	$(BIN)/python -m docs.tools.api_page

bench: $(STAMP) ## The figures of README
	$(BIN)/python -m benchmarks.peers

clean: ## Remove environments, caches and builds
	rm -rf $(VENV) $(PROTOS_VENV) $(CLIENT_VENV) $(dir $(BENCH_STAMPS)) $(NODE_CLIENT)/node_modules build dist .mypy_cache .ruff_cache .pytest_cache
