# SPDX-License-Identifier: GPL-2.0-only
"""e2fsprogs' own test suite, upstream's tests and ours in its style, run on a build tree.

A run has a directory of its own beside the build tree's tests/, from where
the tests find the programs; what a failed test leaves there is kept.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess

import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]

BUILD = REPO / "build" / "e2fsprogs"
OURS = REPO / "e2fsprogs" / "overlay" / "tests"
LISTED = pathlib.Path(__file__).with_name("upstream-differences.txt")
# The parts of `make check` that are not in tests/.
UNITS = ("lib/et", "lib/ss", "lib/e2p", "lib/support", "lib/ext2fs", "e2fsck", "debugfs", "misc", "resize")
ALTERNATE = re.compile(r"^ --- alternate .* ---$", re.M)  # between two diffs
TIMEOUT = 900  # of one test, seconds


def feature_lines_only(diff):
    """Whether a diff of expected and seen output is only about `itree` in lists of features.

    Some tests compare with two expected outputs: one of the diffs must be so.
    """
    if ALTERNATE.search(diff):
        return any(feature_lines_only(part) for part in ALTERNATE.split(diff))
    lines = [ln for ln in diff.splitlines() if ln.startswith(("+", "-")) and not ln.startswith(("--- ", "+++ "))]
    old = [ln[1:] for ln in lines if ln[0] == "-"]
    new = [ln[1:] for ln in lines if ln[0] == "+"]
    return bool(new) and all(ln.endswith(" itree") for ln in new) and old == [ln[: -len(" itree")] for ln in new]


def our_tests():
    return sorted(path.name for path in OURS.glob("[a-z]_*") if path.is_dir())


def make(directory, *targets):
    argv = ["make", "-C", str(directory), *targets]
    res = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace", check=False)  # fmt: skip
    return res.returncode, res.stdout


def build_ours():
    """Bring src/ and obj/ up to date: a build from the cache has neither."""
    argv = [REPO / "e2fsprogs" / "build", "--work"]
    if subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode:
        raise tb.BuildError("e2fsprogs could not be built (see above)")
    return BUILD


def build_pristine():
    """Upstream's release without anything of ours, once, in the cache."""
    build = tb.load_script(REPO / "e2fsprogs" / "build")
    archive = tb.fetch("e2fsprogs")
    top = tb.cache_dir() / "e2fsprogs-pristine" / tb.sha256_file(archive)
    with tb.locked("e2fsprogs", top.with_name(top.name + ".lock")):
        if (top / "built").exists():
            return top
        shutil.rmtree(top, ignore_errors=True)
        (top / "src").mkdir(parents=True)
        (top / "obj").mkdir()
        build.unpack(archive)(top / "src")
        env, ccache = tb.ccache_env("e2fsprogs")
        log = tb.Log("e2fsprogs", top / "build.log")
        configure = [c for c in build.CONFIGURE if c != "--enable-fuse2fs"]
        tb.say("e2fsprogs", "building the pristine release, once")
        log.run([top / "src" / "configure", *configure, f"CC={ccache}gcc", "CFLAGS=-g -O2 -Wall"], top / "obj", env)
        for target in ("libs", "all"):
            log.run(["make", "-j" + tb.jobs(), "MAKEINFO=true", target], top / "obj", env, progress=True)
        (top / "built").touch()
    return top


class Suite:
    """A build tree and a directory to run its tests in."""

    def __init__(self, top, default_itree=False):
        self.obj, self.src = top / "obj", top / "src" / "tests"
        self.default_itree = default_itree
        self.dir = self.obj / ("check-itree" if default_itree else "check")
        for args in ((self.obj / "tests" / "progs",), (self.obj / "tests", "test_one", "mke2fs.conf", "test_data.tmp")):
            code, out = make(*args)
            if code:
                raise tb.BuildError(f"make in {args[0]} failed:\n{out}")
        self.dir.mkdir(exist_ok=True)
        for name in ("test_one", "mke2fs.conf", "test_data.tmp"):
            (self.dir / name).unlink(missing_ok=True)
            shutil.copy2(self.obj / "tests" / name, self.dir / name)
        if default_itree:
            conf = self.dir / "mke2fs.conf"
            text, count = re.subn(r"(ext4 = \{\s*features = \S+)", r"\1,itree", conf.read_text())
            if count != 1:
                raise tb.BuildError(f"{self.src}/mke2fs.conf.in: features of ext4 are not where they were")
            conf.write_text(text)

    def tests(self):
        return sorted(path.name for path in self.src.glob("[a-z]_*") if path.is_dir() and any(path.iterdir()))

    def run(self, name):
        """Runs one test; returns a result and what there is to say.

        Results are ok, failed, skipped, and features: with itree by default,
        the output differs in nothing but that it is listed as a feature.
        """
        if name in UNITS:
            code, out = make(self.obj / name, "check")
            return ("failed", out[-4000:]) if code else ("ok", "")
        for old in self.dir.glob(f"{name}.*"):
            old.unlink()
        argv = ["./test_one", "--skip-slow-tests", str(self.src / name)]
        # Its own variables only: the suite must not see, say, MKE2FS_CONFIG of who runs it.
        env = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR", "LD_PRELOAD") if k in os.environ}
        try:
            res = subprocess.run(argv, cwd=self.dir, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT,
                                 check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return "failed", f"not done after {TIMEOUT} s"
        difference = self.dir / f"{name}.failed"
        if difference.exists():
            diff = difference.read_text(errors="replace")
            known = self.default_itree and feature_lines_only(diff)
            return ("features" if known else "failed"), res.stdout + diff
        if (self.dir / f"{name}.ok").exists():
            return "ok", ""
        return ("skipped" if "skipped" in res.stdout else "failed"), res.stdout

    def run_all(self, names, jobs, progress):
        """Runs tests side by side; progress(name, result, text) after each. Returns {name: (result, text)}."""
        results = {}
        # These compile, and two makes must not compile the same thing.
        for name in [n for n in names if n in UNITS]:
            results[name] = self.run(name)
            progress(name, *results[name])
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = {pool.submit(self.run, name): name for name in names if name not in UNITS}
            for future in concurrent.futures.as_completed(futures):
                name = futures[future]
                results[name] = future.result()
                progress(name, *results[name])
        return results


def read_listed(path=LISTED):
    """{(kind, test): reason} of the committed list; the file tells what the kinds are."""
    listed = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(plain|itree|features|machine) +(\S+) +(.{10,})", line)
        if not match or (match[1], match[2]) in listed:
            raise tb.BuildError(f"{path.name}, line {number}: want `KIND TEST REASON`, each test once a kind")
        listed[match[1], match[2]] = match[3]
    return listed


def judge(results, mode, listed, base=()):
    """Compares the results of a run with the list; mode is plain or itree.

    Returns what is wrong and what was excused, each as {name: why}. A test
    that is listed must differ as listed, or be skipped. One listed for
    `machine`, or in base (it failed with the pristine release), may fail or not.
    """
    bad, excused = {}, {}
    for name, (result, text) in sorted(results.items()):
        want = "features" if ("features", name) in listed else "failed" if (mode, name) in listed else None
        if mode == "plain" and want == "features":
            want = None
        reason = listed.get((want if want == "features" else mode, name))
        if result == "skipped":
            excused[name] = text.strip().splitlines()[-1] if text.strip() else "says nothing"
        elif want and result == want:
            excused[name] = f"differs as listed: {reason}"
        elif want:
            bad[name] = f"{result}, though it is listed: {reason}"
        elif result != "ok" and ("machine", name) in listed:
            excused[name] = f"may fail: {listed['machine', name]}"
        elif result != "ok" and name in base:
            excused[name] = "fails with the pristine release as well"
        elif result != "ok":
            bad[name] = f"{result}, and is not listed"
    return bad, excused
