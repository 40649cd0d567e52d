# make demo: environment, install, the main job on every place that is there
# make test: environment, install, the whole suite
# make quick: lint, types, units, and the tests of what changed since git's merge base (BASE=branch)
# make test-torch: PyTorch's tensors as a place, in an environment of its own (200 MB)
# make docs: the reference, written from the code, and the whole documentation as a site in site/
# make lint: ruff, mypy, import-linter, whether api.txt lists the public names, whether the picture shows the imports

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= auto
# each of the test processes has a core: a BLAS with threads of its own would wait for the others

.PHONY: demo quick test test-torch lint docs env opencl clean

demo: env
	$(BIN)/fluidlite demo

test: env
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

quick: .venv/ready
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tools/quick.py $(if $(BASE),--base $(BASE))

test-torch: .venv-torch/ready
	.venv-torch/bin/python -m pytest -q -p no:cacheprovider plugins/fluidlite-torch
	.venv-torch/bin/fluidlite certify torch --html .venv-torch/certificate.html

.venv-torch/ready: pyproject.toml plugins/fluidlite-torch/pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
	.venv-torch/bin/python -m pip install --quiet --editable ".[cli]" --editable plugins/fluidlite-torch \
		pytest pytest-timeout
	touch $@

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/api_text.py --check
	$(BIN)/python tools/architecture_picture.py --check

# the reference of operators shows their kernels on the places of the fpga plugin and of OpenCL too
REFERENCE := operator_reference layer_reference module_reference primitive_rules tensor_primitives array_namespace docs_index

docs: env .venv/docs
	for name in $(REFERENCE); do $(BIN)/python tools/$$name.py || exit 1; done
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --doctree-dir build/doctrees docs site

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

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
	rm -rf .venv .venv-torch site docs/reference docs/index.md
