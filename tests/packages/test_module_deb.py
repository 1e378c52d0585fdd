# SPDX-License-Identifier: GPL-2.0-only
"""ext4itree-dkms on a Debian host that keeps its own kernel: installed, built, booted, updated, removed."""

import contextlib
import os
import re
import shutil

import bootvm
import debhost
import debian_image
import pytest
import sources
import stock

HERE = bootvm.HERE / "module"
full = pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="takes minutes: ITREE_FULL=1")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="installing into a mounted disk wants the rights of root")
FSTAB = "LABEL=mail /srv/mail ext4itree defaults,nofail,x-systemd.device-timeout=30s 0 2\n"


@pytest.fixture(scope="module")
def repo_13(work):
    """An APT repository of what a host of Debian 13 needs to use the module."""
    return debhost.build(work / "deb-13", "e2fsprogs", "ext4itree", target="trixie")


def bookworm():
    """Return the recipe of a host of Debian 12 with its second newest kernel, and the packages of the newest."""
    mirror = sources.Mirror(stock.tb.cache_dir() / "stock-kernels" / "mirror")
    releases = stock.releases(mirror, "cloud-amd64")
    if len(releases) < 2:
        pytest.skip(f"this machine's package lists offer {releases}: no two kernels to change between")
    before, after = releases[-2:]
    update = (f"linux-image-{after}", f"linux-headers-{after}")
    packages = (f"linux-image-{before}", f"linux-headers-{before}", "dkms", "kmod")
    return debian_image.Recipe("module-machine", packages, update, updates=True), update


def trixie():
    """Return the recipe of a host of Debian 13 with its own kernel, and the packages of that of backports."""
    kernel = ("linux-image-cloud-amd64", "linux-headers-cloud-amd64")
    # What a host with Secure Boot has, with DKMS's own choice of a key.
    packages = (*kernel, "dkms", "kmod", "shim-signed", "grub-efi-amd64-signed", "openssl")
    return debian_image.Recipe("module-machine-13", packages, tuple(f"{p}/trixie-backports" for p in kernel),
                               release="trixie", suites="trixie trixie-backports"), kernel  # fmt: skip


def kernels(host):
    """Return the releases of the host's kernels."""
    return {name.removeprefix("vmlinuz-") for name in host.run("cd /boot; ls vmlinuz-*").split()}


def boot(host, top, data, keys=None):
    """Start the host, which runs the next step of host-work and powers off. Returns the lines of its output.

    keys: with Secure Boot; files with the keys that the owner has enrolled besides Microsoft's.
    """
    output = bootvm.boot([top / "esp.img", host.image, data], top / "vmlinuz", top, keys=keys)
    lines = [t.strip() for t in re.findall(r"host: .*", output)]
    assert "host: done" in lines and "WRONG" not in output, output[-8000:]
    return lines


@contextlib.contextmanager
def installed(repo, recipe, top, names=0):
    """A host with the package, installed by apt, that runs host-work at each boot. Gives it and its kernel's release.

    names: how many files host-work makes.
    """
    host = debhost.Disk(top, (repo,), recipe)
    try:
        (before,) = kernels(host)
        host.put("/etc/fstab", f"UUID={debian_image.UUID} / ext4 errors=remount-ro 0 1\n{FSTAB}")
        host.put("/etc/default/itree-test", f"NAMES={names}\n")
        host.put("/usr/lib/itree-test/host-work", (HERE / "host-work").read_bytes(), "755")
        host.put("/etc/systemd/system/itree-test.service", (HERE / "itree-test.service").read_bytes())
        # agetty calls vhangup() on the serial line, which would end the output of host-work.
        host.run("mkdir -p /srv/mail && systemctl -q enable itree-test && systemctl -q mask serial-getty@ttyS0")
        host.apt("update")
        host.apt("install", "ext4itree-dkms")
        assert f", {before}, x86_64: installed" in host.run("dkms status")
        host.inside("cp", host.root / "boot" / f"vmlinuz-{before}", top / "vmlinuz")
        shutil.copy(debian_image.image(recipe) / "esp.img", top / "esp.img")
        yield host, before
    finally:
        host.close()


@needs_root
@pytest.mark.parametrize("release", ["bookworm", pytest.param("trixie", marks=full)])
def test_a_host_that_keeps_its_kernel(release, request, tmp_path):
    """From apt install to a volume that is mounted by fstab, a new kernel, and back to ext4 without the feature."""
    repo = request.getfixturevalue({"bookworm": "deb_repo", "trixie": "repo_13"}[release])
    recipe, update = {"bookworm": bookworm, "trixie": trixie}[release]()
    # Emulated, 100,000 names take minutes.
    names = 100000 if os.environ.get("ITREE_FULL") else 20000
    with installed(repo, recipe, tmp_path, names) as (host, before):
        lives(host, before, update, names, tmp_path)


def lives(host, before, update, names, top):
    host.close()
    data = bootvm.image(top / "data.img", 2 << 30)
    lines = boot(host, top, data)
    assert f"host: runs {before}, root is ext4" in lines and "host: mounted nothing" in lines, lines
    assert [t for t in lines if re.search(r"flags \S*O\S* /srv/mail/new", t)], lines

    # The distribution has a newer kernel. DKMS compiles on this host's processor: an emulated one takes an hour.
    host.open()
    host.apt("update")
    host.apt("install", *update)
    (after,) = kernels(host) - {before}
    status = host.run("dkms status")
    assert f", {before}, x86_64: installed" in status and f", {after}, x86_64: installed" in status
    host.close()
    lines = boot(host, top, data)
    assert f"host: runs {after}, root is ext4" in lines, lines
    assert "host: mounted /dev/vdc ext4itree" in lines and "host: fsck success: 1" in lines, lines
    assert f"host: names {names}" in lines and "host: loaded and unloaded" in lines, lines
    assert f"host: stock, read-only: names {names}" in lines, lines
    assert f"host: stock, without the feature: names {names + 1}" in lines, lines


@needs_root
@full
def test_secure_boot(repo_13, tmp_path):
    """With Secure Boot the kernel refuses the module until DKMS's key is enrolled, as docs/module.md says."""
    recipe, _ = trixie()
    with installed(repo_13, recipe, tmp_path) as (host, before):
        host.put("/var/lib/itree-test-step", "secure\n")
        key = tmp_path / "mok.pub"
        host.inside("cp", host.root / "var/lib/dkms/mok.pub", key)
        esp = tmp_path / "esp.img"
        for file, name in (("shim/shimx64.efi.signed", "BOOT/BOOTX64.EFI"), ("shim/mmx64.efi.signed", "BOOT/mmx64.efi"),
                           ("grub/x86_64-efi-signed/grubx64.efi.signed", "BOOT/grubx64.efi")):  # fmt: skip
            host.inside("mcopy", "-o", "-i", esp, host.root / "usr/lib" / file, f"::/EFI/{name}")
        # Debian's signed GRUB looks there, and goes on in /boot of the root.
        (tmp_path / "grub.cfg").write_text(f"search --no-floppy --fs-uuid --set=root {debian_image.UUID}\n"
                                           "set prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n")  # fmt: skip
        host.inside("mmd", "-i", esp, "::/EFI/debian")
        host.inside("mcopy", "-i", esp, tmp_path / "grub.cfg", "::/EFI/debian/grub.cfg")
        host.close()
        data = bootvm.image(tmp_path / "data.img", 512 << 20)

        lines = boot(host, tmp_path, data, keys=())
        assert f"host: runs {before}, root is ext4" in lines and "host: mounted nothing" in lines, lines
        assert "host: Secure Boot: 1" in lines, lines
        refused = "unknown filesystem type 'ext4itree'", "Loading of module with unavailable key is rejected"
        page = (bootvm.HERE.parents[1] / "docs" / "module.md").read_text()
        assert all(r in page and [t for t in lines if r in t] for r in refused), lines

        lines = boot(host, tmp_path, data, keys=(key,))
        assert "host: Secure Boot: 1" in lines and "host: mounted /dev/vdc ext4itree" in lines, lines
