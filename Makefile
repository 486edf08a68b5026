# Everything runs in .venv, which is made and filled on first use: `make demo` needs Python 3.11+ and nothing else.
# An install is repeated only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ZOO := .venv-zoo
WORKERS ?= 2
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo check test coverage mutants fuzz zoo lint bench docs clean
unexport PYTHONPATH PYTHONHOME

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/run.stamp ## See one model made faster, in the terminal
	@$(BIN)/zipbrain demo

check: lint $(VENV)/triton.stamp ## Lint and the quick half of the tests, in less than three minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu"

test: lint $(VENV)/triton.stamp ## Lint, then run all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15

coverage: $(VENV)/dev.stamp $(VENV)/triton.stamp ## Run all tests and say which lines they missed (takes longer)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered

mutants: $(VENV)/dev.stamp ## Change 100 operators of pooling/ and signal/ one by one; the tests must notice (half an hour)
	$(BIN)/python tests/mutants.py --workers $(WORKERS)

fuzz: $(VENV)/dev.stamp ## Mutated recordings, models, recipes and tables under limits of time and memory (minutes)
	$(BIN)/python -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

zoo: $(ZOO)/zoo.stamp ## Compress other people's models and use their libraries (braindecode, MOABB ...); TUNE=1 tunes too
	$(ZOO)/bin/python -m pytest tests/zoo
	$(ZOO)/bin/python tests/zoo/outcomes.py $(if $(TUNE),--tune) 2>/dev/null

lint: $(VENV)/dev.stamp ## Check style, types, who imports whom, and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md RELEASING.md docs src examples
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml

bench: $(VENV)/dev.stamp ## Measure what pooling itself costs
	$(BIN)/python -m benchmarks.speed.overhead

docs: $(VENV)/docs.stamp ## Build the documentation into docs/_build/html
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) $(ZOO) build dist src/*.egg-info docs/_build docs/gallery docs/tutorials docs/reference/generated docs/sg_execution_times.rst
	rm -rf .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples docs -type d -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/made.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "zipbrain needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch for CUDA brings the triton that it needs; beside torch for CPUs one is put, whose interpreter runs the kernels.
$(VENV)/triton.stamp: | $(VENV)/dev.stamp
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install -qq --disable-pip-version-check \
		--no-deps triton==3.6.0 || echo "triton can't be installed: tests of the Triton kernels are skipped"
	@touch $@

$(VENV)/run.stamp: EXTRAS = torch,report
$(VENV)/dev.stamp: EXTRAS = dev
$(VENV)/docs.stamp: EXTRAS = docs

$(VENV)/%.stamp: pyproject.toml setup.py constraints.txt src/zipbrain/pooling/backends/_cpu.c | $(VENV)/made.stamp
	@echo "Installing zipbrain[$(EXTRAS)] and its pinned requirements into $(VENV) (minutes the first time)"
	@$(INSTALL) '.[$(EXTRAS)]'
	@touch $@

# The newest torchaudio and torchvision are CUDA builds, which a CPU torch can't load: without their native libraries
# both import, and braindecode's and timm's models run. timm is installed without asking for torchvision's own torch,
# MOABB and what it imports without asking for botocore's older python-dateutil.
$(ZOO)/zoo.stamp: pyproject.toml setup.py constraints.txt src/zipbrain/pooling/backends/_cpu.c
	@echo "Installing braindecode, timm, transformers, torchao and MOABB beside zipbrain into $(ZOO) (minutes the first time)"
	@$(PYTHON) -m venv $(ZOO)
	@$(ZOO)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[torch]' \
		accelerate braindecode huggingface_hub linear-attention-transformer torchao torchaudio transformers \
		hypothesis onnx onnxscript pytest
	@$(ZOO)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps timm torchvision
	@$(ZOO)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps moabb nemar-py \
		array-api-compat array-api-extra boto3 botocore bracex httpcore httpx jmespath pycountry pymatreader pyriemann remotezip \
		s3transfer seaborn wcmatch xmltodict
	@rm -f $(ZOO)/lib/python*/site-packages/torchaudio/lib/*.so $(ZOO)/lib/python*/site-packages/torchvision/*.so
	@touch $@
