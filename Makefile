# SPDX-License-Identifier: GPL-2.0-only
# `make` lists what there is. The work is done by the scripts named here; each
# has --help.

MAKEFLAGS += --no-print-directory
PYTHON := build/venv/bin/python
MEM ?= 1G
TIMEOUT ?= 600
# Of the kernels in sources.lock another than the default one.
OF_BASE = $(addprefix --base ,$(BASE))
# As it was typed: make leaves the $ in it alone.
export ITREE_CMD := $(value CMD)

.PHONY: help deps fetch kernel kernel-debug kernel-uml kernel-uml-fast kernel-releases e2fsprogs vm demo test test-quick lint format clean distclean \
	srpm rpm repo deb release series image image-run tools test-packages test-tools test-ansible test-image \
	module test-module test-stock test-bases kernel-uml-early kernel-uml-early-smp kernel-uml-smp kernel-uml-kcsan kernel-bases kernel-demo xfstests soak site test-core test-docs test-sources test-bench test-e2fsprogs test-vm test-kernel test-qemu test-debug test-kernel-debug fuzz-e2fsck

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

deps: ## install what building and testing need (packages as root; Python tools in build/venv)
	@packaging/deps/install

fetch: ## fetch every pristine source of sources.lock (ITREE_SOURCES=DIR: look there first)
	@packaging/sources/fetch --all

kernel: ## build the kernel under test into build/kernel/bzImage (BASE=7.3: of that series, into build/kernel-7.3)
	@kernel/build $(OF_BASE) $(if $(BASE),--out build/kernel-$(BASE))

kernel-debug: ## the same with KASAN, lockdep and fault injection into build/kernel-debug (an hour on two cores)
	@kernel/build --config-extra kernel/config/debug.config --out build/kernel-debug

kernel-uml: ## the same checks in a kernel that is a program of this host, into build/kernel-uml/linux
	@kernel/build $(OF_BASE) --uml --out build/kernel-uml$(addprefix -,$(BASE))

kernel-uml-fast: ## such a program without the checks, with XFS and btrfs, into build/kernel-uml-fast/linux: bench/ with ITREE_KERNEL=
	@kernel/build $(OF_BASE) --uml --fast --out build/kernel-uml-fast$(addprefix -,$(BASE))

kernel-bases: $(PYTHON) ## the kernels of make test-bases, such programs, too, into build/kernel-bases-SERIES
	@tests/bases $(OF_BASE) --build

kernel-demo: ## the least that `make demo` runs on, such a program, too, into build/kernel-demo/linux
	@kernel/build --uml --fast --config-extra kernel/config/demo.config --out build/kernel-demo

kernel-uml-early: ## such a program, too, whose trees begin at 2 blocks, into build/kernel-uml-early/linux: for xfstests
	@kernel/build --uml --fast --tree-from 2 --config-extra kernel/config/xfstests.config --out build/kernel-uml-early

kernel-uml-early-smp: ## Linux 7.3 with two processors, likewise, into build/kernel-uml-early-smp/linux
	@kernel/build --base 7.3 --uml --fast --tree-from 2 --config-extra kernel/config/xfstests.config \
		--config-extra kernel/config/smp.config --out build/kernel-uml-early-smp

kernel-uml-smp: ## Linux 7.3 as such a program, with two processors, KASAN and lockdep, into build/kernel-uml-smp/linux: for soak
	@kernel/build --base 7.3 --uml --config-extra kernel/config/smp.config --out build/kernel-uml-smp

kernel-uml-kcsan: ## the same with KCSAN, which finds data races, into build/kernel-uml-kcsan/linux
	@kernel/build --base 7.3 --uml --fast --config-extra kernel/config/smp.config --config-extra kernel/config/kcsan.config \
		--out build/kernel-uml-kcsan

kernel-releases: ## check that the patches apply to every 6.12.y (BASE=7.3: 7.3.y) the package mirror offers, and compile
	@kernel/releases $(OF_BASE)

e2fsprogs: ## build e2fsprogs into build/e2fsprogs/root
	@e2fsprogs/build

tools: ## build tar, rsync and the preload that go in disk order (ITREE_FULL=1: ls, cp, mv, too) into build/coreutils-patches/root
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

deb: ## .debs into build/packages/DEBS/RELEASE, a signed APT repository in build/packages/apt/RELEASE (RELEASE=trixie: another)
	@packaging/deb/build repo $(addprefix --release ,$(RELEASE))

series: ## mails for Linux, e2fsprogs, tar, rsync and coreutils into build/series (PROJECT=linux, BASE=6.12: less; CHECK=1: compile after each)
	@packaging/series $(PROJECT) $(OF_BASE) $(if $(CHECK),--check)

release: $(PYTHON) ## what a web server shows, signed: repositories, appliance, collection, bill of materials, in build/release (hours; PART=bookworm, NAME='e2fsprogs ext4itree': less)
	@$(PYTHON) packaging/release/build $(NAME) $(addprefix --part ,$(PART))

site: $(PYTHON) ## the documentation and the man pages as a static site in build/site, by MkDocs; a broken link is an error
	@$(PYTHON) docs/site/build

module: ## ext4itree, ext4 with the itree beside the ext4 of a distribution's kernel (KERNEL=RELEASE or headers; default: the running one)
	@kernel/module/build $(addprefix --kernel ,$(KERNEL))

image: $(PYTHON) ## the backup appliance: build/image/itree-backup.raw, by mkosi (root)
	@image/build

image-run: $(PYTHON) ## boot it in QEMU on this terminal (SSH_KEY=FILE.pub; ssh -p 2222 root@127.0.0.1)
	@image/run $(addprefix --ssh-key ,$(SSH_KEY))

demo: $(PYTHON) ## the main job: list and back up a huge directory, tree ignored and tree used
	@bench/demo

test: $(PYTHON) ## every suite, one line each, then the total
	@tests/all

test-quick: $(PYTHON) ## before you send a patch: tests of what changed since BASE=REF, a sample of the others, in MINUTES=10 after the builds
	@tests/all --quick $(addprefix --base ,$(BASE)) $(addprefix --minutes ,$(MINUTES))

test-core: ## the tree algorithm: unit, model, failure injection, fuzzing, under sanitizers
	@$(MAKE) -C tests/core test

test-sources: $(PYTHON) ## fetching and checking the pristine sources, and laying ours over them
	@tests/run tests/sources tests/runner

test-docs: $(PYTHON) ## commands of README and docs, run as written; the site: links, navigation, man pages, a phone's width
	@tests/run tests/docs

test-bench: $(PYTHON) ## the measuring tools themselves
	@tests/run tests/bench

test-e2fsprogs: $(PYTHON) ## mke2fs, e2fsck, debugfs and the library
	@tests/run tests/e2fsprogs

test-tools: $(PYTHON) ## tar, rsync, the preload and their library in disk order (ITREE_FULL=1: ls, cp, mv, too)
	@tests/run tests/tools

test-vm: $(PYTHON) ## the VM runner itself
	@tests/run tests/vm tests/xfstests

test-kernel: $(PYTHON) kernel-uml-fast ## the file system in the kernel, as a program of this host
	@tests/run tests/kernel -m 'not qemu$(if $(ITREE_FULL),, and not debug)' --kernel-image build/kernel-uml-fast/linux

test-qemu: $(PYTHON) ## in QEMU: what needs two processors or a machine, and some of each other group
	@tests/run tests/kernel -m qemu

test-module: $(PYTHON) e2fsprogs ## ext4itree: built for the distribution's kernels, and beside their ext4
	@tests/run tests/module

test-stock: $(PYTHON) e2fsprogs ## some of tests/kernel on the distribution's kernel with that module (ITREE_FULL=1: whole groups)
	@tests/stock

test-bases: $(PYTHON) e2fsprogs ## a tenth of tests/kernel on the newest kernel series of sources.lock (ITREE_FULL=1: all, on each; BASE=7.3: on that one)
	@tests/bases $(OF_BASE)

test-debug: $(PYTHON) ## damaged trees, failing disks and memory on the debug kernel: KASAN, UBSAN, lockdep, kmemleak
	@tests/run tests/kernel -m debug --kernel-image build/kernel-uml/linux

test-kernel-debug: $(PYTHON) kernel-uml ## all of test-kernel on it but the largest directories (an hour on one processor)
	@tests/run tests/kernel -m 'not slow' --kernel-image build/kernel-uml/linux

xfstests: $(PYTHON) ## others' tests: XFSTESTS=DIR (a checkout), LIST=short|full|FILE, CONFIG=4k (of six), RUN=NAME, FRESH=1, SMP=1: two processors; prints the differences
	@test -n "$(XFSTESTS)" || { echo "make xfstests: say where a checkout of xfstests is, as in: make xfstests XFSTESTS=../xfstests" >&2; exit 2; }
	@packaging/deps/install --with xfstests
	@$(MAKE) kernel-uml-early$(if $(SMP),-smp) e2fsprogs
	@$(PYTHON) tests/xfstests/run --kernel build/kernel-uml-early$(if $(SMP),-smp)/linux $(addprefix --list ,$(LIST)) $(addprefix --config ,$(CONFIG)) $(addprefix --run ,$(RUN)) \
		$(addprefix --side ,$(SIDE)) $(if $(FRESH),--fresh) "$(XFSTESTS)"

soak: $(PYTHON) e2fsprogs ## a volume that lives for HOURS=4: mail, backups, listings, builds, drops (KIND=smp: two processors, KASAN; KIND=kcsan: data races; FRESH=1)
	@$(MAKE) kernel-uml-$(or $(KIND),fast)
	@$(PYTHON) tests/soak/run $(addprefix --hours ,$(HOURS)) $(addprefix --kind ,$(KIND)) $(if $(FRESH),--fresh)

fuzz-e2fsck: ## libFuzzer on libext2fs over damaged trees for 10 minutes, then e2fsck on what it found
	@tests/hostile/fuzz --seconds 600 && tests/hostile/fuzz --e2fsck

test-packages: $(PYTHON) ## RPMs, .debs and repositories: built, installed, upgraded, swapped, refused
	@tests/run tests/packages

test-ansible: $(PYTHON) ## the collection: lint, modules, roles, roll-outs that stop
	@tests/run tests/ansible

test-image: $(PYTHON) ## the backup appliance: backups, what goes wrong, the data disk, units (ITREE_FULL=1: the image boots)
	@tests/run tests/image

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
