# make demo | quick | test | lint.  The first use installs everything in .venv; Python 3.11 or 3.12 must be there.

PYTHON ?= $(shell for name in python3.11 python3.12 python3; do "$$name" -c 'import sys; \
	sys.exit((3, 11) > sys.version_info or sys.version_info >= (3, 13))' 2>/dev/null && echo $$name && break; done)
BIN    := .venv/bin
SEED   ?=
TESTS  ?=
ACCELERATOR ?= cpu
$(if $(filter-out cpu gpu,$(ACCELERATOR)),$(error ACCELERATOR=$(ACCELERATOR): give cpu or gpu))

.PHONY: help setup demo demo-finetune quick test test-slow test-all test-soak test-container test-distributed test-stores lint format lock clean

help:
	@echo "make demo              the whole benchmark in miniature: text -> TFRecords -> training to 0.720 -> checked log"
	@echo "make demo-finetune     after it: fine-tunes its model and random weights on small tasks, and compares them"
	@echo "make quick             a minute: the tests that find most mistakes"
	@echo "make test              five minutes: the tests; TESTS=tests/data only those of a folder or file"
	@echo "make test-all          half an hour more: whole trainings, clusters on loopback; what CI runs"
	@echo "make test-distributed  of these, several processes on loopback: the same numbers, kills, restarts"
	@echo "make test-stores       of these, object stores (gs://) on loopback: the same runs, faults"
	@echo "make test-container    the image, built and run; as root on Debian"
	@echo "make test-soak         an hour: long fuzzing, memory, many kills, whole demos"
	@echo "make lint              ruff, mypy and shellcheck"
	@echo "make format            what ruff can correct by itself"
	@echo "make setup             only the environment, in .venv; with ACCELERATOR=gpu also the libraries of CUDA"
	@echo "make lock              solve the pinned requirements again"
	@echo "make clean             remove build/"

# The environment is remade whenever the lock file changes. --no-deps: the lock names every package.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes
.venv/.installed: requirements-dev.lock
	@command -v "$(PYTHON)" >/dev/null || { echo "$(or $(PYTHON),Python 3.11 or 3.12) not found: install Python 3.11 or 3.12, or name it with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(INSTALL) -r requirements-dev.lock
	@# -j 0, all cores, needs semaphores in /dev/shm; else -j 1. A file that does not compile is no error.
	@$(BIN)/python -m compileall -qq -j "$$([ -w /dev/shm ]; echo $$?)" .venv/lib || true
	@touch $@

.venv/.installed-gpu: requirements-gpu.lock .venv/.installed
	$(INSTALL) -r requirements-gpu.lock
	@touch $@

setup: .venv/.installed $(if $(filter gpu,$(ACCELERATOR)),.venv/.installed-gpu)

demo: setup
	$(BIN)/python -m demo $(if $(SEED),--seed=$(SEED))

demo-finetune: setup
	$(BIN)/python -m demo.finetuning

# A file stays in one process. Three processes on two cores, because some of them wait.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
FAST   := not slow and not soak and not container and not distributed and not stores

# The reference's figures on generated input, imports, flags, documents and logs.
QUICK := tests/test_architecture.py tests/test_documents.py tests/mlperf tests/model tests/optimization \
	tests/finetuning/test_glue.py tests/finetuning/test_scores.py \
	tests/checkpoints/test_names.py tests/data/test_pretraining_data.py tests/input/test_pipeline.py \
	$(addprefix tests/test_cli.py::test_, flags_of_run_pretraining_are_frozen \
	a_flag_out_of_its_range_is_one_line_that_says_the_range all_flags_out_of_range_are_found_at_once) \
	tests/training/test_trajectories.py
quick: setup
	$(PYTEST) -n 2 -m "$(FAST)" $(QUICK)

test: setup
	$(PYTEST) -n 3 -m "$(FAST)" $(TESTS)

test-slow: setup
	$(PYTEST) -n 2 -m "(slow or distributed or stores) and not soak and not container" $(TESTS)

test-all: test test-slow

# Several processes on loopback: the same numbers, kills, restarts.
test-distributed: setup
	$(BIN)/python -m pytest -m "distributed and not soak" tests/training

# gs:// paths, quick and long.
test-stores: setup
	$(PYTEST) -n 2 -m "not soak" tests/stores

test-soak: setup
	$(BIN)/python -m pytest -m "soak and not container"

# As root on Debian; installs an engine if none answers.
test-container: setup
	$(BIN)/python -m pytest -m "container and not soak" tests/container

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy mlperf_bert pages tracing *.py
	git ls-files -z '*.sh' '*.sbatch' .ci/run | xargs -0 -r $(BIN)/shellcheck

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The lock files must have no index or find-links line: the user chooses the index.
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --no-header --generate-hashes \
	--no-emit-index-url --no-emit-find-links --python-version 3.11
# What users install is what is tested: a subset of the development lock.
lock: setup
	$(LOCK) --group dev --output-file requirements-dev.lock
	$(LOCK) --constraint requirements-dev.lock --output-file requirements.lock
	$(LOCK) --constraint requirements-dev.lock --extra gpu --output-file requirements-gpu.lock
	echo "tensorflow; sys_platform == 'never'" | \
		$(LOCK) --constraint requirements-dev.lock --extra tpu --override - --output-file requirements-tpu.lock

clean:
	rm -rf build
