# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the packages share: builds of the repository, and roots to install into."""

import os
import pathlib
import shutil
import subprocess

import boothost
import debhost
import pytest
import roots
from roots import there

REPO = pathlib.Path(__file__).resolve().parents[2]
# The kernel that is packaged. The small one costs twelve minutes of one processor,
# cold, the server's the better part of an hour.
KERNEL = os.environ.get("ITREE_PACKAGE_KERNEL", "small")

FULL = bool(os.environ.get("ITREE_FULL"))
# Everything but the kernel, which has fixtures of its own. What is cheap is built
# twice; tar and rsync cost a minute of one processor, coreutils three.
CHEAP = ("e2fsprogs-itree", "diskorder", "itree-release", "itree-storage-server", "itree-backup",
         "itree-advise", "ext4itree-dkms")  # fmt: skip
PATCHED = ("tar-itree", "rsync-itree", *(("coreutils-itree",) if FULL else ()))
# What is there at a higher release, too.
AGAIN = (*CHEAP, *(PATCHED if FULL else ()))


def build(out, release, *args, expect=0, **env):
    """Run packaging/rpm/build; what it printed."""
    argv = [REPO / "packaging" / "rpm" / "build", *args, "--out", out]
    env = {**os.environ, "ITREE_RELEASE": release, **env}
    env.pop("ITREE_SIGN_KEY", None)
    res = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False)  # fmt: skip
    assert res.returncode == expect, res.stdout
    return res.stdout


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A directory that goes when the session ends: roots and packages are large."""
    path = tmp_path_factory.mktemp("packages")
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def old(work):
    """The repository as an admin first meets it."""
    if there("old"):
        return there("old")
    build(work / "old", "0.1", "repo", *CHEAP, *PATCHED)
    return work / "old"


@pytest.fixture(scope="session")
def new(work, old):
    """The same sources at a higher release, signed with the same key."""
    if there("new"):
        return there("new")
    (work / "new").mkdir()
    shutil.copy(old / "test-key.asc", work / "new")
    build(work / "new", "0.2", "repo", *AGAIN)
    return work / "new"


@pytest.fixture(scope="session")
def base(work):
    """A repository that stands for the distribution: what this host has, as packages."""
    return roots.distribution(work / "base")


@pytest.fixture(scope="session")
def module_key(work):
    """A key to sign modules with, and its certificate, in one file; the certificate alone lies beside it."""
    if there(".", "module-key.pem"):
        return there(".", "module-key.pem") / "module-key.pem"
    path = work / "module-key.pem"
    roots.call("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj",
               "/CN=itree TEST key of modules", "-keyout", path, "-out", work / "module-cert.pem")  # fmt: skip
    path.write_text(path.read_text() + (work / "module-cert.pem").read_text())
    return path


def build_kernel(out, release, module_key, *options, signing_key=None):
    out.mkdir()
    if signing_key:
        shutil.copy(signing_key, out)
    build(out, release, "repo", "kernel-itree", "--kernel", KERNEL, "--btf", "--module-key", module_key, *options)
    return out


@pytest.fixture(scope="session")
def kernel_old(work, module_key):
    """A repository of the kernel's packages."""
    return there("kernel-old") or build_kernel(work / "kernel-old", "0.1", module_key)


@pytest.fixture(scope="session")
def kernel_new(work, module_key, kernel_old):
    """The same kernel at a higher release, signed for Secure Boot."""
    return there("kernel-new") or build_kernel(work / "kernel-new", "0.2", module_key, "--efi-key", module_key,
                                               signing_key=kernel_old / "test-key.asc")  # fmt: skip


@pytest.fixture(scope="session")
def deb_repo(work):
    """An APT repository of the .debs but the kernel's; tar and rsync are compiled once already, for the RPMs."""
    return debhost.build(work / "deb", "e2fsprogs", "diskorder", "itree-storage-server", "ext4itree",
                         "itree-backup", "itree-advise", *(PATCHED if FULL else ()))  # fmt: skip


@pytest.fixture(scope="session")
def boot_base(work):
    """A repository that stands for the distribution, with what makes boot entries and initramfs images."""
    (work / "boot-base").mkdir()
    return boothost.distribution(work / "boot-base")


@pytest.fixture
def boot_root(work, boot_base, old, kernel_old, request):
    """A root with that base system, to which our repositories are known."""
    if os.geteuid():
        pytest.skip("installing into a root wants the rights of root (chroot, mount)")
    repos = {"base": boot_base, "itree": old / "repo", "kernel": kernel_old / "repo"}
    made = boothost.BootRoot(work / f"root-{request.node.name}", repos)
    yield made
    made.close()


@pytest.fixture
def root(work, base, old, request):
    """A root with the base system and the distribution's e2fsprogs; our repository is known to it."""
    if os.geteuid():
        pytest.skip("installing into a root wants the rights of root (chroot)")
    made = roots.Root(work / f"root-{request.node.name}", {"base": base, "itree": old / "repo"})
    yield made
    made.close()
