# Every target sets up what it needs in .venv: only Python 3.10 or newer and make are expected. PYTHON picks another Python.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

# The platforms of `make wheels`; linux_x86_64 is compiled with this system's g++, for systems as new as this one.
PLATFORMS := manylinux_2_28_x86_64 manylinux_2_28_aarch64 macosx_11_0_arm64 win_amd64

.PHONY: demo pictures browser-costs quick test test-all mutations app check docs site wheels native-aarch64 native-test wasm-test native-bench clean
.DELETE_ON_ERROR:

# With it, each of the hundreds of processes that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

demo: $(VENV)/.installed
	$(RUN) scripts/demo.py $(ARGS)

# The faces in README and the pictures of the web demo, to draw after a change of weights; needs Chromium.
pictures: $(VENV)/.installed-dev
	$(RUN) scripts/draw_photographs.py
	$(RUN) scripts/draw_decode.py
	$(RUN) scripts/demo.py --rounds 1 --output demo --sheet .github/pictures/faces.png
	$(RUN) scripts/record_sentences.py
	$(RUN) scripts/draw_page.py $(ARGS)

# The costs of WebAssembly in the checkpoints, to record after a change of weights; needs Chromium.
browser-costs: dev.npz $(VENV)/.installed-dev
	$(RUN) scripts/browser_costs.py --data dev.npz $(ARGS)

PYTEST := $(RUN) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 40

# What a change breaks most often, in less than a minute: no process, no browser, no test above a second.
quick: $(VENV)/.installed-dev
	$(RUN) -m pytest -q -n auto --maxprocesses 4 -m "not slow and not extended" $(ARGS)

# The core, and what a change of it must not break: minutes.
test: $(VENV)/.installed-dev
	$(PYTEST) -m "not extended" $(ARGS)

# All others, too: a browser, a cluster, databases, compilers and variants, training ladders, the site.
test-all: test
	$(PYTEST) -m extended

# Data for the commands in docs/, where there is none of one's own.
dev.npz: $(VENV)/.installed
	$(RUN) scripts/draw_dev.py $@

mutations: $(VENV)/.installed-dev
	$(RUN) -m pytest -n auto --maxprocesses 4 tests/proofs/mutations $(ARGS)

app: $(VENV)/.installed-ui
	$(RUN) app.py $(ARGS)

check: $(VENV)/.installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

docs: $(VENV)/.installed-docs
	$(VENV)/bin/mkdocs build $(ARGS)

# The pages of docs/, and beside them the page that draws faces in the browser.
site: $(VENV)/.installed-dev docs
	rm -rf site/try
	$(VENV)/bin/superres export web site/try

# Wheels with the compiled variants inside. The first wheel of a platform takes long: its C++ library is compiled, too.
wheels: $(VENV)/.installed
	@for platform in $(PLATFORMS); do \
		echo "Building dist/superres-*-py3-none-$$platform.whl" >&2; \
		SUPERRES_WHEEL_PLATFORM=$$platform $(VENV)/bin/pip wheel --verbose --no-deps --wheel-dir dist . || exit 1; \
	done

# The libraries for ARM, which qemu-aarch64 runs.
native-aarch64:
	$(PYTHON) scripts/build_native.py linux_aarch64 build/linux_aarch64

# The compiled code's own tests, without Python's packages: every variant that runs here, and ARM under emulation.
native-test:
	$(PYTHON) scripts/native_kernels.py test $(ARGS)

# The same tests as WebAssembly, with the compiler and the Node.js of the packages ziglang and playwright.
wasm-test: $(VENV)/.installed-dev
	$(RUN) scripts/native_kernels.py test wasm32 wasm32-relaxed

# GMAC per second of every kernel, beside the peak of this machine.
native-bench:
	$(PYTHON) scripts/native_kernels.py bench $(ARGS)

clean:
	rm -rf $(VENV)

# Without a C++ compiler, one comes from PyPI.
COMPILER := $(if $(shell command -v c++ || command -v g++ || command -v clang++),,[compiler])

# The markers are newer than pyproject.toml once an installation is complete, so that a second run starts at once.
$(VENV)/.installed: pyproject.toml
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV) \
		|| { echo "Python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..." >&2
	@$(VENV)/bin/pip install --quiet --editable ".$(COMPILER)"
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@$(if $(filter dev,$*),echo "Installing PyTorch and all that the tests need; this takes some minutes." >&2)
	@$(VENV)/bin/pip install --quiet --editable ".[$*]"
	@touch $@
