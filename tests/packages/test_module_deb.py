# SPDX-License-Identifier: GPL-2.0-only
"""ext4itree-dkms on a Debian host that keeps its own kernel: installed, built, booted, updated, removed."""

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
FSTAB = "LABEL=mail /srv/mail ext4itree defaults,nofail,x-systemd.device-timeout=30s 0 2\n"


def recipe():
    """Return the recipe of a host with the second newest kernel, that release, and the newest to update to."""
    mirror = sources.Mirror(stock.tb.cache_dir() / "stock-kernels" / "mirror")
    releases = stock.releases(mirror, "cloud-amd64")
    if len(releases) < 2:
        pytest.skip(f"this machine's package lists offer {releases}: no two kernels to change between")
    before, after = releases[-2:]
    later = (f"linux-image-{after}", *stock.header_packages(after))
    packages = (f"linux-image-{before}", f"linux-headers-{before}", "dkms", "kmod")
    return debian_image.Recipe("module-machine", packages, later, updates=True), before, after


def boot(host, top, data):
    """Start the host, which runs the next step of host-work and powers off. Returns the lines of its output."""
    said = bootvm.boot([top / "esp.img", host.image, data], top / "vmlinuz", top)
    lines = [t.strip() for t in re.findall(r"host: .*", said)]
    assert "host: done" in lines and "WRONG" not in said, said[-8000:]
    return lines


def test_a_host_that_keeps_its_kernel(deb_repo, tmp_path):
    """From apt install to a volume that is mounted by fstab, a new kernel, and back to ext4 without the feature."""
    if os.geteuid():
        pytest.skip("installing into a mounted disk wants the rights of root")
    what, before, after = recipe()
    host = debhost.Disk(tmp_path, (deb_repo,), what)
    try:
        lives(host, what, before, after, tmp_path)
    finally:
        host.close()


def lives(host, what, before, after, tmp_path):
    host.put("/etc/fstab", f"UUID={debian_image.UUID} / ext4 errors=remount-ro 0 1\n{FSTAB}")
    host.put("/usr/lib/itree-test/host-work", (HERE / "host-work").read_bytes(), "755")
    host.put("/etc/systemd/system/itree-test.service", (HERE / "itree-test.service").read_bytes())
    # agetty calls vhangup() on the serial line, which would end the output of host-work.
    host.run("mkdir -p /srv/mail && systemctl -q enable itree-test && systemctl -q mask serial-getty@ttyS0")
    host.apt("update")
    host.apt("install", "ext4itree-dkms")
    assert f", {before}, x86_64: installed" in host.run("dkms status")
    host.inside("cp", host.root / "boot" / f"vmlinuz-{before}", tmp_path / "vmlinuz")
    shutil.copy(debian_image.image(what) / "esp.img", tmp_path / "esp.img")
    host.close()
    data = bootvm.image(tmp_path / "data.img", 512 << 20)
    lines = boot(host, tmp_path, data)
    assert f"host: runs {before}, root is ext4" in lines and "host: mounted nothing" in lines, lines
    assert [t for t in lines if re.search(r"flags .*I.* /srv/mail/new", t)], lines

    # The distribution has a newer kernel. DKMS compiles on this host's processor: an emulated one takes an hour.
    host.open()
    host.apt("update")
    host.apt("install", f"linux-image-{after}", f"linux-headers-{after}")
    status = host.run("dkms status")
    assert f", {before}, x86_64: installed" in status and f", {after}, x86_64: installed" in status
    host.close()
    lines = boot(host, tmp_path, data)
    assert f"host: runs {after}, root is ext4" in lines, lines
    assert "host: mounted /dev/vdc ext4itree" in lines and "host: fsck success: 1" in lines, lines
    assert "host: names 20000" in lines and "host: loaded and unloaded" in lines, lines
    assert "host: stock, read-only: names 20000" in lines, lines
    assert "host: stock, without the feature: names 20001" in lines, lines
