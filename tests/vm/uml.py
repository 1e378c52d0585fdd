# SPDX-License-Identifier: GPL-2.0-only
"""Run a command in a kernel that is a program of this host (ARCH=um), as vm.run() does it in a virtual machine.

Nothing is emulated, so a kernel full of checks (KASAN, lockdep) runs many
times faster than in QEMU.  It has no 32-bit programs, and one processor; from
7.3 on it can be configured for more.  The root is the host's, read only, with
the same directories covered by overlays; disks are /dev/ubda, /dev/ubdb ...;
vm.run() calls this for such a kernel.
"""

import pathlib
import shlex

MOST_DISKS = 16  # of the driver
# In the script of either kind of guest: make /dev/stdout and friends work as usual.
STDIO_LINKS = (
    "for n in 0:stdin 1:stdout 2:stderr; do",
    '    ln -sfn "/proc/self/fd/${n%%:*}" "/dev/${n##*:}"',
    "done",
)


def is_uml(kernel) -> bool:
    """Whether a file is a kernel of this kind: a program and not a boot image."""
    with open(kernel, "rb") as handle:
        return handle.read(4) == b"\x7fELF"


def built_with(option, kernel) -> bool | None:
    """Whether a kernel was built with the option; None if its configuration does not lie beside it."""
    config = pathlib.Path(kernel).parent / "config"
    return f"\n{option}=y\n" in config.read_text() if config.is_file() else None


def disk_name(number: int) -> str:
    """Name of the disk with that number, below /dev."""
    return f"ubd{chr(ord('a') + number)}"


def init_script(command, run_dir, *, overlays, shares, env, cwd) -> str:
    """Script of the first process: set up a root as in the virtual machines, run the command, power off."""
    quote = shlex.quote
    lines = [
        "#!/bin/bash",
        "# SPDX-License-Identifier: GPL-2.0-only",
        *[f"export {k}={quote(v)}" for k, v in env.items()],
        "mount -t proc proc /proc",
        "mount -t sysfs sysfs /sys",
        "mount -t devtmpfs devtmpfs /dev 2>/dev/null",
        "mount -t debugfs debugfs /sys/kernel/debug",
        "mkdir -p /dev/pts /dev/shm && mount -t devpts devpts /dev/pts && mount -t tmpfs tmpfs /dev/shm",
        "ln -sfn /proc/self/fd /dev/fd",
        *STDIO_LINKS,
        "mount -t tmpfs -o mode=755 tmpfs /run",
        "mount -t tmpfs -o mode=755 tmpfs /mnt",
    ]
    for number, path in enumerate(overlays):
        upper = f"/mnt/{number}"
        lines += [
            f"mkdir -p {upper}/up {upper}/work && mount -t overlay -o lowerdir={path},upperdir={upper}/up,"
            f"workdir={upper}/work overlay {path}"
        ]
    # Also the directory of the run, which may be below a covered one.
    for share in (run_dir, *shares):
        lines += [f"mkdir -p {quote(str(share))} && mount -t hostfs -o {quote(str(share))} none {quote(str(share))}"]
    out = quote(str(run_dir))
    lines += [
        "ip link set lo up",
        f"cd {quote(str(cwd))}",
        f"bash -c {quote(command)} </dev/null >{out}/stdout 2>{out}/stderr",
        f"echo $? >{out}/rc",
        "sync",
        "echo o >/proc/sysrq-trigger",
        "sleep 60",
    ]
    return "\n".join(lines) + "\n"


def smp_options(kernel, cpus) -> list[str]:
    """Parameters for several processors, which require the new way to run user space; none of older kernels."""
    # kmemleak lets the second processor call RCU before it is online.
    return [f"ncpus={cpus}", "seccomp=on", "kmemleak=off"] if built_with("CONFIG_SMP", kernel) else []


def command_line(kernel, init, run_dir, *, memory, cpus, disks, append) -> list[str]:
    """The kernel as a command: its first process is init, its console standard output, its own files in run_dir."""
    return [str(kernel), f"mem={memory}", *smp_options(kernel, cpus), "root=/dev/root",
            "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}",
            "con=null", "con0=null,fd:1", "ssl=null", "printk.devkmsg=on", "panic=-1", f"uml_dir={run_dir}",
            *[f"{disk_name(n)}={path}" for n, path in enumerate(disks)], *append]  # fmt: skip
