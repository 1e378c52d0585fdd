# SPDX-License-Identifier: GPL-2.0-only
"""Boot an installed root the way a host boots: firmware, boot loader, boot entry, kernel, initramfs, root disk."""

import pathlib
import re
import subprocess

import firmware
import roots

HERE = pathlib.Path(__file__).parent
LOADER = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"


def image(path, size):
    with open(path, "wb") as handle:
        handle.truncate(size)
    return path


def disks_of(root, top):
    """Make the disks of a BootRoot: its /boot as an EFI system partition with systemd-boot, its root, an empty one."""
    esp = image(top / "esp.img", 512 << 20)
    roots.call("mkfs.vfat", "-F", "32", esp)
    roots.call("mcopy", "-s", "-i", esp, *sorted((root.path / "boot").iterdir()), "::/")
    roots.call("mmd", "-i", esp, "::/EFI", "::/EFI/BOOT")
    roots.call("mcopy", "-i", esp, LOADER, "::/EFI/BOOT/BOOTX64.EFI")
    root.unmount()
    disk = image(top / "root.img", 2 << 30)
    # By this host's own mke2fs: what the packages bring is tried in the machine.
    roots.call("mke2fs", "-q", "-F", "-t", "ext4", "-d", root.path, disk)
    return [esp, disk, image(top / "data.img", 256 << 20)]


def boot(disks, kernel, top, timeout=900, keys=None):
    """Run the machine until it powers itself off. Returns the text that it wrote to its serial line.

    keys: with Secure Boot; files with the keys that the owner has enrolled besides Microsoft's.
    """
    (top / "vars.fd").unlink(missing_ok=True)
    secure = keys is not None
    store = firmware.secure_variables(top / "vars.fd", keys) if secure else firmware.variables(top / "vars.fd")
    # A kernel that panics is not started again and again.
    argv = firmware.command(kernel, "1G", f"file:{top}/console", disks, store, cache="unsafe", secure=secure,
                            more=("-no-reboot",))  # fmt: skip
    (top / "console").touch()
    try:
        res = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                             check=False)  # fmt: skip
        ended = f"qemu ended with {res.returncode}: {res.stderr}" if res.returncode else ""
    except subprocess.TimeoutExpired:
        ended = f"killed after {timeout} s"
    output = (top / "console").read_text(errors="replace")
    assert not ended, f"{ended}\n{output[-8000:]}"
    return output


def fills_and_checks(disks, kernel, top, release):
    """Boot twice, with guest-init as the first program and the third disk to work on; what it is to say is asserted."""
    output = boot(disks, kernel, top) + boot(disks, kernel, top)
    assert output.count(f"guest: runs {release}") == 2, output[-8000:]
    assert output.count("guest: exit code 0") == 2, output[-8000:]
    assert re.search(r"guest: features .*\bitree\b", output) and "guest: filled" in output
    # BTF of the kernel and of its modules: the kernel refuses a module whose BTF does not match its own.
    assert re.search(r"guest: btf .*\bvmlinux\b", output), output[-8000:]
    assert "guest: files 3000" in output and "guest: archived 3000" in output and "guest: checked" in output
    if "small" in release:
        assert re.search(r"guest: modules .*virtio_blk", output), "the root's driver is to come from the initramfs"
        assert re.search(r"guest: btf .*\bvirtio_blk\b", output), output[-8000:]
