# SPDX-License-Identifier: GPL-2.0-only
"""A host with our packages goes from Debian 12 to 13, by apt as an admin calls it."""

import os
import re
import shutil
import subprocess

import bootvm
import debhost
import debian
import firmware
import pytest
import roots

pytestmark = pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="takes minutes and a mirror: ITREE_FULL=1")

PACKAGES = ("systemd-sysv", "udev", "initramfs-tools", "quota", "logsave", "e2fsprogs", "fuse2fs", "libext2fs-dev",
            "linux-image-cloud-amd64", "debian-archive-keyring")  # fmt: skip
OURS = ("e2fsprogs", "fuse2fs", "libext2fs-dev")
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold"
SERVICE = """[Unit]
After=local-fs.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cat /run/initramfs/fsck.log; echo "host: root is $(findmnt -no FSTYPE,OPTIONS /)"'
ExecStopPost=/bin/systemctl poweroff --no-block
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
[Install]
WantedBy=multi-user.target
"""


class Host(debhost.Apt):
    """A root of Debian 12 in a directory, with what it needs to boot."""

    def __init__(self, root):
        self.root = root
        if not root.exists():
            debian.make_root("bookworm", PACKAGES, root)
            # initramfs-tools looks at the root's device for which fsck it copies.
            (root / "etc/fstab").write_text("/dev/vda / ext4 errors=remount-ro 0 1\n")
            roots.call("mke2fs", "-q", "-F", "-t", "ext4", root / "dev/vda", "4M")
            # No service is started: nothing of it runs.
            (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
            (root / "usr/sbin/policy-rc.d").chmod(0o755)
            shutil.rmtree(root / "etc/apt/sources.list.d")
            (root / "etc/apt/sources.list.d").mkdir()
            (root / "etc/apt/sources.list").write_text("")

    def run(self, script, ok=(0,)):
        __tracebackhide__ = True
        argv = ["unshare", "--mount", "--propagation", "private", "chroot", self.root, "/bin/sh", "-ec",
                f"mount -t proc proc /proc\n{script}"]  # fmt: skip
        return roots.call(*argv, ok=ok)[1]

    def copy(self, to):
        roots.call("cp", "-a", "--reflink=auto", self.root, to)
        return Host(to)

    def is_debian(self, release):
        (self.root / "etc/apt/sources.list.d/debian.sources").write_text(debian.apt_sources(release=release))

    def has_ours(self, repo, name):
        """Put our repository into the root and name it to apt; each has a directory of its own, as on a web server."""
        shutil.copytree(repo, self.root / "srv" / name)
        line = f"deb [signed-by=/srv/{name}/itree-archive-keyring.asc] file:/srv/{name} ./\n"
        (self.root / "etc/apt/sources.list.d/itree.list").write_text(line)

    def upgrade(self):
        return self.run(f"apt-get -q update; {APT} dist-upgrade")


@pytest.fixture(scope="module")
def repos(work):
    """Our repositories for both releases."""
    return {name: debhost.build(work / f"up-{name}", "e2fsprogs", target=name) for name in debian.RELEASES}


@pytest.fixture(scope="module")
def bookworm(work, repos):
    """A host of Debian 12 with our e2fsprogs."""
    if os.geteuid():
        pytest.skip("making a root file system takes root")
    host = Host(work / "bookworm")
    for path in debian.apt_files():
        shutil.copy(path, host.root / "etc/apt/apt.conf.d")
    host.is_debian("bookworm")
    host.has_ours(repos["bookworm"], "bookworm")
    host.run(f"apt-get -q update; {APT} install e2fsprogs")
    assert all("itree" in v and state == "ii" for v, state in host.versions(*OURS, "libext2fs2").values())
    yield host
    shutil.rmtree(host.root)


def sound(host):
    """What must hold of a host whose packages are all of one hand; its versions."""
    assert host.run("dpkg --audit") == "" and host.run("dpkg -V") == ""
    host.run("e2fsck -V; mke2fs -V; fuse2fs -V || true; mke2fs -q -F -t ext4 /tmp/x 16M; e2fsck -fn /tmp/x; rm /tmp/x")
    kernels = sorted((host.root / "boot").glob("initrd.img-6.12*"))
    assert kernels, "Debian 13's kernel came"
    script = f"rm -rf /var/tmp/i; unmkinitramfs /boot/{kernels[-1].name} /var/tmp/i"
    host.run(f"{script}; find /var/tmp/i -name fsck.ext4 | grep . | xargs -n1 cmp /usr/sbin/e2fsck; rm -r /var/tmp/i")
    return host.versions("e2fsprogs", "fuse2fs", "libext2fs-dev", "quota")


def test_to_our_packages_of_13(bookworm, repos, tmp_path):
    """The repository's line is changed with Debian's: all is ours of 13, and the root is checked as it boots."""
    host = bookworm.copy(tmp_path / "root")
    host.is_debian("trixie")
    host.has_ours(repos["trixie"], "trixie")
    host.upgrade()
    now = sound(host)
    assert now["e2fsprogs"][0].endswith("+deb13") and all(now[name] == now["e2fsprogs"] for name in OURS), now
    assert host.versions("libext2fs2t64")["libext2fs2t64"] == now["e2fsprogs"]
    assert now["quota"][0].startswith("4.09"), now

    (host.root / "etc/systemd/system/itree-test.service").write_text(SERVICE)
    host.run("systemctl -q enable itree-test; systemctl -q mask serial-getty@ttyS0")
    (kernel,) = (host.root / "boot").glob("vmlinuz-6.12*")
    for name in (kernel.name, kernel.name.replace("vmlinuz", "initrd.img")):
        shutil.copy(host.root / "boot" / name, tmp_path)
    disk = bootvm.image(tmp_path / "root.img", 3 << 30)
    (host.root / "dev/vda").unlink()
    roots.call("mke2fs", "-q", "-F", "-t", "ext4", "-d", host.root, disk)
    shutil.rmtree(host.root)
    more = ("-no-reboot", "-kernel", tmp_path / kernel.name,
            "-initrd", tmp_path / kernel.name.replace("vmlinuz", "initrd.img"),
            "-append", "root=/dev/vda ro fsck.mode=force console=ttyS0 panic=-1")  # fmt: skip
    argv = firmware.command(tmp_path / kernel.name, "1G", f"file:{tmp_path}/console", [disk], None, cache="unsafe",
                            more=more)  # fmt: skip
    subprocess.run([str(a) for a in argv], check=True, timeout=900, stdin=subprocess.DEVNULL)
    output = (tmp_path / "console").read_text(errors="replace")
    # e2fsck sums up what it went through; without -f it would have said "clean".
    assert "fsck.ext4 -f" in output and re.search(r"/dev/vda: \d+/\d+ files", output), output[-6000:]
    assert "host: root is ext4 rw" in output, output[-6000:]


def test_with_our_repository_as_it_was(bookworm, tmp_path):
    """Nobody changed its line: ours of 12 stay, all of them, and go on to work."""
    host = bookworm.copy(tmp_path / "root")
    before = host.versions(*OURS, "libext2fs2")
    host.is_debian("trixie")
    host.upgrade()
    sound(host)
    assert host.versions(*OURS, "libext2fs2") == before
    shutil.rmtree(host.root)


def test_to_debians_packages(bookworm, tmp_path):
    """Without our repository, by the line of README.itree: all is Debian's of 13."""
    host = bookworm.copy(tmp_path / "root")
    (host.root / "etc/apt/sources.list.d/itree.list").unlink()
    host.is_debian("trixie")
    host.upgrade()
    theirs = next(t.split()[2] for t in host.run("apt-cache madison libext2fs2t64").splitlines())
    wanted = " ".join(f"{name}={theirs}" for name in (*OURS, "libext2fs2t64"))
    host.run(f"{APT} --allow-downgrades install {wanted}; {APT} install quota")
    now = sound(host)
    assert all(now[name] == (theirs, "ii") for name in OURS), now
    shutil.rmtree(host.root)
