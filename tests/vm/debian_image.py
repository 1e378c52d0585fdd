# SPDX-License-Identifier: GPL-2.0-only
"""The disk of a Debian host with a stock kernel and GRUB. Made once by mmdebstrap and kept in the cache.

SERVER is a mail and NFS server; the roles under test install the kernel with itrees. Packages that a host later gets
from its distribution are in /srv/debian, because the machines have no network except forwarded ports.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import debian
import treebuild as tb

UUID = "17ee17ee-0000-4000-8000-000000000001"
BASE = ("systemd-sysv", "udev", "dbus", "openssh-server", "iproute2", "procps", "initramfs-tools", "grub-common",
        "grub2-common", "grub-efi-amd64-bin", "e2fsprogs", "logsave")  # fmt: skip


@dataclasses.dataclass
class Recipe:
    """The contents of a disk: packages besides BASE, including a kernel, and those in /srv/debian."""

    name: str
    packages: tuple[str, ...]
    later: tuple[str, ...]
    preseed: str = ""
    updates: bool = False  # with security updates
    release: str = "bookworm"
    suites: str = ""  # APT sources, for a release other than this machine's

    @property
    def listed(self):
        """APT sources while the disk is made."""
        return debian.apt_sources(self.updates, self.suites)


SERVER = Recipe(
    "ansible-machine",
    ("linux-image-cloud-amd64", "python3", "python3-apt", "rsync", "nano", "dovecot-imapd", "postfix",
     "nfs-kernel-server", "nfs-common", "dnf", "rpm"),
    ("e2fsprogs", "libext2fs2", "libcom-err2", "libss2", "logsave"),
    "postfix postfix/main_mailer_type select Local only\\npostfix postfix/mailname string itree-test",
)  # fmt: skip
# Modules that GRUB needs to find its configuration; it loads the rest from there.
GRUB_MODULES = ("ext2", "search", "search_fs_uuid", "configfile", "normal", "linux", "loadenv", "test", "echo",
                "reboot", "serial", "terminal", "sleep", "regexp", "all_video", "gzio")  # fmt: skip
CUSTOMIZE = r"""
set -eu
cd "$1"
echo itree-test >etc/hostname
echo "127.0.0.1 localhost itree-test" >etc/hosts
echo "UUID=@UUID@ / ext4 errors=remount-ro 0 1" >etc/fstab
cat >etc/systemd/network/80-dhcp.network <<END
[Match]
Name=en* eth*
[Network]
DHCP=ipv4
LinkLocalAddressing=no
END
chroot . systemctl -q enable systemd-networkd ssh
# What a test waits for and does not need.
chroot . systemctl -q mask apt-daily.timer apt-daily-upgrade.timer man-db.timer e2scrub_all.timer fstrim.timer \
    systemd-networkd-wait-online.service e2scrub_reap.service grub-common.service
# Emulated, on a busy host, services take minutes to start.
mkdir -p etc/systemd/system.conf.d
printf '[Manager]\nDefaultTimeoutStartSec=3600\n' >etc/systemd/system.conf.d/slow.conf
install -d -m 700 root/.ssh
install -m 600 @KEY@ root/.ssh/authorized_keys
cat >etc/default/grub <<END
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="console=ttyS0 net.ifnames=0 systemd.show_status=no"
GRUB_DISABLE_OS_PROBER=true
END
mkdir -p boot/grub srv/debian boot/efi
cp -r usr/lib/grub/x86_64-efi boot/grub/
kernel=$(cd boot && ls vmlinuz-*)
cat >boot/grub/grub.cfg <<END
linux /boot/$kernel root=UUID=@UUID@ ro console=ttyS0 net.ifnames=0 systemd.show_status=no
initrd /boot/initrd.img-${kernel#vmlinuz-}
boot
END
cat >tmp/early.cfg <<END
search --no-floppy --fs-uuid --set=root @UUID@
set prefix=(\$root)/boot/grub
configfile \$prefix/grub.cfg
END
chroot . grub-mkimage -O x86_64-efi -p /boot/grub -c /tmp/early.cfg -o /boot/efi/BOOTX64.EFI @MODULES@
mkdir srv/debian/partial
chroot . apt-get -qq --reinstall --download-only -o Dir::Cache::Archives=/srv/debian install @LATER@
rm -r srv/debian/partial srv/debian/lock
"""


def call(*argv, **kwargs):
    """Run a step of the build; raise a BuildError with its output if it fails."""
    res = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False, **kwargs)  # fmt: skip
    if res.returncode:
        raise tb.BuildError(f"{argv[0]} ended with {res.returncode}:\n{res.stdout[-4000:]}")
    return res.stdout


def build(recipe, out):
    """Make the disks in the directory out: root.img, esp.img and key (of root's ssh login)."""
    root = out / "root"
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "itree-test", "-f", out / "key")
    words = {"UUID": UUID, "KEY": out / "key.pub", "MODULES": " ".join(GRUB_MODULES),
             "LATER": " ".join(recipe.later)}  # fmt: skip
    script = CUSTOMIZE
    for name, text in words.items():
        script = script.replace(f"@{name}@", str(text))
    (out / "customize").write_text("#!/bin/sh\n" + script)
    (out / "customize").chmod(0o755)
    options = [f"--customize-hook={out / 'customize'}"]
    if recipe.preseed:
        options.append(f"--essential-hook=printf '{recipe.preseed}\\n' | chroot \"$1\" debconf-set-selections")
    try:
        debian.make_root(recipe.release, BASE + recipe.packages, root, *options, listed=recipe.listed)
        # From now on, /srv/debian is the host's only APT source.
        (root / "srv/debian/Packages").write_text(call("apt-ftparchive", "packages", ".", cwd=root / "srv/debian"))
        shutil.rmtree(root / "etc/apt/sources.list.d")
        (root / "etc/apt/sources.list.d").mkdir()
        (root / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/srv/debian ./\n")
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        (root / "etc/machine-id").write_text("")
        for name, size in (("root.img", 4 << 30), ("esp.img", 64 << 20)):
            with open(out / name, "wb") as handle:
                handle.truncate(size)
        call("mkfs.vfat", out / "esp.img")
        call("mmd", "-i", out / "esp.img", "::/EFI", "::/EFI/BOOT")
        call("mcopy", "-i", out / "esp.img", root / "boot/efi/BOOTX64.EFI", "::/EFI/BOOT/BOOTX64.EFI")
        call("mke2fs", "-q", "-F", "-t", "ext4", "-U", UUID, "-d", root, out / "root.img")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def image(recipe=SERVER):
    """The directory with the disks, from the cache or built now, in a few minutes."""
    parts = (UUID, BASE, recipe, GRUB_MODULES, CUSTOMIZE, recipe.listed)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    top = tb.cache_dir() / recipe.name
    top.mkdir(parents=True, exist_ok=True)
    made = top / key
    with tb.locked("machine", top / ".lock"):
        if not (made / "done").exists():
            if os.geteuid():
                raise tb.BuildError("making a root file system with owners takes root")
            for old in top.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            with tempfile.TemporaryDirectory(prefix="tmp-", dir=top) as tmp:
                out = pathlib.Path(tmp) / "image"
                out.mkdir()
                build(recipe, out)
                (out / "done").touch()
                out.rename(made)
    return made


if __name__ == "__main__":
    print(image())
