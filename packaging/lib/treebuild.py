# SPDX-License-Identifier: GPL-2.0-only
"""Common parts of kernel/build and e2fsprogs/build.

A pristine source tree is unpacked once and kept.  The overlay (our files) and
the patch series are laid over it so that only files whose content changes get
a new time stamp: make then rebuilds just those.  Finished artefacts are kept
in a cache under a hash of all their inputs.
"""

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
CACHE_KEEP = 12  # builds kept per kind


class BuildError(Exception):
    """A build step failed; the text says which, where, and what to do. code: the exit code."""

    code = 1


class UsageError(BuildError):
    """An argument is wrong."""

    code = 2


def cache_dir():
    base = os.environ.get("ITREE_CACHE")
    if base:
        return pathlib.Path(base)
    xdg = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(xdg) / "itree"


def say(what, text):
    print(f"{what}: {text}", file=sys.stderr, flush=True)


def load_script(path):
    """Load a program whose name does not end in .py as a module, so that another can call its functions.

    Each call returns a new module, named after the program and its folder.
    """
    path = pathlib.Path(path)
    loader = importlib.machinery.SourceFileLoader(f"{path.parent.name}_{path.name}".replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look for it there
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def main_guard(what, main):
    """Run main() and turn expected failures into a message and an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return main() or 0
    except BuildError as err:
        print(f"{what}: {err}", file=sys.stderr)
        return err.code
    except KeyboardInterrupt:
        print(f"{what}: interrupted", file=sys.stderr)
        return 130


@contextlib.contextmanager
def locked(what, path):
    """Allow one build at a time in one place; others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(what, "another build is running here; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch(name, directory=None):
    """Path of a pristine source, by packaging/sources/fetch."""
    argv = [REPO / "packaging" / "sources" / "fetch", name]
    if directory:
        argv += ["--dir", directory]
    res = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if res.returncode:
        raise BuildError(f"cannot get the source of {name} (see above)")
    return pathlib.Path(res.stdout.strip())


def files_below(root):
    """Relative paths of the files of an overlay, without editors' leftovers."""
    if not root.is_dir():
        return []
    out = []
    for path in sorted(root.rglob("*")):
        rel = path.relative_to(root)
        if path.is_file() and not path.name.endswith(("~", ".orig", ".rej", ".swp", ".o", ".cmd")):
            out.append(str(rel))
    return out


def read_series(directory):
    """Patches named by a quilt series file, in order."""
    series = directory / "series"
    if not series.is_file():
        return []
    patches = []
    for number, line in enumerate(series.read_text().splitlines(), 1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        if not (directory / name).is_file():
            raise BuildError(f"{series}, line {number}: there is no patch {name} in {directory}")
        patches.append(directory / name)
    return patches


def patch_targets(patch):
    """Paths that a -p1 patch changes."""
    out = set()
    lines = patch.read_text(errors="surrogateescape").splitlines()
    for one, two in zip(lines, lines[1:], strict=False):
        if one.startswith("--- ") and two.startswith("+++ "):
            for name in (one[4:], two[4:]):
                name = name.split("\t")[0].strip()
                if name != "/dev/null":
                    parts = name.split("/", 1)
                    if len(parts) < 2 or ".." in parts[1].split("/") or parts[1].startswith("/"):
                        raise BuildError(f"{patch}: '{name}' is not a -p1 path")
                    out.add(parts[1])
    if not out:
        raise BuildError(f"{patch} changes no file: not a unified diff")
    return out


def sha256_file(path):
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Inputs:
    """SHA-256 over everything that goes into a build."""

    def __init__(self, kind):
        self.digest = hashlib.sha256(f"itree {kind} 1\n".encode())

    def text(self, label, text):
        self.digest.update(f"{label}\0{len(text)}\0{text}\0".encode())

    def file(self, label, path):
        mode = path.stat().st_mode & 0o111
        self.digest.update(f"{label}\0{bool(mode)}\0{sha256_file(path)}\0".encode())

    def tool(self, *argv):
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.text("tool " + argv[0], res.stdout)

    def key(self):
        return self.digest.hexdigest()


class Cache:
    """Finished artefacts by input hash; a directory is complete or absent."""

    def __init__(self, kind):
        self.dir = cache_dir() / kind

    def get(self, key, dest, names):
        entry = self.dir / key
        if not all((entry / n).exists() for n in names):
            return False
        for name in names:
            replace_tree(entry / name, dest / name)
        os.utime(entry)
        return True

    def put(self, key, src, names):
        self.dir.mkdir(parents=True, exist_ok=True)
        part = pathlib.Path(tempfile.mkdtemp(prefix=".part-", dir=self.dir))
        try:
            for name in names:
                replace_tree(src / name, part / name)
            entry = self.dir / key
            shutil.rmtree(entry, ignore_errors=True)
            part.rename(entry)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        kept = sorted((p for p in self.dir.iterdir() if len(p.name) == 64), key=lambda p: p.stat().st_mtime)
        for old in kept[:-CACHE_KEEP]:
            shutil.rmtree(old, ignore_errors=True)


def replace_tree(src, dst):
    """Copy a file or directory over another; a file is replaced in one step."""
    dst.parent.mkdir(parents=True, exist_ok=True)
    part = dst.parent / f".{dst.name}.{os.getpid()}"
    if src.is_dir():
        shutil.copytree(src, part, symlinks=True)
        shutil.rmtree(dst, ignore_errors=True)
    else:
        shutil.copy2(src, part)
    part.rename(dst)


class Tree:
    """An unpacked source with overlay and patches laid over it.

    The pristine version of each file we ever changed is kept beside the tree,
    so that a changed series starts from the original contents.
    """

    def __init__(self, what, tree):
        self.what = what
        self.tree = tree
        self.pristine = tree.parent / f"{tree.name}.pristine"
        self.state = tree.parent / f"{tree.name}.state"

    def _load(self):
        try:
            return json.loads(self.state.read_text())
        except (OSError, ValueError):
            return {}

    def unpack(self, stamp, unpack_into):
        """Unpack afresh unless the tree already comes from the same source."""
        if self.tree.is_dir() and self._load().get("source") == stamp:
            return
        say(self.what, "unpacking the source")
        part = self.tree.parent / f".{self.tree.name}.part"
        for old in (part, self.tree, self.pristine):
            shutil.rmtree(old, ignore_errors=True)
        self.state.unlink(missing_ok=True)
        part.mkdir(parents=True)
        unpack_into(part)
        part.rename(self.tree)
        self.state.write_text(json.dumps({"source": stamp, "managed": []}))

    def _keep_pristine(self, rel):
        """Path of the pristine version of a file, or None if it has none."""
        keep, absent = self.pristine / rel, self.pristine / (rel + ".absent")
        if not keep.exists() and not absent.exists():
            keep.parent.mkdir(parents=True, exist_ok=True)
            if (self.tree / rel).exists():
                shutil.copy2(self.tree / rel, keep)
            else:
                absent.touch()
        return keep if keep.exists() else None

    def lay(self, overlay, patches, release):
        """Lay {path: file} and the patches over the tree; True if anything changed."""
        state = self._load()
        targets = [(p, sorted(patch_targets(p))) for p in patches]
        managed = sorted(set(overlay) | {t for _, ts in targets for t in ts})
        changed = False
        with tempfile.TemporaryDirectory(prefix="itree-lay-") as tmp:
            scratch = pathlib.Path(tmp)
            for rel in managed:
                pristine = self._keep_pristine(rel)
                src = overlay.get(rel, pristine)
                if src is not None:
                    (scratch / rel).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(src, scratch / rel)
            for patch, touched in targets:
                self._apply(patch, scratch, release, touched)
            # Recorded before anything changes, so that the next run repairs an interrupted one.
            both = sorted(set(managed) | set(state.get("managed", [])))
            self.state.write_text(json.dumps({**state, "managed": both}))
            for rel in both:
                if rel in managed:
                    want = scratch / rel
                else:
                    want = self._keep_pristine(rel)
                changed |= self._sync(want, self.tree / rel)
        state["managed"] = managed
        self.state.write_text(json.dumps(state))
        return changed

    def _apply(self, patch, scratch, release, touched):
        argv = ["patch", "-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-i", str(patch)]
        res = subprocess.run(argv, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if res.returncode:
            rejects = "".join(
                f"\n--- {rel}.rej\n" + "\n".join((scratch / (rel + ".rej")).read_text().splitlines()[:40])
                for rel in touched
                if (scratch / (rel + ".rej")).exists()
            )
            where = patch.relative_to(REPO) if patch.is_relative_to(REPO) else patch
            raise BuildError(
                f"{where} does not apply to {release}:\n{res.stdout.strip()}{rejects}\n"
                f"Refresh the patch against {release} (quilt push -f; quilt refresh) and build again."
            )

    @staticmethod
    def _sync(want, have):
        if want is None or not want.exists():
            if have.exists():
                have.unlink()
                return True
            return False
        data = want.read_bytes()
        mode = want.stat().st_mode & 0o777 | 0o644
        if have.exists() and have.read_bytes() == data:
            if have.stat().st_mode & 0o111 != mode & 0o111:
                have.chmod(mode)
            return False
        have.parent.mkdir(parents=True, exist_ok=True)
        have.write_bytes(data)
        have.chmod(mode)
        return True


class Log:
    """Run steps into one log file, with a line of progress now and then."""

    COUNTED = re.compile(rb"^\s+(?:CC|AS|LD|AR|HOSTCC|GEN|OBJCOPY)\s|^\s*(?:ccache )?(?:gcc|cc)\s")

    def __init__(self, what, path, expected=0):
        self.what, self.path, self.expected = what, path, expected
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        self.count = 0

    def run(self, argv, cwd, env=None, progress=False, step=None):
        start = time.monotonic()
        step = step or " ".join(str(a) for a in argv[:3])
        with open(self.path, "ab") as log:
            log.write(f"\n+ {' '.join(str(a) for a in argv)}\n".encode())
            log.flush()
            proc = subprocess.Popen(
                [str(a) for a in argv],
                cwd=cwd,
                env={**clean_environ(), "LC_ALL": "C.UTF-8", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            done = threading.Event()
            ticker = threading.Thread(target=self._tick, args=(done, start), daemon=True)
            if progress:
                ticker.start()
            try:
                for line in proc.stdout:
                    log.write(line)
                    if self.COUNTED.match(line):
                        self.count += 1
                code = proc.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(proc.pid, signal.SIGKILL)
                raise
            finally:
                done.set()
        if progress:
            ticker.join()
        if code:
            lines = self.path.read_text(errors="replace").splitlines()
            errors = [n for n, t in enumerate(lines) if re.search(r"\berror:|\*\*\* |undefined reference", t)]
            shown = lines[-25:]
            if errors and errors[0] < len(lines) - 25:
                shown = lines[errors[0] : errors[0] + 15] + ["..."] + shown
            raise BuildError(
                f"{step} failed with exit code {code}:\n"
                + "\n".join("    " + t for t in shown)
                + f"\nThe whole log is in {self.path}"
            )

    def _tick(self, done, start):
        tty = sys.stderr.isatty()
        while not done.wait(2 if tty else 10):
            of = f" of about {self.expected}" if self.expected > self.count else ""
            text = f"{self.what}: {self.count}{of} objects built, {time.monotonic() - start:.0f} s"
            print(f"\r{text}\033[K" if tty else text, end="" if tty else "\n", file=sys.stderr, flush=True)
        if tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def ccache_env(what):
    """Environment that makes ccache use our cache, and the prefix for compilers; both empty without ccache."""
    if not shutil.which("ccache"):
        say(what, "ccache is not installed (`make deps` installs it): building without")
        return {}, ""
    env = {"CCACHE_DIR": os.environ.get("CCACHE_DIR", str(cache_dir() / "ccache"))}
    env["CCACHE_MAXSIZE"] = os.environ.get("CCACHE_MAXSIZE", "5G")
    # The compiler's list of headers in place of a run of the preprocessor: with an empty cache a quarter less work.
    env["CCACHE_DEPEND"] = "1"
    return env, "ccache "


def clean_environ():
    """Our environment without the variables that a calling make passes on."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}


def jobs():
    return str(os.environ.get("ITREE_JOBS") or len(os.sched_getaffinity(0)))
