# SPDX-License-Identifier: GPL-2.0-only
"""What packaging/rpm/build and packaging/deb/build have in common: the version, the sources, the key."""

import contextlib
import datetime
import gzip
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import treebuild as tb

REPO = tb.REPO
TEST_NAME = "itree TEST KEY (thrown away, proves nothing)"


def run(argv, **kwargs):
    """Run a command; its output as text, or a BuildError with the end of it."""
    check = kwargs.pop("check", True)
    argv = [str(a) for a in argv]
    res = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False, **kwargs,
    )  # fmt: skip
    if check and res.returncode:
        shown = "\n".join("    " + t for t in res.stdout.splitlines()[-40:])
        raise tb.BuildError(f"{' '.join(argv[:6])} ... failed with exit code {res.returncode}:\n{shown}")
    return res.stdout if check else res


class Version:
    """Time and release of what is packaged: those of the commit, unless the environment says otherwise.

    epoch is in seconds since 1970 (SOURCE_DATE_EPOCH overrides it), release a
    string that sorts by time and is legal in RPM and Debian versions
    (ITREE_RELEASE overrides it).
    """

    def __init__(self):
        git = ["git", "-C", REPO]
        epoch, release = os.environ.get("SOURCE_DATE_EPOCH"), os.environ.get("ITREE_RELEASE")
        if not (epoch and release):
            res = run([*git, "show", "-s", "--format=%ct %h", "HEAD"], check=False)
            if res.returncode:
                raise tb.BuildError("this is no git checkout: set SOURCE_DATE_EPOCH and ITREE_RELEASE")
            seconds, commit = res.stdout.split()
            epoch = epoch or seconds
            stamp = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
            dirty = bool(run([*git, "status", "--porcelain", "--untracked-files=no"]).strip())
            release = release or f"0.{stamp:%Y%m%d%H%M}.g{commit}{'.changed' * dirty}"
        self.epoch, self.release = int(epoch), release

    @property
    def date(self):
        return datetime.datetime.fromtimestamp(self.epoch, datetime.UTC)


def e2fsprogs_parts():
    """Our files as {path in the tree: file}, and our patches in order: what e2fsprogs/build lays over the source."""
    loader = importlib.machinery.SourceFileLoader("e2fsprogs_build", str(REPO / "e2fsprogs" / "build"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module.inputs_of("", ())[:2]


def tarball(files, dest, epoch):
    """Write {name: path} as a .tar.gz that depends on nothing but names, modes, contents and epoch."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            data = path.read_bytes()
            info.size, info.mtime = len(data), epoch
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(info, io.BytesIO(data))
    dest.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def expand(template, dest, **words):
    """Fill in the @WORDS@ of a template; a word nobody knows is an error."""
    text = template.read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    left = [w for w in ("VERSION", "RELEASE", "SOURCE", "PATCHES", "CHANGELOG", "URL", "BASEURL") if f"@{w}@" in text]
    if left:
        raise tb.BuildError(f"{template.relative_to(REPO)}: nobody fills in {', '.join(left)}")
    dest.write_text(text)


class Key:
    """A GPG home with one secret key: that of a file (--key), or a test key made once and kept in a directory.

    The home lies in /tmp, since the agent's socket wants a short path, and goes
    when the context ends.
    """

    def __init__(self, path, keep):
        self.path, self.keep = path, keep

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.home = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="itree-gpg-")))
        self.stack.callback(run, ["gpgconf", "--homedir", self.home, "--kill", "gpg-agent"], check=False)
        try:
            source = pathlib.Path(self.path) if self.path else self.keep / "test-key.asc"
            if self.path and not source.is_file():
                raise tb.BuildError(f"--key {source}: no such file")
            if not source.exists():
                self._make(source)
            res = self.gpg("--import", source, check=False)
            if res.returncode:
                raise tb.BuildError(f"{source} could not be read as a key:\n{res.stdout.strip()}")
            keys = [t.split(":") for t in self.gpg("--list-secret-keys", "--with-colons").splitlines()]
            prints = [k[9] for k in keys if k[0] == "fpr"]
            if not prints:
                raise tb.BuildError(f"{source} holds no secret key: export one with gpg --export-secret-keys --armor")
            self.fingerprint = prints[0]
            self.public = self.home / "public.asc"
            self.public.write_text(self.gpg("--armor", "--export", self.fingerprint))
            self.is_test = not self.path
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc):
        self.stack.close()

    def gpg(self, *args, **kwargs):
        return run(["gpg", "--homedir", self.home, "--batch", "--no-tty", "--quiet", "--pinentry-mode", "loopback",
                    "--passphrase", "", *args], **kwargs)  # fmt: skip

    def _make(self, dest):
        tb.say("packages", "no key was given (--key FILE): making a test key")
        self.gpg("--quick-generate-key", TEST_NAME, "rsa3072", "sign", "never")
        text = self.gpg("--armor", "--export-secret-keys")
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.touch(mode=0o600)
        dest.write_text(text)

    def sign_rpms(self, rpms):
        macros = (f"_gpg_name {self.fingerprint}", f"_gpg_path {self.home}", f"__gpg {shutil.which('gpg')}")
        options = [word for macro in macros for word in ("--define", macro)]
        run(["rpmsign", *options, "--addsign", *rpms], env={**os.environ, "GNUPGHOME": str(self.home)})

    def sign_file(self, path):
        """A detached, armoured signature beside the file."""
        out = path.with_name(path.name + ".asc")
        out.unlink(missing_ok=True)
        self.gpg("--armor", "--local-user", self.fingerprint, "--output", out, "--detach-sign", path)
