# SPDX-License-Identifier: GPL-2.0-only
"""Common parts of packaging/rpm/build and packaging/deb/build: the version, the sources, the key."""

import argparse
import contextlib
import datetime
import gzip
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import textwrap

import publisher
import treebuild as tb

REPO = tb.REPO
TEST_NAME = "itree TEST KEY (thrown away, proves nothing)"


def run(argv, **kwargs):
    """Run a command; returns its output as text. A failure raises BuildError with the end of the output."""
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
    """Time and release of the packages: those of the commit, unless the environment overrides them.

    epoch is in seconds since 1970 (SOURCE_DATE_EPOCH overrides it), release a
    string that sorts by time and is legal in RPM and Debian versions
    (ITREE_RELEASE overrides it). A commit with the tag vN, where N is in the
    file VERSION, is release N; one without is N.TIME.gCOMMIT, and sorts after
    N and before N + 1.
    """

    def __init__(self):
        git = ["git", "-C", REPO]
        epoch, release = os.environ.get("SOURCE_DATE_EPOCH"), os.environ.get("ITREE_RELEASE")
        if not (epoch and release):
            res = run([*git, "show", "-s", "--format=%ct %h", "HEAD"], check=False)
            if res.returncode:
                raise tb.BuildError("this is not a git checkout: set SOURCE_DATE_EPOCH and ITREE_RELEASE")
            seconds, commit = res.stdout.split()
            epoch = epoch or seconds
            stamp = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
            dirty = bool(run([*git, "status", "--porcelain", "--untracked-files=no"]).strip())
            number = self.number()
            tagged = f"v{number}" in run([*git, "tag", "--points-at", "HEAD"]).split()
            snapshot = f"{number}.{stamp:%Y%m%d%H%M}.g{commit}{'.changed' * dirty}"
            release = release or (number if tagged and not dirty else snapshot)
        self.epoch, self.release = int(epoch), release

    @staticmethod
    def number():
        """The number of the last release; 0 before the first.

        A whole number: a build after 1.2 would count as newer than 1.2.1.
        """
        text = re.sub("#.*", "", (REPO / "VERSION").read_text()).strip()
        if not text.isdecimal():
            raise tb.BuildError(f"the file VERSION says {text!r}: it must be a whole number")
        return text

    @property
    def date(self):
        return datetime.datetime.fromtimestamp(self.epoch, datetime.UTC)


# The first release whose e2fsck keeps the directories described below: that of commit 5ddd5f9.
SOUND_E2FSCK = "0.202611251322"
E2FSPROGS_CHANGES = (
    f"Releases before {SOUND_E2FSCK} lose names: their e2fsck takes a sound directory with an itree for damaged if its "
    "extent tree has two levels or more. Do not run their e2fsck -y on such a volume.",
)


def change_lines(changes, bullet):
    """The entries of a changelog, wrapped and indented."""
    entries = (*changes, "Built from the sources of that day; git has the history.")
    indent = " " * len(bullet)
    return "\n".join(textwrap.fill(t, 76, initial_indent=bullet, subsequent_indent=indent) for t in entries)


def e2fsprogs_parts():
    """Our files as {path in the tree: file}, and our patches in order, which e2fsprogs/build lays over the source."""
    return tb.load_script(REPO / "e2fsprogs" / "build").inputs_of("", ())[:2]


def kernel_parts():
    """The same of the kernel, by kernel/build."""
    return tb.load_script(REPO / "kernel" / "build").inputs_of("", (), False)[:2]


def kernel_source(directory, dest):
    """Put the kernel's pristine tarball into dest (a directory); (its path, its version as in 6.12.117)."""
    archive = tb.fetch("linux", directory)
    if archive.suffix == ".deb":
        cmd = 'dpkg-deb --fsys-tarfile "$1" | tar -xC "$2" --strip-components=3 --wildcards "*/linux-source-*.tar.xz"'
        run(["bash", "-o", "pipefail", "-c", cmd, "unpack", archive, dest])
        (tarball_path,) = dest.glob("linux-source-*.tar.xz")
    else:
        tarball_path = dest / archive.name
        shutil.copy(archive, tarball_path)
    # Not every file name has the point release.
    only = ("--occurrence=1", "--wildcards", "--no-wildcards-match-slash", "*/Makefile")
    top = run(["tar", "-xJOf", tarball_path, *only])
    numbers = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", top, re.M))
    version = ".".join(numbers.get(n, "?") for n in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))
    if not re.fullmatch(r"6\.12\.\d+", version):
        raise tb.BuildError(f"{archive} is Linux {version}; our patches are for 6.12.y. Name another with --dir.")
    return tarball_path, version


def kernel_arguments(parser):
    """Add the options that the builders of kernel packages have in common."""
    parser.add_argument("--kernel", choices=("server", "small"), default="server",
                        help="small: a kernel for the packages' own tests, built in minutes")  # fmt: skip
    parser.add_argument("--module-key", metavar="FILE", default=os.environ.get("ITREE_MODULE_KEY"),
                        help="sign modules with this key; a PEM file with key and certificate, "
                        "no passphrase; also ITREE_MODULE_KEY. Without it modules are not signed")  # fmt: skip
    parser.add_argument("--efi-key", metavar="FILE", default=os.environ.get("ITREE_EFI_KEY"),
                        help="sign vmlinuz for Secure Boot with this key, a file of the same kind, by sbsign; "
                        "also ITREE_EFI_KEY. Hosts must have its certificate enrolled")  # fmt: skip
    parser.add_argument("--btf", action=argparse.BooleanOptionalAction,
                        help="type information for BPF programs; default: in the server's kernel")  # fmt: skip


def pem_key(option, path):
    """The absolute path of a signing key, after checking that it is one."""
    path = pathlib.Path(path).absolute()
    if not path.is_file():
        raise tb.BuildError(f"{option} {path}: no such file")
    text = path.read_text(errors="replace")
    for what in ("PRIVATE KEY", "CERTIFICATE"):
        if f"-----BEGIN {what}-----" not in text:
            raise tb.BuildError(f"{option} {path}: there is no {what.lower()} in it (PEM, without a passphrase)")
    if option == "--efi-key" and not shutil.which("sbsign"):
        raise tb.BuildError("--efi-key needs sbsign, which is not installed: run `make deps`")
    return path


def wants_btf(args):
    """Whether the kernel gets type information for BPF programs. Raises BuildError if pahole is missing."""
    wanted = args.kernel == "server" if args.btf is None else args.btf
    if wanted and not shutil.which("pahole"):
        raise tb.BuildError("BTF is made by pahole, which is not installed: run `make deps`, or add --no-btf")
    return wanted


def kernel_keys(args):
    """{option: path} of the keys given for the kernel, each checked."""
    given = {"--module-key": args.module_key, "--efi-key": args.efi_key}
    return {option: pem_key(option, path) for option, path in given.items() if path}


def kernel_fragments(args, tree):
    """The arguments of kernel/config/configure. Puts a key for signing modules into the tree."""
    config = REPO / "kernel" / "config"
    words = ["--alone", config / "small.config"]
    if args.kernel == "server":
        words = [config / "itree.config", config / "server.config"]
    if wants_btf(args):
        words.append(config / "btf.config")
    if args.module_key:
        key = tree / "certs" / "itree_key.pem"
        shutil.copy(pem_key("--module-key", args.module_key), key)
        key.chmod(0o600)
        words.append(config / "signed.config")
        if args.kernel == "server":
            words.append(config / "lockdown.config")
    return words


def write_tarball(members, dest, epoch):
    """Write a .tar.gz that depends only on epoch and the members: (name, mode, bytes, or None for a directory)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode, data in sorted(members):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.mode, info.size, info.mtime = mode, len(data or b""), epoch
            tar.addfile(info, io.BytesIO(data or b""))
    dest.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def tarball(files, dest, epoch):
    """Write {name: path} by write_tarball()."""
    members = [(name, 0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes())
               for name, path in files.items()]  # fmt: skip
    write_tarball(members, dest, epoch)


def sums(digests):
    """The text of SHA256SUMS for {name: digest}."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def filled(template, **words):
    """The text of a template with its @WORDS@ and the publisher's filled in; an unknown word is an error."""
    text, who = template.read_text(), publisher.read()
    for word, value in {"MAINTAINER": who.who, "HOST": who.host, "URL": who.url, **words}.items():
        text = text.replace(f"@{word}@", value)
    left = sorted(set(re.findall(r"@([A-Z]{2,})@", text)))
    if left:
        raise tb.BuildError(f"{template.relative_to(REPO)}: no value for {', '.join(left)}")
    return text


def expand(template, dest, **words):
    """Write a template to dest with its @WORDS@ filled in."""
    dest.write_text(filled(template, **words))


class Key:
    """A GPG home with one secret key: that of a file (--key), or a test key made once and kept in a directory.

    The home is in /tmp, because the agent's socket needs a short path, and is
    removed when the context ends. Signatures carry the time epoch, or that of the
    key if it is younger, so that the same bytes get the same signature.
    """

    def __init__(self, path, keep, epoch=None):
        self.path, self.keep, self.epoch = path, keep, epoch

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.home = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="itree-gpg-", dir="/tmp")))
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
            if self.epoch is not None:
                self.epoch = max(self.epoch, *(int(k[5]) for k in keys if k[0] in ("sec", "ssb")))
            self.public = self.home / "public.asc"
            self.public.write_text(self.gpg("--armor", "--export", self.fingerprint))
            self.is_test = not self.path
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc):
        self.stack.close()

    @property
    def time(self):
        """Options that stop gpg's clock."""
        return [] if self.epoch is None else ["--faked-system-time", f"{self.epoch}!"]

    def gpg(self, *args, **kwargs):
        return run(["gpg", *self.time, "--homedir", self.home, "--batch", "--no-tty", "--quiet",
                    "--pinentry-mode", "loopback", "--passphrase", "", *args], **kwargs)  # fmt: skip

    def _make(self, dest):
        tb.say("packages", "no --key FILE: making a test key")
        self.gpg("--quick-generate-key", TEST_NAME, "rsa3072", "sign", "never")
        text = self.gpg("--armor", "--export-secret-keys")
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.touch(mode=0o600)
        dest.write_text(text)

    def sign_rpms(self, rpms):
        macros = (f"_gpg_name {self.fingerprint}", f"_gpg_path {self.home}", f"__gpg {shutil.which('gpg')}")
        macros += (f"_gpg_sign_cmd_extra_args {' '.join(self.time)}",) if self.time else ()
        options = [word for macro in macros for word in ("--define", macro)]
        run(["rpmsign", *options, "--addsign", *rpms], env={**os.environ, "GNUPGHOME": str(self.home)})
        for rpm in rpms if self.time else ():
            os.utime(rpm, (self.epoch, self.epoch))

    def sign_file(self, path):
        """A detached, armoured signature beside the file."""
        out = path.with_name(path.name + ".asc")
        out.unlink(missing_ok=True)
        self.gpg("--armor", "--local-user", self.fingerprint, "--output", out, "--detach-sign", path)
