# make demo | test | lint.  The first use installs everything in .venv; it needs Python 3.11 to 3.13 with venv.

PYTHON ?=
export PYTHON
BIN    := .venv/bin
SEED   ?=
TESTS  ?=
# What .venv was made for stays until another is asked for.
ACCELERATOR ?= $(firstword $(patsubst .venv/.installed-%,%,$(wildcard .venv/.installed-*)) cpu)
ACCELERATORS := gpu gpu-cuda13 tpu
$(if $(filter-out cpu $(ACCELERATORS),$(ACCELERATOR)),$(error ACCELERATOR=$(ACCELERATOR): give one of cpu $(ACCELERATORS)))

.PHONY: help setup demo test gate test-all test-container test-compilers newest-jax lint format lock clean

help:
	@echo "make demo              the whole benchmark in miniature: text -> TFRecords -> training to 0.720 -> checked log"
	@echo "make test              3 minutes: every test of less than 4 seconds, and two whole runs"
	@echo "make gate              12 minutes: all of make test, and one whole test of each promise of the pages; CI runs this"
	@echo "make test-all          two hours: the many ways in which a promise could break; run it before you change that part"
	@echo "make test-container    10 minutes: the image, built and run; as root on Debian; CI runs it too"
	@echo "                       any of these with TESTS=tests/stores runs only those of a folder or file, TESTS=mlperf_results of a product"
	@echo "make test-compilers    up to an hour: what Google's and NVIDIA's compilers say of the exported step; installs 6 GB"
	@echo "make lint              ruff, mypy and shellcheck"
	@echo "make format            what ruff can correct by itself"
	@echo "make setup             only the environment, in .venv; with ACCELERATOR=gpu also jax for CUDA 12; others are"
	@echo "                       gpu-cuda13 and tpu"
	@echo "make lock              solve the pinned requirements again"
	@echo "make clean             remove build/"

# Whenever a lock file changes.
.venv/.installed: environment/requirements-dev.lock
	environment/setup.sh .venv environment/requirements-dev.lock
	@touch $@

# One at a time: their packages lie in the same folders.
.venv/.installed-%: environment/requirements-%.lock .venv/.installed
	@rm -f .venv/.installed-*
	environment/setup.sh .venv environment/requirements-$*.lock
	@touch $@

# The compilers of accelerators have their own environment: the TPU extra pins another libtpu.
.venv-compilers/.installed: environment/compilers.lock
	environment/setup.sh .venv-compilers environment/compilers.lock
	@touch $@

.venv-compilers/.installed-gpu: environment/compilers-gpu.lock .venv-compilers/.installed
	environment/setup.sh .venv-compilers environment/compilers-gpu.lock
	@touch $@

setup: .venv/.installed $(addprefix .venv/.installed-,$(filter $(ACCELERATORS),$(ACCELERATOR)))

demo: setup
	$(BIN)/python -m demo $(if $(SEED),--seed=$(SEED))

# A file stays in one process. Three processes on two cores, because some of them wait.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# Without the container's tests, which need root and run one by one.
WHERE  = $(or $(TESTS),--ignore=tests/container)

# The marks are named after the commands; a test without one is of `make test`.
test: setup
	$(PYTEST) -n 3 -m "not gate and not all" $(TESTS)

gate: setup
	$(PYTEST) -n 3 -m "not all" $(WHERE)

test-all: setup
# One process: memory is measured, and whole demos take both cores.
	$(BIN)/python -m pytest -m all $(WHERE)

# As root on Debian; installs an engine if none answers.
test-container: setup
	$(BIN)/python -m pytest -m "not all" $(or $(TESTS),tests/container)

# The newest jax of the registry, on a newer Python than the pinned one needs; without either its test is skipped.
newest-jax: setup
	-$(BIN)/uv venv --quiet --allow-existing --no-python-downloads --python '>=3.12' .venv-newest-jax && \
		$(BIN)/uv pip install --quiet --python .venv-newest-jax --upgrade 'jax[cuda13]'

# CI has only TPUs' compiler, and leaves out what takes minutes.
test-compilers: setup .venv-compilers/.installed-gpu newest-jax
	$(BIN)/python -m pytest tests/portable/test_compilers.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy mlperf_bert mlperf_results/*.py pages tracing *.py
	git ls-files -z '*.sh' '*.sbatch' .ci/run | xargs -0 -r $(BIN)/shellcheck

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One version of each package for Python 3.11, 3.12 and 3.13; the markers that all share go.
# The lock files must have no index or find-links line: the user chooses the index.
define LOCK
	$(BIN)/uv pip compile $(or $(3),pyproject.toml) --quiet --no-header --generate-hashes --no-emit-index-url \
		--no-emit-find-links --universal --python-version 3.11 --fork-strategy fewest --output-file $(1) $(2)
	@sed -i -E "s/python_full_version < '3.14'( and )?//; s/platform_machine == 'x86_64'( and )?//; \
		s/( and )?platform_python_implementation == 'CPython'//; s/( and )?sys_platform == 'linux'//; s/ ; +\\\\/ \\\\/" $(1)
endef
# What users install is what is tested: a subset of the development lock, but for the build of TensorFlow.
TESTED := --constraint environment/requirements-dev.lock --extra training
ON_CPU := $(TESTED) --extra tensorflow-cpu --override .venv/without_tensorflow
lock: setup
	$(call LOCK,environment/requirements-dev.lock,--extra training --group dev)
	@echo "tensorflow; sys_platform == 'never'" >.venv/without_tensorflow
	$(call LOCK,environment/requirements.lock,$(ON_CPU))
	$(call LOCK,environment/requirements-gpu.lock,$(ON_CPU) --extra gpu)
	$(call LOCK,environment/requirements-gpu-cuda13.lock,$(ON_CPU) --extra gpu-cuda13)
	$(call LOCK,environment/requirements-tpu.lock,$(ON_CPU) --extra tpu)
	$(call LOCK,environment/compilers.lock,,environment/compilers.in)
	$(call LOCK,environment/compilers-gpu.lock,,environment/compilers-gpu.in)

clean:
	rm -rf build
