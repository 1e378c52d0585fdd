# SPDX-License-Identifier: GPL-2.0-only
"""How `make test-quick` maps changed files to tests.

RULES is the table. A file is matched against the patterns from top to bottom, and the first match counts. `*` matches
slashes, too. The right side names suites, or files of a suite's tests as in `packages:test_*deb*`. A file of tests/
that no rule names belongs to the suite of its folder; if its name begins with test_, only that file is run.
"""

import fnmatch
import pathlib
import subprocess

TREE_CODE = "core kernel sources e2fsprogs lint"
ALL_USE_LIB = "sources bench e2fsprogs packages tools ansible image vm module"
RULES = (
    # what applies to the kernel
    ("kernel/README.md", "lint"),
    ("kernel/module/*", "module stock packages:test_module_*"),
    ("kernel/config/debug.config", "debug packages:test_kernel_*"),
    ("kernel/config/bases.config", "bases"),
    ("kernel/config/*uml.config", "kernel vm:test_uml.py"),
    ("kernel/config/*fast.config", "kernel"),
    ("kernel/config/demo.config", "bench:test_demo.py"),
    ("kernel/config/*", "qemu packages:test_kernel_*"),
    ("kernel/fs/ext4/*", TREE_CODE),
    ("kernel/releases", "sources:test_releases.py"),
    ("kernel/callees", "sources:test_callees.py"),
    ("kernel/upstream/*", "sources:test_series.py core kernel lint"),
    ("kernel/uml/*", "sources kernel lint"),
    ("kernel/*", "core kernel sources lint"),
    ("e2fsprogs/README.md", "lint"),
    ("e2fsprogs/overlay/misc/e4itree_arrange.c", "e2fsprogs:test_arrange.py e2fsprogs:test_e4itree.py"),
    ("e2fsprogs/overlay/misc/fuse2fs_*", "e2fsprogs:test_fuse.py e2fsprogs:test_links.py"),
    ("e2fsprogs/overlay/misc/switch_itree.*", "e2fsprogs:test_tune2fs.py"),
    ("e2fsprogs/overlay/misc/e4itree.bash", "e2fsprogs:test_completion.py"),
    ("e2fsprogs/overlay/misc/e4itree*", "e2fsprogs:test_e4itree.py e2fsprogs:test_arrange.py"),
    ("e2fsprogs/overlay/tests/*", "e2fsprogs:test_upstream.py"),
    ("e2fsprogs/upstream/*", "sources:test_series.py e2fsprogs:test_fixes.py lint"),
    ("e2fsprogs/*", "e2fsprogs sources:test_series.py"),
    ("coreutils-patches/README.md", "lint"),
    ("coreutils-patches/*upstream/*", "sources:test_series.py lint"),
    ("coreutils-patches/lib/*", "tools sources:test_series.py"),
    ("coreutils-patches/tar/*", "tools:test_tar* sources:test_series.py"),
    ("coreutils-patches/rsync/*", "tools:test_rsync.py sources:test_series.py"),
    ("coreutils-patches/coreutils/*", "tools:test_coreutils.py sources:test_series.py"),
    ("coreutils-patches/*", "tools"),
    # packages and programs around it
    ("packaging/*.md", "lint"),
    ("packaging/advise/*", "bench:test_advise.py packages:test_deb.py packages:test_release.py"),
    ("packaging/deb/ext4itree/*", "packages:test_module_deb.py"),
    ("packaging/deb/kernel/*", "packages:test_kernel_deb.py"),
    ("packaging/deb/server/*", "packages:test_*deb* packages:test_changelog.py ansible:test_recommended.py"),
    ("packaging/deb/advise/*", "packages:test_*deb* packages:test_changelog.py ansible:test_recommended.py"),
    ("packaging/deb/*", "packages:test_*deb* packages:test_changelog.py"),
    ("packaging/rpm/try-on-host", "module"),
    ("packaging/rpm/ext4itree*", "packages:test_module_rpm.py"),
    ("packaging/rpm/kernel*", "packages:test_kernel_rpm.py"),
    ("packaging/rpm/itree-storage-server*", "packages:test_rpm_* ansible:test_recommended.py"),
    ("packaging/rpm/*", "packages:test_rpm_* packages:test_kernel_rpm.py packages:test_changelog.py"),
    ("packaging/release/*", "packages:test_release.py"),
    ("packaging/publisher*", "packages:test_publisher.py"),
    ("packaging/lib/publisher.py", "packages:test_publisher.py packages:test_release.py"),
    ("packaging/lib/series.py", "sources:test_series.py e2fsprogs:test_fixes.py"),
    ("packaging/lib/treebuild.py", ALL_USE_LIB),
    ("packaging/lib/debian.py", "packages image ansible kernel"),
    ("packaging/lib/*", "packages image ansible"),
    ("packaging/series", "sources:test_series.py packages:test_publisher.py"),
    ("packaging/sources/*", "sources packages:test_deb_source.py"),
    ("packaging/deps/*", "lint sources"),
    ("packaging/*", "packages"),
    ("ansible/*", "ansible"),
    ("image/README.md", "lint"),
    ("image/*/usr/share/bash-completion/*", "image:test_completion.py"),
    ("image/appliance/*", "image ansible:test_appliance.py"),
    ("image/*", "image"),
    ("bench/README.md", "lint"),
    ("bench/memory", "tools:test_memory.py"),
    ("bench/lab/*", "bench tools:test_file_systems.py"),
    ("bench/*", "bench"),
    # pages
    ("docs/module.md", "docs lint packages:test_module_deb.py"),
    ("docs/results*", "bench:test_matrix.py"),
    ("docs/tools.*", "bench:test_tooltable.py"),
    ("docs/*", "docs lint"),
    # tests, and what several suites share
    ("tests/all", "sources:test_quick.py"),
    ("tests/lint", "lint"),
    ("tests/run", "sources"),
    ("tests/bases", "bases"),
    ("tests/stock", "stock"),
    ("tests/upstream", "e2fsprogs:test_upstream.py"),
    ("tests/*.md", "lint"),
    ("tests/core/*", "core"),
    ("tests/lib/command.py", "sources:test_command.py packages docs e2fsprogs tools ansible image"),
    ("tests/lib/completion.py", "image:test_completion.py e2fsprogs:test_completion.py"),
    ("tests/lib/turns.py", "kernel stock bases"),
    ("tests/lib/*", "packages docs"),
    ("tests/vm/test_*", "vm"),
    ("tests/vm/chromium.py", "docs:test_site.py image:test_browser.py"),
    ("tests/vm/vm.py", "docs vm kernel qemu module stock bench packages ansible image"),
    ("tests/vm/uml.py", "docs vm kernel bench image:test_power.py"),
    ("tests/vm/stock.py", "vm module stock packages:*deb* ansible"),
    ("tests/vm/debian_*", "packages:*deb* ansible"),
    ("tests/vm/firmware.py", "packages image ansible"),
    ("tests/hostile/*", "e2fsprogs:test_hostile.py e2fsprogs:test_shared_extents.py kernel"),
    ("tests/walker/*", "e2fsprogs:test_walk.py e2fsprogs:test_deep_extents.py kernel:test_kernel_walk.py"),
    ("tests/xfstests/*", "vm:test_results.py vm:test_record.py vm:test_watching.py"),
    ("tests/kernel/kt/damaged.py", "debug"),
    ("tests/kernel/kt/corrupt.py", "debug"),
    ("tests/kernel/kt/faults.py", "debug"),
    ("tests/soak/*", "lint"),
    # the rest of the top
    ("sources.lock", "sources packages:test_rpm_build.py lint"),
    ("VERSION", "packages:test_publisher.py packages:test_changelog.py"),
    ("Makefile", "sources:test_quick.py"),
    (".ci/*", "lint"),
    (".github/*", "lint"),
    (".*", "lint"),
    ("*.md", "docs lint"),
    ("MAINTAINERS", "lint"),
    ("LICENSE", "lint"),
    ("pytest.ini", f"{ALL_USE_LIB} docs kernel"),
    ("ruff.toml", "lint"),
)  # fmt: skip

# Folders of tests that do not have the name of their suite.
FOLDERS = {"xfstests": "vm", "runner": "sources"}
# Builds that a sample of a suite uses. Only a change starts the other suites: their builds or machines take
# longer, and `core` gives the same result until a file changes that concerns it.
SAMPLED = {"sources": (), "lint": (), "packages": (), "tools": ("tools",), "e2fsprogs": ("e2fsprogs",),
           "image": ("e2fsprogs",), "bench": ("kernel-uml-fast", "e2fsprogs"),
           "ansible": ("kernel-uml-fast", "e2fsprogs"), "vm": ("kernel-uml-fast",),
           "kernel": ("kernel-uml-fast", "e2fsprogs")}  # fmt: skip
# Files that show that such a build exists.
BUILT = {"kernel-uml-fast": "build/kernel-uml-fast/linux", "e2fsprogs": "build/e2fsprogs/root/sbin/mke2fs",
         "tools": "build/coreutils-patches/root"}  # fmt: skip
# Seconds of a test that was never timed.
GUESS = {"sources": 1, "bench": 1, "e2fsprogs": 1, "packages": 20, "tools": 1, "ansible": 10, "image": 4, "vm": 10,
         "kernel": 5}  # fmt: skip
# Of the time of a suite that a change concerns, the share of the tests which the table names.
CHANGED_SHARE = 0.75


class Error(Exception):
    """The request cannot be met; the text says why."""


def git(top, *args):
    res = subprocess.run(["git", *args], cwd=top, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return res.stdout.strip() if res.returncode == 0 else None


def uncommitted(top):
    """Names of files that were changed, added or removed and not committed."""
    names = (git(top, "diff", "--name-only", "--no-renames", "-z", "HEAD") or "").split("\0")
    return {n for n in names + (git(top, "ls-files", "-z", "-o", "--exclude-standard") or "").split("\0") if n}


def find_base(top, ref=None):
    """Return the commit to compare with, or None without git, and the reason for it."""
    if git(top, "rev-parse", "--verify", "-q", "HEAD") is None:
        return None, "there is no git repository: a sample only"
    if ref:
        base = git(top, "merge-base", "HEAD", ref)
        if base is None:
            raise Error(f"{ref} is no commit that shares history with HEAD")
        return base, f"the merge base with {ref}"
    for name in ("@{upstream}", "origin/main", "main"):
        base = git(top, "merge-base", "HEAD", name)
        if base is None:
            continue
        if base != git(top, "rev-parse", "HEAD"):
            return base, f"the merge base with {name}"
        if uncommitted(top):
            return base, f"{name} holds HEAD: uncommitted changes only"
        break
    base = git(top, "rev-parse", "--verify", "-q", "HEAD~1")
    return (base, "the commit before the last") if base else (git(top, "rev-parse", "HEAD"), "there is only one commit")


def changed_files(top, base):
    if base is None:
        return []
    names = (git(top, "diff", "--name-only", "--no-renames", "-z", base) or "").split("\0")
    return sorted({n for n in names if n} | uncommitted(top))


def targets(name, suites):
    """Return what a changed file concerns, as in RULES; empty if neither the table nor tests/ knows it."""
    for pattern, words in RULES:
        if fnmatch.fnmatchcase(name, pattern):
            return words.split()
    parts = pathlib.PurePath(name).parts
    if len(parts) > 2 and parts[0] == "tests":
        suite = FOLDERS.get(parts[1], parts[1])
        if suite in suites:
            test = parts[-1].startswith("test_") and parts[-1].endswith(".py")
            return [f"{suite}:{parts[-1]}" if test else suite]
    return []


def concerned(names, suites):
    """Return {suite: {glob of files: [changed files]}}, and the changed files that no rule knows."""
    found, unknown = {}, []
    for name in names:
        words = targets(name, suites)
        if not words:
            unknown.append(name)
        for word in words:
            suite, _, glob = word.partition(":")
            found.setdefault(suite, {}).setdefault(f"tests/*/{glob or '*'}", []).append(name)
    return found, unknown


def seed(top):
    return git(top, "rev-parse", "HEAD") or ""
