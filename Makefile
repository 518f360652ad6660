# Every target sets up what it needs in .venv: only Python 3.10 or newer and make are expected. PYTHON picks another Python.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test mutations app check docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(RUN) scripts/demo.py $(ARGS)

test: $(VENV)/.installed-dev
	$(RUN) -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

# Data for the commands in docs/, where there is none of one's own.
dev.npz: $(VENV)/.installed
	$(RUN) scripts/draw_dev.py $@

mutations: $(VENV)/.installed-dev
	$(RUN) -m pytest -n auto --maxprocesses 4 tests/mutations $(ARGS)

app: $(VENV)/.installed-ui
	$(RUN) app.py $(ARGS)

check: $(VENV)/.installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

docs: $(VENV)/.installed-docs
	$(VENV)/bin/mkdocs build $(ARGS)

clean:
	rm -rf $(VENV)

# The markers are newer than pyproject.toml once an installation is complete, so that a second run starts at once.
$(VENV)/.installed: pyproject.toml
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV) \
		|| { echo "Python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time this downloads PyTorch and takes some minutes." >&2
	@$(VENV)/bin/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@$(VENV)/bin/pip install --quiet --editable ".[$*]"
	@touch $@
