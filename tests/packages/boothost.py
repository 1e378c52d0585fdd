# SPDX-License-Identifier: GPL-2.0-only
"""A distribution that kernels can be installed into: this host's shell, systemd, udev, kmod and dracut as packages.

Its directories are merged below /usr, as Fedora's and EL's are.
"""

import os
import pathlib
import shutil

import roots

HERE = pathlib.Path(__file__).parent
MERGED = ("bin", "sbin", "lib", "lib64")
# Debian's packages whose files make up each of ours.
PARTS = {
    "test-base": ("bash", "coreutils", "cpio", "dash", "findutils", "gawk", "grep", "gzip", "libc-bin", "mount", "sed",
                  "util-linux", "util-linux-extra", "diffutils", "zstd"),
    "systemd-udev": ("systemd", "udev"),
    "kmod": ("kmod",),
    "dracut": ("dracut-core",),
}  # fmt: skip
# What no boot and no scriptlet needs, and what would ask for more packages.
SKIP = ("/usr/share/", "/usr/lib/kernel/install.d/85-initrd.install", "/etc/", "/var/", "/boot/")


def files_of(packages):
    """Paths of the files and links of Debian packages, each where it really lies."""
    out = set()
    for name in roots.call("dpkg", "-L", *packages)[1].splitlines():
        path = pathlib.Path(name)
        real = path.parent.resolve() / path.name
        below = str(real.parent) != "/" and not str(real).startswith(SKIP)
        if below and (real.is_symlink() or real.is_file()):
            out.add(real)
    return out


def put(path, tree, done):
    """Copy a file with the links that lead to it, once."""
    path = path.parent.resolve() / path.name
    while path not in done:
        done.add(path)
        dest = tree / str(path)[1:]
        dest.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            shutil.copy2(path, dest)
            break
        target = os.readlink(path)
        dest.symlink_to(target)
        path = path.parent / target
        path = path.parent.resolve() / path.name
        if path.is_dir() and not path.is_symlink() or not os.path.lexists(path):
            break


def is_program(path):
    with open(path, "rb") as handle:
        return handle.read(4) == b"\x7fELF"


def libraries_of(paths):
    """All libraries that programs and libraries among these are linked with, and the loader."""
    # ldd names its file before its libraries only if there are several.
    programs = [p for p in paths if not p.is_symlink() and is_program(p)]
    return {p.parent.resolve() / p.name for p in roots.needed_by_all(programs)}


def distribution(top):
    """Make the packages of PARTS in a repository of their own; its directory."""
    tree = top / "tree"
    done, lists = set(), {}
    for name in reversed(PARTS):  # the base gets what is left
        paths = files_of(PARTS[name])
        if name == "test-base":
            paths |= libraries_of(paths | done)
            paths |= {roots.library(n) for n in (*roots.LIBRARIES, "libarchive.so.13")}
            paths |= libraries_of(paths)
        before = set(done)
        for path in sorted(paths):
            put(path, tree, done)
        lists[name] = sorted(str(p) for p in done - before if os.path.lexists(tree / str(p)[1:]))
    for name in MERGED:
        (tree / "usr" / name).mkdir(exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("sh", "busybox"):
        path = tree / "usr" / "bin" / name
        if not os.path.lexists(path):
            shutil.copy2(pathlib.Path("/bin") / name, path, follow_symlinks=name != "sh")
            lists["test-base"].append(f"/usr/bin/{name}")
    for name in ("guest-init", "50-dracut.install", "00-record.install"):
        where = "/usr/lib/kernel/install.d" if name.endswith(".install") else "/usr/lib/itree-test"
        dest = tree / where[1:] / name
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(HERE / "boot" / name, dest)
        dest.chmod(0o755)
        lists["dracut" if "dracut" in name else "systemd-udev"].append(f"{where}/{name}")
    (tree / "etc").mkdir(exist_ok=True)
    shutil.copytree("/etc/ld.so.conf.d", tree / "etc" / "ld.so.conf.d")
    (tree / "etc" / "ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/usr/lib64\n")
    (tree / "etc" / "os-release").write_text('ID=itree-test\nPRETTY_NAME="itree test root"\n')
    lists["test-base"] += ["/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/os-release", *(f"/{n}" for n in MERGED)]
    for name, paths in lists.items():
        (top / f"{name}.list").write_text("".join(f'"{p}"\n' for p in sorted(set(paths))))
    spec = top / "boot.spec"
    spec.write_text((HERE / "boot.spec.in").read_text().replace("@TREE@", str(tree)).replace("@LISTS@", str(top)))
    repo = top / "repo"
    repo.mkdir()
    for path in roots.rpmbuild(spec, top, "--define", "_binary_payload w1.gzdio"):
        shutil.copy(path, repo)
    roots.call("createrepo_c", "--quiet", repo)
    shutil.rmtree(tree)
    return repo


class BootRoot(roots.Root):
    """A root with /proc, /dev and a /boot of its own kind, as an installer of hosts gives it."""

    FIRST = ("test-base", "systemd-udev", "kmod", "dracut")

    def __init__(self, path, repos):
        super().__init__(path, repos, first=self.FIRST)

    def prepare(self):
        for name in ("proc", "dev", "boot", "tmp", "var/tmp", "run", "sys", "mnt", "root",
                     "var/log", "etc/kernel", "etc/dracut.conf.d"):  # fmt: skip
            (self.path / name).mkdir(parents=True, exist_ok=True)
        roots.call("mount", "-t", "proc", "itree-test", self.path / "proc")
        roots.mount_devices(self.path / "dev")
        # A file system of its own, as an EFI system partition is.
        roots.call("mount", "-t", "tmpfs", "-o", "mode=755,size=512M", "itree-test", self.path / "boot")
        (self.path / "boot" / "loader").mkdir()
        (self.path / "boot" / "loader" / "entries.srel").write_text("type1\n")
        (self.path / "etc" / "machine-id").write_text("1" * 32 + "\n")
        (self.path / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (self.path / "etc" / "group").write_text("root:x:0:\n")
        (self.path / "etc" / "kernel" / "cmdline").write_text(
            "root=/dev/vdb rw console=ttyS0 panic=-1 init=/usr/lib/itree-test/guest-init\n"
        )
        # Without systemd, which wants a larger kernel than the one that is tested with.
        (self.path / "etc" / "dracut.conf.d" / "test.conf").write_text(
            'dracutmodules="bash base fs-lib kernel-modules rootfs-block udev-rules"\n'
        )

    def asked(self):
        """What kernel-install was asked for so far, a line each; forgotten after that."""
        log = self.path / "var" / "log" / "kernel-install"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def booted(self):
        """All that lies in /boot, as relative paths."""
        boot = self.path / "boot"
        return sorted(str(p.relative_to(boot)) for p in boot.rglob("*") if p.is_file())

    def entry(self, release):
        """The boot entry of a kernel, as a dictionary."""
        path = self.path / "boot" / "loader" / "entries" / f"{'1' * 32}-{release}.conf"
        return dict(t.split(None, 1) for t in path.read_text().splitlines())

    def unmount(self):
        for name in ("boot", "dev", "proc"):
            if os.path.ismount(self.path / name):
                roots.unmount(self.path / name)

    def close(self):
        self.unmount()
        super().close()
