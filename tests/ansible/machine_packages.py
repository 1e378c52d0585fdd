# SPDX-License-Identifier: GPL-2.0-only
"""A signed APT repository for the machines: our e2fsprogs as packaging/deb/build makes them, and kernels.

The kernel packages are stand-ins: the kernel is the test kernel (no modules, no initramfs), but they install, add a
boot entry and go as those of packaging/deb do. Building those takes the better part of an hour.
"""

import os
import shutil

import repositories
from conftest import REPO, run

FINE = "linux-image-{}-itree"
BROKEN = "6.99.0-itree"
SCRIPT = """#!/bin/sh
set -e
# The drivers are in the kernel, or the initramfs comes with the package: none is to be made.
export INITRD=No DEB_MAINT_PARAMS="$*"
if [ -d /etc/kernel/{when}.d ]; then
    run-parts --arg={release} --arg=/boot/vmlinuz-{release} /etc/kernel/{when}.d
fi
"""


def deb(top, name, version, depends="", files=(), scripts=()):
    """Build a package; files are (path in it, path here)."""
    tree = top / f"tree-{name}"
    (tree / "DEBIAN").mkdir(parents=True)
    for dest, source in files:
        (tree / dest).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tree / dest)
    for kind, text in scripts:
        (tree / "DEBIAN" / kind).write_text(text)
        (tree / "DEBIAN" / kind).chmod(0o755)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: Nobody <nobody@itree.invalid>\n"
        + (f"Depends: {depends}\n" if depends else "") + "Description: for tests\n"
    )  # fmt: skip
    path = top / f"{name}_{version}_amd64.deb"
    run("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", tree, path)
    shutil.rmtree(tree)
    return path


def kernel(top, name, release, version, files):
    scripts = [(kind, SCRIPT.format(when=kind, release=release)) for kind in ("postinst", "postrm")]
    return deb(top, name, version, files=files, scripts=scripts)


def broken_initramfs(top):
    """An initramfs whose init ends at once, so that the kernel panics."""
    path = top / "broken.cpio"
    shutil.copy("/bin/busybox", top / "busybox")
    (top / "init").write_text("#!/busybox false\n")
    (top / "init").chmod(0o755)
    command = "cd $0 && printf 'init\\nbusybox\\n' | cpio --create --format=newc --quiet >$1"
    out = run("sh", "-c", command, top, path)[1]
    assert path.stat().st_size > 1000, out
    return path


def repository(paths, repo, top):
    """A signed, flat APT repository of packages in the directory repo; its key."""
    repo.mkdir()
    for path in paths:
        shutil.copy(path, repo)
    return repositories.sign_apt(repo, top)


def e2fsprogs(top):
    """Our .debs: those of ITREE_PACKAGES=DIR, or built now, which takes minutes."""
    given = os.environ.get("ITREE_PACKAGES")
    out = top / "built"
    if given:
        found = sorted(p for p in (REPO / given).rglob("*.deb"))
    else:
        run(REPO / "packaging" / "deb" / "build", "deb", "e2fsprogs", "--out", out, timeout=3600)
        found = sorted(out.rglob("*.deb"))
    wanted = [p for p in found if p.name.startswith(("e2fsprogs_", "libext2fs2_"))]
    assert len(wanted) == 2, f"no e2fsprogs_*.deb and libext2fs2_*.deb among {[p.name for p in found]}"
    return wanted


def e2fsprogs_rpms(top):
    """A signed dnf repository of our e2fsprogs: that of ITREE_PACKAGES=DIR, or built now; (its directory, its key)."""
    given = os.environ.get("ITREE_PACKAGES")
    out = REPO / given if given else top / "built-rpms"
    if not (out / "repo" / "repodata").exists():
        assert not given, f"{out} has no directory repo as packaging/rpm/build makes it"
        run(REPO / "packaging" / "rpm" / "build", "repo", "e2fsprogs-itree", "--out", out, timeout=3600)
    return out / "repo", out / "repo" / "RPM-GPG-KEY-itree"


def make(top, image, release):
    """Repositories good and broken (the same with a kernel that panics): (directory, key) each. release: of `image`."""
    tools = e2fsprogs(top)
    fine = kernel(top, FINE.format(release), release, "1", [(f"boot/vmlinuz-{release}", image)])
    meta = deb(top, "linux-image-itree", "1", FINE.format(release))
    bad = kernel(top, FINE.format(BROKEN), BROKEN, "1",
                 [(f"boot/vmlinuz-{BROKEN}", image), (f"boot/initrd.img-{BROKEN}", broken_initramfs(top))])  # fmt: skip
    bad_meta = deb(top, "linux-image-itree", "0", FINE.format(BROKEN))
    found = {}
    for name, paths in (("good", [*tools, fine, meta]), ("broken", [bad, bad_meta])):
        (top / f"{name}-key").mkdir()
        found[name] = (top / name, repository(paths, top / name, top / f"{name}-key"))
    return found
