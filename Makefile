# SPDX-License-Identifier: GPL-2.0-only
# `make` lists what there is. The work is done by the scripts named here; each
# has --help.

MAKEFLAGS += --no-print-directory
PYTHON := build/venv/bin/python
MEM ?= 1G
TIMEOUT ?= 600
# As it was typed: make leaves the $ in it alone.
export ITREE_CMD := $(value CMD)

.PHONY: help deps fetch kernel e2fsprogs vm demo test lint format clean distclean \
	srpm rpm repo deb tools test-packages test-tools \
	test-core test-sources test-bench test-e2fsprogs test-vm test-kernel fuzz-e2fsck

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

deps: ## install what building and testing need (packages as root; Python tools in build/venv)
	@packaging/deps/install

fetch: ## fetch every pristine source of sources.lock (ITREE_SOURCES=DIR: look there first)
	@packaging/sources/fetch --all

kernel: ## build the kernel under test into build/kernel/bzImage
	@kernel/build

e2fsprogs: ## build e2fsprogs into build/e2fsprogs/root
	@e2fsprogs/build

tools: ## build tar and the preload that go in disk order into build/coreutils-patches/root
	@coreutils-patches/build

vm: $(PYTHON) ## run CMD='...' in that kernel (MEM=1G, DISK='a.img b.img', SHARE=dir, TIMEOUT=600)
	@test -n "$$ITREE_CMD" || { echo "make vm: say what to run, as in: make vm CMD='uname -a'" >&2; exit 2; }
	@tests/vm/run --memory $(MEM) --timeout $(TIMEOUT) $(addprefix --kernel ,$(KERNEL)) $(addprefix --disk ,$(DISK)) \
		$(addprefix --share ,$(SHARE)) -- "$$ITREE_CMD"

srpm: ## source RPMs into build/packages/SRPMS
	@packaging/rpm/build srpm

rpm: ## RPMs built from them into build/packages/RPMS
	@packaging/rpm/build rpm

repo: ## a signed repository of both in build/packages/repo (ITREE_SIGN_KEY=FILE, ITREE_BASEURL=URL)
	@packaging/rpm/build repo

deb: ## .debs for Debian 12 into build/packages/DEBS, and a signed APT repository of them in build/packages/apt
	@packaging/deb/build repo

demo: $(PYTHON) ## the main job: list and back up a huge directory, tree ignored and tree used
	@bench/demo

test: $(PYTHON) ## every suite, one line each, then the total
	@tests/all

test-core: ## the tree algorithm: unit, model, failure injection, fuzzing, under sanitizers
	@$(MAKE) -C tests/core test

test-sources: $(PYTHON) ## fetching and checking the pristine sources, and laying ours over them
	@tests/run tests/sources

test-bench: $(PYTHON) ## the measuring tools themselves
	@tests/run tests/bench

test-e2fsprogs: $(PYTHON) ## mke2fs, e2fsck, debugfs and the library
	@tests/run tests/e2fsprogs

test-tools: $(PYTHON) ## tar, the preload and their library in disk order
	@tests/run tests/tools

test-vm: $(PYTHON) ## the VM runner itself
	@tests/run tests/vm

test-kernel: $(PYTHON) ## the file system in the kernel, and KUnit
	@tests/run tests/kernel

fuzz-e2fsck: ## libFuzzer on libext2fs over damaged trees for 10 minutes, then e2fsck on what it found
	@tests/hostile/fuzz --seconds 600 && tests/hostile/fuzz --e2fsck

test-packages: $(PYTHON) ## RPMs, .debs and repositories: built, installed, upgraded, swapped, refused
	@tests/run tests/packages

lint: $(PYTHON) ## licence lines, shellcheck, ruff, clang-format, checkpatch, sparse, W=1
	@tests/lint

format: $(PYTHON) ## put our C and Python into the format that lint wants
	@tests/lint --format

clean: ## remove what was built; keeps build/venv and the cache
	@find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} + 2>/dev/null || true
	@test ! -f tests/core/Makefile || $(MAKE) -C tests/core clean

distclean: clean ## clean, and build/venv too
	@rm -rf build

$(PYTHON):
	@echo "$(PYTHON) is missing: run \`make deps\` first" >&2; exit 1
