# SPDX-License-Identifier: GPL-2.0-only
"""Debian's releases: what differs between them for our packages, and a root of each to build packages in."""

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import sources
import treebuild as tb


@dataclasses.dataclass(frozen=True)
class Release:
    """A release of Debian that we build packages for."""

    codename: str
    number: str  # as in VERSION_ID of /etc/os-release
    library: str  # the package of libext2fs
    needs: tuple[str, ...] = ()  # build dependencies of e2fsprogs there, besides those of all releases
    relations: str = ""  # fields of the library's stanza in the control file
    fuse_relations: str = ""  # the same of fuse2fs

    @property
    def suffix(self):
        """The end of the version of a compiled package: a newer release's package is newer."""
        return f"+deb{self.number}"


# In 13, the files of /lib and /sbin moved below /usr, and the library was renamed (t64). dpkg does not see that it
# contains the files of 12's library, so our library for 12 conflicts with it.
RELEASES = {r.codename: r for r in (
    Release("bookworm", "12", "libext2fs2",
            relations="Provides: e2fslibs (= ${binary:Version})\nConflicts: libext2fs2t64\n"),
    Release("trixie", "13", "libext2fs2t64", ("dh-sequence-movetousr",),
            "Provides: e2fslibs (= ${binary:Version}), libext2fs2 (= ${binary:Version})\n"
            "Breaks: libext2fs2 (<< ${binary:Version})\nReplaces: libext2fs2\n",
            "Breaks: fuseext2 (<< 1.47.1-2~)\nReplaces: fuseext2 (<< 1.47.1-2~)\n"),
)}  # fmt: skip

# Tools for building packages, besides those that control files name.
TOOLS = ("build-essential", "ccache", "debhelper", "python3", "patch", "pkg-config", "xz-utils", "file")


def here():
    """Return the release that this machine runs, None if we do not support it."""
    text = pathlib.Path("/etc/os-release").read_text()
    if not re.search(r'^ID="?debian', text, re.M):
        return None
    return next((r for r in RELEASES.values() if re.search(rf'^VERSION_ID="?{r.number}"?$', text, re.M)), None)


def apt_sources(updates=False, release=None):
    """Return APT sources for mmdebstrap, in deb822 format: this machine's, or other suites of its mirror.

    updates: security archives, too; release: suites such as "trixie trixie-backports", instead of this machine's.
    """
    stanzas = sources.host_stanzas(updates=updates)
    if release:
        stanzas = [(uris, release.split(), signed) for uris, _, signed in stanzas[:1]]
    if not stanzas:
        raise tb.BuildError("found no Debian archive with component main in the APT sources of this machine")
    return "\n".join(
        f"Types: deb\nURIs: {' '.join(uris)}\nSuites: {' '.join(suites)}\nComponents: main\n"
        f"Signed-By: {(signed or '').strip() or '/usr/share/keyrings/debian-archive-keyring.gpg'}\n"
        for uris, suites, signed in stanzas
    )


def apt_files():
    """Return APT's configuration files on how to reach the mirror, such as a proxy."""
    return [path for path in sorted(pathlib.Path("/etc/apt/apt.conf.d").glob("*"))
            if "Acquire::" in path.read_text(errors="replace")]  # fmt: skip


def apt_options():
    """Return mmdebstrap's options that name those files."""
    return [f"--aptopt={path}" for path in apt_files()]


def make_root(release, packages, root, *options, listed=None):
    """Make a root of a release, a codename, with these packages in the directory root, by mmdebstrap.

    options: more options of mmdebstrap. listed: APT sources from apt_sources(); by default the release alone. If
    mmdebstrap fails, raises BuildError with its output.
    """
    with tempfile.TemporaryDirectory(prefix="itree-root-") as tmp:
        file = pathlib.Path(tmp) / "apt.sources"
        file.write_text(listed or apt_sources(release=release))
        argv = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", "--format=directory", "--quiet",
                *apt_options(), *options, release, root, file]  # fmt: skip
        res = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    if res.returncode:
        raise tb.BuildError(f"mmdebstrap of {release} ended with {res.returncode}:\n{res.stdout[-4000:]}")


def kept_root(folder, codename, packages):
    """Return the directory with a root of a release with these packages, kept in that folder of the cache.

    The first call makes it, which takes minutes; raises BuildError without root's rights or mmdebstrap.
    """
    packages = sorted(packages)
    if os.geteuid() or not shutil.which("mmdebstrap"):
        raise tb.BuildError(f"making a root of Debian {RELEASES[codename].number} needs root and mmdebstrap: "
                            "run `make deps`")  # fmt: skip
    key = hashlib.sha256(repr((codename, packages)).encode()).hexdigest()
    top = tb.cache_dir() / folder
    top.mkdir(parents=True, exist_ok=True)
    made = top / f"{codename}-{key[:16]}"
    with tb.locked("deb", top / ".lock"):
        if not made.exists():
            tb.say("deb", f"making a root of Debian {RELEASES[codename].number} in {top}; this takes some minutes")
            for old in top.glob(f"{codename}-*"):
                shutil.rmtree(old)
            part = top / f".{made.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            make_root(codename, packages, part)
            part.rename(made)
    return made


def build_root(release, packages):
    """Return the directory with a root of a release to build in, from the cache or made now (minutes; root only)."""
    return kept_root("build-roots", release.codename, {*TOOLS, *packages})


def run_in(root, argv, env, shown=(), writable=()):
    """Run a command in a root and return its exit code.

    The paths in shown and writable are visible there under the same names. /tmp is removed afterwards; other files
    that the command leaves in the root stay. Mounts are in a namespace of their own.
    """
    with tempfile.TemporaryDirectory(prefix="itree-build-") as scratch:
        steps = ["set -e", f'mount --bind "{scratch}" "{root}/tmp"', f'mount -t proc proc "{root}/proc"',
                 f'mount --rbind /dev "{root}/dev"']  # fmt: skip
        for path, read_only in [*((p, True) for p in shown), *((p, False) for p in writable)]:
            make = "mkdir -p" if pathlib.Path(path).is_dir() else "install -D /dev/null"
            steps.append(f'{make} "{root}{path}" && mount --bind "{path}" "{root}{path}"')
            if read_only:
                steps.append(f'mount -o remount,bind,ro "{root}{path}"')
        steps.append(f'exec chroot "{root}" "$@"')
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(steps), "sh", *argv]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **env}
        return subprocess.run([str(a) for a in command], env=env, stdin=subprocess.DEVNULL, check=False).returncode
