# `make up` runs the main job on this machine; `make test` sets up and runs every test.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: up server down test test-full check bench bench-papers clean venv lock apt ui screenshots frameworks newer-slurm

up: venv  ## start the server if none runs, run the example job, follow its log
	@$(BIN)/python examples/up.py

server: venv  ## start the server alone if none runs, as `up` does
	@$(BIN)/python examples/up.py --server

down: venv  ## stop the server; running jobs go on unless ARGS=--stop-jobs
	@$(BIN)/tercio down $(ARGS)

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	@echo "installing Tercio and its tools into $(VENV) (the first time takes a minute or two)"
	@$(PIP) -e '.[examples,dev]' 2> >(grep -v 'is ignored: it is neither a file' >&2)
	@touch $@

UI_STAMP := ui/node_modules/.built-$(shell cat ui/package-lock.json $$(find ui/src ui/*.json ui/*.ts ui/index.html -type f | sort) | cksum | tr ' ' '-')

WEB_STAMP := $(VENV)/.web-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')

ui: venv $(WEB_STAMP) $(UI_STAMP)  ## build the web page; a running server serves it from then on

$(WEB_STAMP): | $(STAMP)
	@echo "installing Node.js and Playwright into $(VENV)"
	@rm -f $(VENV)/.web-*
	@$(PIP) -e '.[web]' 2> >(grep -v 'is ignored: it is neither a file' >&2)
	@touch $@

$(UI_STAMP): | $(WEB_STAMP)
	@echo "building the web page"
	@cd ui && export PATH="$(abspath $(BIN)):$$PATH" && npm ci --silent && npm run --silent build
	@rm -f ui/node_modules/.built-*
	@touch $@

screenshots: ui apt  ## renew the pictures in docs/images
	$(BIN)/python tests/ui/look.py docs/images

check: venv  ## format, lint, types, layers, unit tests and scenarios: before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_tidy.py tests/unit tests/scenarios -m 'not full'

# Ray and the frameworks: half a gigabyte that only the tests need.
FRAMEWORKS := $(VENV)/.frameworks-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')

frameworks: $(FRAMEWORKS)

$(FRAMEWORKS): $(STAMP)
	@echo "installing Ray, Dask, JAX and mpi4py for the tests"
	@$(PIP) -e '.[ray,frameworks]' 2> >(grep -v 'is ignored: it is neither a file' >&2)
	@touch $@

test: venv apt ui frameworks  ## every test but the slow ones
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not full and not device'

# TensorFlow holds protobuf back, so it is not among the constraints.
test-full: venv apt ui frameworks newer-slurm  ## the slow tests too, and TensorFlow for them
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check tensorflow tf-keras
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not device'

# A program that a test needs, and the Debian package that brings it.
DEBIAN := \
	gcc:gcc+libc6-dev \
	git:git \
	openssl:openssl \
	slurmctld:slurmctld+slurm-wlm-basic-plugins+slurm-wlm-jwt-plugin \
	slurmd:slurmd \
	sbatch:slurm-client \
	slurmdbd:slurmdbd+slurm-wlm-mysql-plugin \
	slurmrestd:slurmrestd \
	munged:munge \
	mariadbd:mariadb-server \
	chromium:chromium+fonts-dejavu-core \
	promtool:prometheus \
	mpirun:openmpi-bin \
	podman:podman \
	runc:runc \
	busybox:busybox-static

apt:  ## Debian packages that the tests need
	@missing=""; for pair in $(DEBIAN); do \
	PATH=$$PATH:/usr/sbin command -v "$${pair%%:*}" >/dev/null || missing="$$missing $$(echo "$${pair#*:}" | tr + ' ')"; done; \
	if [ -n "$$missing" ]; then export DEBIAN_FRONTEND=noninteractive; \
	apt-get -o DPkg::Lock::Timeout=300 update -qq && \
	apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $$missing; fi

# Debian 13 in a directory, for the Slurm in it: 340 MB, made once, as root.
SLURM_TREE := $(VENV)/slurm-24.11
MIRROR := $(shell grep -rhoE 'https?://\S+/debian/?( |$$)' /etc/apt/sources.list.d /etc/apt/sources.list 2>/dev/null | head -1)

newer-slurm: $(SLURM_TREE)/usr/sbin/slurmrestd  ## Slurm 24.11 beside Debian's own, for test-full

$(SLURM_TREE)/usr/sbin/slurmrestd: | $(STAMP)
	@echo "unpacking Debian 13 with Slurm 24.11 into $(SLURM_TREE)"
	@command -v debootstrap >/dev/null || apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends debootstrap
	@debootstrap --variant=minbase \
	--include=slurm-wlm,slurmrestd,slurm-wlm-jwt-plugin,slurm-client,python3 \
	trixie $(abspath $(SLURM_TREE)).part $(MIRROR) > $(VENV)/slurm-24.11.log || { tail -5 $(VENV)/slurm-24.11.log; exit 1; }
	@mv $(SLURM_TREE).part $(SLURM_TREE)

bench: venv  ## speed and memory as a table beside published figures
	$(BIN)/python -m bench

bench-papers: venv
	$(BIN)/python -m bench.papers

lock: venv  ## write constraints.txt anew from what is installed; the CPU build's pins only
	$(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(nvidia-[^m]|cuda-|triton)' > constraints.txt

clean: 
	rm -rf $(VENV) ui/node_modules src/tercio/web/static build dist .mypy_cache .ruff_cache .pytest_cache
