# SPDX-License-Identifier: GPL-2.0-only
"""Kernels as Debian ships them, unpacked beside this host: to boot (vm.py) and to build modules for."""

import pathlib
import re
import shutil
import subprocess
import tempfile

import sources
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]

SERIES = sources.read_lock()["linux"].version


class Stock:
    """A kernel of the distribution: the directories and files of its packages."""

    def __init__(self, release, root):
        self.release, self.root = release, pathlib.Path(root)
        self.headers = self.root / "usr" / "src" / f"linux-headers-{release}"
        self.image = self.root / "boot" / f"vmlinuz-{release}"
        self.modules = self.root / "lib" / "modules" / release

    def add(self, module):
        """Install a module, like DKMS, in place of an earlier one."""
        dest = self.modules / "updates" / "dkms"
        dest.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, dest)
        subprocess.run(["depmod", "-b", self.root, self.release], check=True)


def releases(mirror, flavour="amd64"):
    """Return the releases of 6.12.y, as of uname -r, that this machine's package lists offer; oldest first."""
    pattern = rf"^linux-headers-{re.escape(SERIES)}\.[0-9]+.*-{flavour}$"
    listed = mirror.call(["apt-cache", *mirror.options(private=False), "search", "--names-only", pattern])
    found = [line.split(" ")[0].removeprefix("linux-headers-") for line in listed.splitlines()]
    plain = [r for r in found if not re.search(r"-(cloud|rt)-", r) or flavour != "amd64"]
    return sorted(plain, key=lambda r: int(r.split(".")[2].split("+")[0].split("-")[0]))


def header_packages(release):
    """Return the packages of a kernel's headers: one of the flavour, two that all flavours of the version share."""
    version = re.sub(r"(-cloud|-rt)?-[^-]+$", "", release)
    return f"linux-headers-{release}", f"linux-headers-{version}-common", f"linux-kbuild-{version}"


def kernel(release="", bootable=True):
    """Return a Stock, by default of the newest release. It is fetched if the cache lacks it.

    bootable: fetch the image and its modules, too, not the headers alone.
    """
    top = tb.cache_dir() / "stock-kernels"
    top.mkdir(parents=True, exist_ok=True)
    with tb.locked("stock", top / ".lock"):
        mirror = sources.Mirror(top / "mirror")
        if not release:
            offered = releases(mirror)
            if not offered:
                raise tb.BuildError(f"this machine's package lists offer no Linux {SERIES}: run apt-get update")
            release = offered[-1]
        made = top / release
        want = ["headers"] + ["image"] * bootable
        missing = [w for w in want if not (made / f".{w}").exists()]
        if missing:
            tb.say("stock", f"fetching Linux {release} of the distribution")
        if "headers" in missing:
            unpack(mirror, header_packages(release), made)
            # The only absolute path in the headers.
            makefile = made / "usr" / "src" / f"linux-headers-{release}" / "Makefile"
            makefile.write_text(makefile.read_text().replace(" /usr/src/", f" {made}/usr/src/"))
            (made / ".headers").touch()
        if "image" in missing:
            unpack(mirror, (f"linux-image-{release}",), made)
            subprocess.run(["depmod", "-b", made, release], check=True)
            (made / ".image").touch()
        newest_two = sorted((p for p in top.iterdir() if (p / ".image").exists()), key=lambda p: p.stat().st_mtime)[-2:]
        for old in top.iterdir():
            if (old / ".image").exists() and old not in newest_two:
                shutil.rmtree(old)
    return Stock(release, made)


def unpack(mirror, names, dest):
    """Fetch packages from the machine's own mirror and unpack them, installing nothing."""
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stock-", dir=dest.parent) as tmp:
        try:
            mirror.call(["apt-get", *mirror.options(private=False), "download", *names], cwd=tmp)
        except sources.SourceError as err:
            raise tb.BuildError(f"the package mirror did not give {', '.join(names)}: {err}") from err
        for package in sorted(pathlib.Path(tmp).glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, dest], check=True)


def with_module():
    """Return the newest kernel with the module installed, built from this source."""
    made = kernel()
    subprocess.run([REPO / "kernel" / "module" / "build", "--kernel", made.headers], check=True)
    made.add(REPO / "build" / "module" / made.release / "ext4itree.ko")
    return made
