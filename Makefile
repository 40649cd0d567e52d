# make demo: environment, install, the main job on every place that is there
# make test: environment, install, the whole suite
# make test-torch: PyTorch's tensors as a place, in an environment of its own (200 MB)
# make lint: ruff, mypy, import-linter

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= auto
# each of the test processes has a core: a BLAS with threads of its own would wait for the others

.PHONY: demo test test-torch lint env opencl clean

demo: env
	$(BIN)/fluidlite demo

test: env
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-torch: .venv-torch/ready
	.venv-torch/bin/python -m pytest -q -p no:cacheprovider plugins/fluidlite-torch
	.venv-torch/bin/fluidlite certify torch --html .venv-torch/certificate.html

.venv-torch/ready: pyproject.toml plugins/fluidlite-torch/pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
	.venv-torch/bin/python -m pip install --quiet --editable ".[cli]" --editable plugins/fluidlite-torch \
		pytest pytest-timeout
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

env: .venv/ready opencl

.venv/ready: pyproject.toml plugins/fluidlite-fpga/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]" --editable plugins/fluidlite-fpga
	touch $@

# OpenCL needs a driver. Where apt and root are there, take Debian's PoCL; else say what to install, and go on.
opencl: .venv/ready
	@sh tools/opencl.sh $(BIN)/python

clean:
	rm -rf .venv .venv-torch
