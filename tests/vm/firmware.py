# SPDX-License-Identifier: GPL-2.0-only
"""A machine that boots like a real host: UEFI firmware, its disk's boot loader, and its own kernel.

vm.py starts a kernel over this host's root; this is for installed systems: packages, hosts of Ansible, the appliance.
"""

import pathlib
import shutil
import subprocess
import sys
import uuid

import vm

FIRMWARE = pathlib.Path("/usr/share/OVMF")


def variables(path):
    """The firmware's variable store, with its boot entries; a fresh copy unless it exists."""
    if not pathlib.Path(path).exists():
        shutil.copy(FIRMWARE / "OVMF_VARS_4M.fd", path)
    return path


def secure_variables(path, keys=(), db=()):
    """The firmware's variable store with Secure Boot on: Microsoft's keys, and the owner's (PEM or DER files).

    keys: for shim; db: for the firmware itself.
    """
    argv = [sys.executable, "-m", "virt.firmware.vars", "--input", FIRMWARE / "OVMF_VARS_4M.fd", "--output", path,
            "--enroll-microsoft", "--microsoft-db", "all", "--secure-boot"]  # fmt: skip
    for option, files in (("--add-mok", keys), ("--add-db", db)):
        for key in files:
            argv += [option, str(uuid.uuid4()), key]
    subprocess.run([str(a) for a in argv], check=True, capture_output=True)
    return path


def command(kernel, memory, serial, disks, store, boot=None, forwards=None, cache="writeback", more=(),
            secure=False):  # fmt: skip
    """QEMU's command line.

    kernel: any existing image, to test whether KVM works; it is not booted.
    memory: in QEMU's form ("1G"); serial: the argument of -serial; disks: raw images, /dev/vda first.
    store: from variables(); None omits the firmware, for callers that add -kernel.
    boot: number of the disk to boot from, if it is not the first one with a boot loader.
    forwards: {port of 127.0.0.1: port of the machine}; there is no other connection. None: no network.
    cache: with "unsafe", the disk ignores flushes, so power cuts cannot be tested.
    secure: firmware with Secure Boot, with a store from secure_variables().
    """
    kvm = vm.kvm_works(kernel)
    # Emulated processors in separate threads sometimes miss that the kernel patches its code.
    accel, cpus = ("kvm", "2") if kvm else ("tcg,thread=single", "1")
    machine, code = ("q35,smm=on", "OVMF_CODE_4M.secboot.fd") if secure else ("q35", "OVMF_CODE_4M.fd")
    argv = ["qemu-system-x86_64", "-machine", machine, "-accel", accel, "-m", memory, "-smp", cpus, "-nodefaults",
            "-display", "none", "-serial", serial, "-device", "virtio-rng-pci"]  # fmt: skip
    # When emulated, each TLB miss walks the page tables: four levels are faster than five.
    argv += ["-cpu", "host"] if kvm else ["-cpu", "max,la57=off", "-global", "virtio-blk-pci.ioeventfd=off"]
    if store:
        argv += ["-drive", f"if=pflash,format=raw,readonly=on,file={FIRMWARE}/{code}",
                 "-drive", f"if=pflash,format=raw,file={store}"]  # fmt: skip
    if forwards is not None:
        ports = "".join(f",hostfwd=tcp:127.0.0.1:{host}-:{guest}" for host, guest in forwards.items())
        argv += ["-netdev", f"user,id=n0,restrict=on{ports}", "-device", "virtio-net-pci,netdev=n0"]
    for number, path in enumerate(disks):
        # The firmware hides from boot loaders all disks that are not boot candidates.
        first = f",bootindex={1 if number == boot else number + 2}" if boot is not None else ""
        argv += ["-drive", f"if=none,id=d{number},format=raw,cache={cache},discard=unmap,file={path}",
                 "-device", f"virtio-blk-pci,drive=d{number}{first}"]  # fmt: skip
    return [*argv, *map(str, more)]
