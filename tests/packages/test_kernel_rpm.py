# SPDX-License-Identifier: GPL-2.0-only
"""The kernel as RPMs: installed with boot entry and initramfs, upgraded beside the old one, removed, booted."""

import os
import re
import subprocess

import bootvm
import pytest
import roots
from conftest import KERNEL, REPO

pytestmark = pytest.mark.skipif(
    not os.environ.get("ITREE_FULL"), reason="a kernel is built and packaged, which takes minutes: ITREE_FULL=1"
)
CONFIG = REPO / "kernel" / "config"
PARTS = ("", "-core", "-modules")
SUFFIX = ".small" if KERNEL == "small" else ""


def version():
    """The kernel's, as the source archive says it."""
    out = subprocess.run([REPO / "packaging" / "sources" / "fetch", "linux"], stdin=subprocess.DEVNULL, text=True,
                         stdout=subprocess.PIPE, check=True).stdout  # fmt: skip
    found = re.search(r"6\.12\.\d+", out)
    assert found, out
    return found[0]


def krel(release):
    return f"{version()}-{release}{SUFFIX}.itree.x86_64"


def packages(release, parts=PARTS):
    return [f"kernel-itree{part}-{version()}-{release}{SUFFIX}" for part in parts]


def kernels(root):
    return [n for n in root.installed() if n.startswith("kernel-itree")]


def added(release):
    return f"add {krel(release)} /usr/lib/modules/{krel(release)}/vmlinuz"


def clean(root):
    assert "scriptlet failed" not in root.output and "Error in" not in root.output, root.output


def rpm_of(repo, part):
    (path,) = (repo / "RPMS").glob(f"kernel-itree{part}-6*.x86_64.rpm")
    return path


@pytest.fixture
def unpacked(kernel_old, tmp_path):
    """The files of all the kernel's packages."""
    for part in ("-core", "-modules", "-devel"):
        roots.call("sh", "-c", 'rpm2cpio "$1" | cpio -id --quiet', "sh", rpm_of(kernel_old, part), cwd=tmp_path)
    return tmp_path


def test_rpmlint(kernel_old):
    found = [*sorted((kernel_old / "RPMS").glob("*.rpm")), *sorted((kernel_old / "SRPMS").glob("*.rpm"))]
    config = REPO / "packaging" / "rpm" / "rpmlint.toml"
    code, output = roots.call("rpmlint", "-c", config, *found, ok=None)
    assert re.search(rf"{len(found)} packages .* checked; 0 errors, 0 warnings", output) and code == 0, output


def test_configuration_is_what_was_asked_for(unpacked, tmp_path):
    """Of the kernel that is packaged; the build itself has checked server.config too, whichever it is."""
    (config,) = (unpacked / "usr" / "lib" / "modules").glob("*/config")
    (tmp_path / ".config").write_text(config.read_text())
    names = {"small": ("small", "signed"), "server": ("itree", "server", "signed", "lockdown")}[KERNEL]
    asked = [CONFIG / f"{n}.config" for n in names]
    roots.call(CONFIG / "configure", "--check", tmp_path, *asked)
    wrong = tmp_path / "wrong.config"
    wrong.write_text("CONFIG_EXT4_FS=y\nCONFIG_EXT5_FS=y\n# CONFIG_MODULES is not set\n")
    output = roots.call(CONFIG / "configure", "--check", tmp_path, *asked, wrong, ok=(1,))[1]
    assert "CONFIG_EXT5_FS: wanted y" in output and "CONFIG_MODULES: wanted is not set" in output, output
    assert "CONFIG_EXT4_FS:" not in output


def test_modules_are_signed_and_of_this_kernel(unpacked):
    found = sorted((unpacked / "usr" / "lib" / "modules" / krel("0.1") / "kernel").rglob("*.ko"))
    assert len(found) >= 4
    for path in found:
        output = roots.call("/sbin/modinfo", path)[1]
        assert re.search(rf"^vermagic: +{re.escape(krel('0.1'))} ", output, re.M), output
        assert re.search(r"^signer: +itree TEST key of modules$", output, re.M), output


def test_no_key_is_left_in_packages_or_logs(kernel_old, unpacked, module_key):
    secret = "".join(module_key.read_text().split("-----")[2].split())[100:160]
    listed = roots.call("rpm", "-qpl", *(kernel_old / "RPMS").glob("*.rpm"), *(kernel_old / "SRPMS").glob("*.rpm"))[1]
    assert "itree_key" not in listed and len(secret) == 60
    for path in [p for p in unpacked.rglob("*") if p.is_file() and not p.is_symlink()]:
        assert secret.encode() not in b"".join(path.read_bytes().split()), path


def test_vmlinuz_is_signed_for_secure_boot_if_asked_for(kernel_old, kernel_new, module_key, tmp_path):
    verified = []
    for number, built in enumerate((kernel_old, kernel_new)):
        into = tmp_path / str(number)
        into.mkdir()
        roots.call("sh", "-c", 'rpm2cpio "$1" | cpio -id --quiet "*/vmlinuz"', "sh", rpm_of(built, "-core"), cwd=into)
        (vmlinuz,) = into.rglob("vmlinuz")
        verified.append(roots.call("sbverify", "--cert", module_key.parent / "module-cert.pem", vmlinuz, ok=(0, 1)))
    assert verified[0][0] == 1 and verified[1][0] == 0, verified


def test_devel_builds_a_module(unpacked, tmp_path):
    (source,) = (unpacked / "usr" / "src" / "kernels").iterdir()
    assert source.name == krel("0.1")
    module = tmp_path / "hello"
    module.mkdir()
    (module / "Makefile").write_text("obj-m += hello.o\n")
    (module / "hello.c").write_text('#include <linux/module.h>\nMODULE_DESCRIPTION("hello");\nMODULE_LICENSE("GPL");\n')
    roots.call("make", "-C", source, f"M={module}", "modules")
    assert krel("0.1") in roots.call("/sbin/modinfo", module / "hello.ko")[1]


def test_install_upgrade_remove(boot_root, kernel_new):
    """As README says; the old kernel stays beside the new one, and what is removed leaves nothing."""
    before, boot = boot_root.files(), boot_root.booted()
    boot_root.dnf("install", "itree-storage-server")
    one, two = krel("0.1"), krel("0.2")
    assert kernels(boot_root) == packages("0.1")
    assert boot_root.asked() == [added("0.1")], "kernel-install is to be called once, for core and modules together"
    entry = boot_root.entry(one)
    assert entry["version"] == one and entry["options"].startswith("root=/dev/vdb ")
    assert (boot_root.path / "boot" / entry["linux"][1:]).stat().st_size > 1 << 20
    assert (boot_root.path / "boot" / entry["initrd"][1:]).stat().st_size > 1 << 20
    assert (boot_root.path / "usr" / "lib" / "modules" / one / "modules.dep").stat().st_size
    assert boot_root.rpm("-V", *packages("0.1")) == ""
    provides = boot_root.rpm("-q", "--provides", f"kernel-itree-core-{version()}-0.1{SUFFIX}").splitlines()
    assert {f"kernel-uname-r = {one}", "installonlypkg(kernel)"} <= set(provides), provides

    boot_root.repos(kernel=kernel_new / "repo")
    boot_root.dnf("upgrade")
    assert kernels(boot_root) == sorted(packages("0.1") + packages("0.2"))
    assert boot_root.asked() == [added("0.2")]
    assert boot_root.entry(one)["version"] == one and boot_root.entry(two)["version"] == two
    assert boot_root.rpm("-V", *packages("0.1"), *packages("0.2")) == ""

    boot_root.dnf("remove", f"kernel-itree-core-{version()}-0.1{SUFFIX}")
    assert kernels(boot_root) == packages("0.2")
    assert boot_root.asked() == [f"remove {one} "]
    assert not [p for p in boot_root.booted() if one in p]
    assert not (boot_root.path / "usr" / "lib" / "modules" / one).exists()
    assert boot_root.entry(two)["version"] == two

    boot_root.dnf("remove", "kernel-itree*", "itree-storage-server")
    assert boot_root.installed() == sorted(f"{n}-1-1" for n in boot_root.FIRST), "what came with them is to go too"
    assert boot_root.booted() == boot
    after = boot_root.files()
    # Directories that the scriptlets' programs made, and what our e2fsprogs leaves (see test_rpm_install).
    left = {p for p in after if p not in before and after[p] is not False and "mke2fs.conf" not in p}
    assert not left and not [p for p in before if p not in after]
    clean(boot_root)


def test_modules_added_later_get_into_the_initramfs(boot_root):
    boot_root.dnf("install", "kernel-itree-core")
    assert boot_root.asked() == [added("0.1")]
    initrd = boot_root.path / "boot" / boot_root.entry(krel("0.1"))["initrd"][1:]
    listing = f"lsinitrd /boot/{initrd.relative_to(boot_root.path / 'boot')}"
    assert not re.search(r"/kernel/\S+\.ko", boot_root.chroot(listing))
    boot_root.dnf("install", "kernel-itree-modules")
    assert boot_root.asked() == [added("0.1")]
    assert re.search(r"/kernel/\S+\.ko", boot_root.chroot(listing))
    boot_root.dnf("remove", "kernel-itree-modules")
    assert kernels(boot_root) == packages("0.1", ("-core",))
    assert boot_root.asked() == []
    assert not (boot_root.path / "usr" / "lib" / "modules" / krel("0.1") / "kernel").exists()
    clean(boot_root)


def test_failing_kernel_install_says_what_to_do(boot_root):
    stop = boot_root.path / "etc" / "kernel" / "fail-add"
    stop.touch()
    output = boot_root.dnf("install", "kernel-itree", ok=(0, 1))
    assert "has no boot entry or no initramfs" in output and "scriptlet failed" in output
    (command,) = set(re.findall(r"^\s+(kernel-install add \S+ \S+)$", output, re.M))
    assert not [p for p in boot_root.booted() if p.endswith(".conf")]
    stop.unlink()
    boot_root.chroot(command)
    assert boot_root.entry(krel("0.1"))["version"] == krel("0.1")


def test_boots_by_its_own_entry_fills_and_checks(boot_root, tmp_path):
    """Firmware, systemd-boot, the entry that kernel-install wrote, dracut's initramfs; then the packaged tools."""
    boot_root.dnf("install", "itree-storage-server")
    # The tools' own requirements apart, nothing of ours is in the base system.
    kernel = tmp_path / "vmlinuz"
    kernel.write_bytes((boot_root.path / "usr" / "lib" / "modules" / krel("0.1") / "vmlinuz").read_bytes())
    disks = bootvm.disks_of(boot_root, tmp_path)
    bootvm.fills_and_checks(disks, kernel, tmp_path, krel("0.1"))


def test_the_same_bytes_elsewhere(kernel_old, module_key, work, tmp_path):
    """Without compiler cache, in another directory: identical payloads."""
    (srpm,) = (kernel_old / "SRPMS").glob("*.src.rpm")
    small = ("--with", "small") if KERNEL == "small" else ()
    roots.call("rpmbuild", "--rebuild", "--nodeps", *small, "--define", f"itree_module_key {module_key}",
               "--define", f"_topdir {tmp_path}", srpm)  # fmt: skip
    for path in (tmp_path / "RPMS").rglob("*.rpm"):
        both = (path, kernel_old / "RPMS" / path.name)
        one, two = (roots.call("rpm", "-qp", "--qf", "%{PAYLOADDIGEST}", p)[1] for p in both)
        assert one == two, path.name
