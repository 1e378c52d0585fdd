# SPDX-License-Identifier: GPL-2.0-only
"""The kernel as .debs, installed by apt with Debian's own initramfs-tools: into a copy of this host, and on a disk
that then boots.
"""

import os
import pathlib
import re
import shutil

import bootvm
import debhost
import debian_image
import publisher
import pytest
import roots
from conftest import KERNEL

pytestmark = pytest.mark.skipif(
    not os.environ.get("ITREE_FULL"), reason="a kernel is built and packaged, which takes minutes: ITREE_FULL=1"
)
BUILT = ("linux-itree", "--kernel", KERNEL, "--btf")
SUFFIX = "-small" if KERNEL == "small" else ""
# Called as the hooks of initramfs-tools and boot loaders are.
RECORD = '#!/bin/sh\necho "{when} $1 $2 ($DEB_MAINT_PARAMS)" >>/apt/hooks\n'


@pytest.fixture(scope="session")
def repo(work, module_key):
    return debhost.build(work / "deb-kernel", *BUILT, "--module-key", module_key)


@pytest.fixture
def host(repo):
    with debhost.copy_of_this_host(repo) as made:
        made.mount("proc", "proc")
        made.mount("tmpfs", "tmp")
        made.mounts.append(made.root / "dev")
        roots.mount_devices(made.root / "dev")
        for when in ("postinst", "prerm", "postrm"):
            hook = made.root / "etc" / "kernel" / f"{when}.d" / "zz-record"
            hook.parent.mkdir(parents=True, exist_ok=True)
            hook.write_text(RECORD.format(when=when))
            hook.chmod(0o755)
        made.apt("update")
        yield made


def hooks(host):
    path = host.root / "apt" / "hooks"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def release_of(repo, release="0.1"):
    """What uname -r says, from the name of the image's package."""
    names = [re.match(r"linux-image-(\d.*)_(\S+)_amd64\.deb", p.name) for p in repo.glob("linux-image-*.deb")]
    (found,) = [m[1] for m in names if m and m[2].endswith(f"-{release}")]
    assert re.fullmatch(rf"6\.12\.\d+-{re.escape(release)}-itree{SUFFIX}", found)
    return found


def test_install_remove_purge(host, repo):
    krel = release_of(repo)
    boot = set(os.listdir(host.root / "boot"))
    host.apt("install", "linux-image-itree")
    names = ("linux-image-itree", f"linux-image-{krel}")
    assert all(v[1] == "ii" for v in host.versions(*names).values())
    (hook,) = hooks(host)
    assert hook.startswith(f"postinst {krel} /boot/vmlinuz-{krel} (configure")
    new = set(os.listdir(host.root / "boot")) - boot
    assert {f"{n}-{krel}" for n in ("vmlinuz", "config", "System.map", "initrd.img")} <= new, new
    listed = host.run(f"lsinitramfs /boot/initrd.img-{krel}")
    assert f"lib/modules/{krel}/modules.dep" in listed
    modules = host.run(f"find /lib/modules/{krel}/kernel -name '*.ko'").split()
    assert len(modules) >= 4 and os.path.getsize(host.root / "lib" / "modules" / krel / "modules.dep")
    output = host.run(f"/sbin/modinfo {modules[0]}")
    assert re.search(rf"^vermagic: +{re.escape(krel)} ", output, re.M) and "itree TEST key of modules" in output, output
    assert host.run("dpkg --audit") == ""

    host.apt("purge", *names)
    assert [t.split(" ", 3)[:3] for t in hooks(host)] == [
        [when, krel, f"/boot/vmlinuz-{krel}"] for when in ("prerm", "postrm", "postrm")
    ]
    assert set(os.listdir(host.root / "boot")) == boot
    assert not (host.root / "lib" / "modules" / krel / "kernel").exists()
    assert host.run("dpkg --audit") == ""


def test_headers_build_a_module(host, repo):
    krel = release_of(repo)
    host.apt("install", "linux-headers-itree")
    module = host.root / "tmp" / "hello"
    module.mkdir()
    (module / "Makefile").write_text("obj-m += hello.o\n")
    (module / "hello.c").write_text('#include <linux/module.h>\nMODULE_DESCRIPTION("hello");\nMODULE_LICENSE("GPL");\n')
    host.run(f"make -C /lib/modules/{krel}/build M=/tmp/hello modules")
    assert krel in host.run("/sbin/modinfo /tmp/hello/hello.ko")


def test_what_the_packages_say(repo):
    (image,) = repo.glob(f"linux-image-{release_of(repo)}_*.deb")
    (meta,) = repo.glob("linux-image-itree_*.deb")
    output = roots.call("dpkg-deb", "-f", image, "Depends", "Maintainer", "Description")[1]
    assert "initramfs-tools | linux-initramfs-tool" in output and "inode tree" in output
    assert publisher.read().email in output
    assert f"linux-image-{release_of(repo)} (= " in roots.call("dpkg-deb", "-f", meta, "Depends")[1]
    assert not list(repo.glob("linux-libc-dev*")), "the distribution's headers of the C library stay"


def test_upgrade_keeps_the_old_kernel(host, repo, work, module_key):
    host.apt("install", "linux-image-itree")
    newer = debhost.build(work / "deb-kernel-new", *BUILT, "--module-key", module_key, release="0.2")
    host.use(newer)
    host.apt("update")
    host.apt("upgrade", "--with-new-pkgs")
    one, two = release_of(repo), release_of(newer, "0.2")
    states = host.versions("linux-image-itree", f"linux-image-{one}", f"linux-image-{two}")
    assert all(v[1] == "ii" for v in states.values()) and states["linux-image-itree"][0].endswith("-0.2")
    assert {f"initrd.img-{one}", f"initrd.img-{two}"} <= set(os.listdir(host.root / "boot"))


def test_boots_by_its_own_entry_fills_and_checks(repo, deb_repo, tmp_path):
    """Debian 12 with GRUB and a stock kernel; apt brings ours, and the first entry of its menu is that one.

    Installed on this host's kernel, as from a rescue system; it starts in QEMU. Then as the RPMs' test.
    """
    if os.geteuid():
        pytest.skip("installing into a mounted disk wants the rights of root")
    init = "/usr/lib/itree-test/guest-init"
    disk = debhost.Disk(tmp_path, (repo, deb_repo))
    try:
        disk.put(init, (bootvm.HERE / "boot" / "guest-init").read_bytes(), "755")
        disk.put("/usr/bin/busybox", pathlib.Path("/bin/busybox").read_bytes(), "755")
        disk.run(f"sed -i 's,^GRUB_CMDLINE_LINUX=\"console=ttyS0,& panic=-1 init={init},' /etc/default/grub")
        disk.apt("update")
        output = disk.apt("install", "--install-recommends", "itree-storage-server")
        krel = release_of(repo)
        names = (f"linux-image-{krel}", "linux-image-itree", "e2fsprogs", "itree-storage-server")
        assert all(v[1] == "ii" for v in disk.versions(*names).values()) and "no file system has been changed" in output
        assert disk.run("dpkg --audit") == ""
        disk.inside("cp", disk.root / "boot" / f"vmlinuz-{krel}", tmp_path / "vmlinuz")
    finally:
        disk.close()
    disks = [tmp_path / "esp.img", disk.image, bootvm.image(tmp_path / "data.img", 256 << 20)]
    shutil.copy(debian_image.image() / "esp.img", disks[0])
    bootvm.fills_and_checks(disks, tmp_path / "vmlinuz", tmp_path, krel)
