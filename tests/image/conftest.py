# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the appliance share: its command over a volume of its own, and clients on loopback."""

import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import time

import pytest
from command import run

REPO = pathlib.Path(__file__).resolve().parents[2]
APPLIANCE = REPO / "image" / "appliance"
COMMAND = APPLIANCE / "usr" / "bin" / "itree-backup"
sys.dont_write_bytecode = True


def units_root(top, *trees):
    """Make a root of files that packages or the image have, and of systemd's own units, for systemd-analyze."""
    for tree in trees:
        shutil.copytree(tree / "usr", top / "usr", symlinks=True, dirs_exist_ok=True)
    (top / "etc").mkdir()
    shutil.copy("/etc/os-release", top / "etc")
    system = top / "usr" / "lib" / "systemd" / "system"
    for path in pathlib.Path("/lib/systemd/system").iterdir():
        if path.is_file() and not (system / path.name).exists():
            shutil.copy(path, system)
    return top


def as_unit(name):
    """The command line that runs a command with the capabilities of a unit."""
    text = (APPLIANCE / "usr" / "lib" / "systemd" / "system" / name).read_text()
    rights = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M)[1].lower()
    names = "".join(f",+{right.removeprefix('cap_')}" for right in rights.split())
    return ["setpriv", "--no-new-privs", f"--bounding-set=-all{names}"]


def state(root, data=True):
    """All that is to be the same in a copy of a tree: names, kinds, owners, modes, times, data, links, attributes."""
    root, found, inodes = os.fsencode(root), {}, {}
    for directory, dirs, files in os.walk(root):
        for name in [b"."] + dirs + files if directory == root else dirs + files:
            path = os.path.join(directory, name)
            got, rel = os.lstat(path), os.path.relpath(path, root)
            what = [stat.S_IFMT(got.st_mode), stat.S_IMODE(got.st_mode), got.st_uid, got.st_gid]
            if stat.S_ISREG(got.st_mode):
                inodes.setdefault(got.st_ino, []).append(rel)
                what += [got.st_size, got.st_mtime_ns]
                if data:
                    with open(path, "rb") as handle:
                        what.append(hashlib.file_digest(handle, "sha256").hexdigest())
            elif stat.S_ISLNK(got.st_mode):
                what.append(os.readlink(path))
            elif stat.S_ISDIR(got.st_mode):
                what.append(got.st_mtime_ns)
            attributes = os.listxattr(path, follow_symlinks=False)
            what += sorted((a, os.getxattr(path, a, follow_symlinks=False)) for a in attributes)
            found[rel] = what
    for names in inodes.values():
        for name in names:
            found[name].append(sorted(names))
    return found


def same(one, two):
    """Fail with what differs unless two states are the same."""
    wrong = [k for k in sorted(one.keys() | two.keys()) if one.get(k) != two.get(k)]
    details = "".join(f"\n{k!r}:\n  {one.get(k)}\n  {two.get(k)}" for k in wrong[:5])
    assert not wrong, f"{len(wrong)} names differ:{details}"


def maildir(top, number, seed=1):
    """Messages with names as Dovecot gives them."""
    chance = random.Random(seed)
    for name in ("cur", "new", "tmp"):
        (top / name).mkdir(parents=True)
    for n in range(number):
        size = chance.randrange(300, 3000)
        path = top / "cur" / f"17000{n:05}.M{chance.randrange(10**6)}P{n}.mx1,S={size}:2,S"
        path.write_bytes(chance.randbytes(size))
        os.utime(path, ns=(1_700_000_000 * 10**9 + n * 1_234_567_891,) * 2)
    return top


def source_tree(top):
    """The sources of this repository that there always are."""
    shutil.copytree(REPO / "e2fsprogs", top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (top / "link").symlink_to("README.md")
    (top / "dangling").symlink_to("/nowhere/at/all")
    return top


def farm(top):
    """Hard links by the dozen, and files of all other kinds with names nobody wants."""
    for n in range(20):
        (top / f"d{n}").mkdir(parents=True)
    for n in range(15):
        first = top / "d0" / f"file{n}"
        first.write_bytes(random.Random(n).randbytes(500 + n))
        for m in range(1, 20):
            os.link(first, top / f"d{m}" / f"name{n}")
    odd = top / "odd"
    odd.mkdir()
    for name in (b"new\nline", b"back\\slash", b"\\#012", b"caf\xe9", "grün".encode(), b" lead", b"-rf", b"a:b", b"%C"):
        with open(os.path.join(os.fsencode(odd), name), "wb") as handle:
            handle.write(name * 3)
    (odd / "empty").touch()
    os.mkfifo(odd / "fifo")
    with open(odd / "sparse", "wb") as handle:
        handle.truncate(1 << 20)
    (odd / "setuid").write_text("#!/bin/sh\n")
    (odd / "setuid").chmod(0o4755)
    os.chown(odd / "empty", 12345, 54321)
    os.setxattr(odd / "sparse", "user.note", b"kept")
    run("setfacl", "-m", "u:1234:r", odd / "empty")
    return top


def fill(top, *names):
    for name in names:
        (top / name).mkdir(parents=True)
        (top / name / "file").write_text(f"of {name}\n")


def port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for_port(number, proc, log):
    for _ in range(200):
        assert proc.poll() is None, log.read_text(errors="replace")
        try:
            socket.create_connection(("127.0.0.1", number), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"nothing listens on port {number}\n{log.read_text(errors='replace')}")


def restrict(appliance, command):
    """The appliance's key may only run that on the client."""
    key = appliance.conf / "ssh" / "id.pub"
    key.write_text(f'restrict,command="{command}" {key.read_text()}')


class Servers:
    """sshd and rsyncd on loopback ports, of this test alone."""

    def __init__(self, top):
        self.top, self.running = top, {}
        top.mkdir()

    def start(self, kind, argv, number):
        log = self.top / f"{kind}.log"
        with open(log, "ab") as out:
            proc = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    start_new_session=True)  # fmt: skip
        self.running[kind] = proc
        wait_for_port(number, proc, log)
        return number

    def ssh(self, conf):
        """An sshd that lets the key of conf/ssh in, and is the only known host; its port."""
        keys = conf / "ssh"
        keys.mkdir(exist_ok=True)
        number = port()
        for path in (keys / "id", self.top / "host_key"):
            if not path.exists():
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
        (keys / "known_hosts").write_text(f"[127.0.0.1]:{number} {(self.top / 'host_key.pub').read_text()}")
        # sshd insists on it; systemd or the init script would have made it.
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        (self.top / "sshd_config").write_text(
            f"Port {number}\nListenAddress 127.0.0.1\nHostKey {self.top}/host_key\nAuthorizedKeysFile {keys}/id.pub\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n"
        )
        return self.start("ssh", ["/usr/sbin/sshd", "-D", "-e", "-f", self.top / "sshd_config"], number)

    def rsync(self, **modules):
        """An rsyncd that serves modules {name: directory}; its port."""
        number = port()
        text = "use chroot = no\nreverse lookup = no\nuid = 0\ngid = 0\nread only = yes\n"
        text += "".join(f"[{name}]\npath = {path}\n" for name, path in modules.items())
        (self.top / "rsyncd.conf").write_text(text)
        argv = ["rsync", "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={number}",
                f"--config={self.top}/rsyncd.conf"]  # fmt: skip
        return self.start("rsync", argv, number)

    def kill(self, kind):
        """The machine falls over: all that serves goes at once, sessions too."""
        proc = self.running.pop(kind)
        for pid in [*self.children(proc.pid), proc.pid]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        proc.wait()

    def children(self, pid):
        try:
            text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        found = [int(p) for p in text.split()]
        return [grand for child in found for grand in self.children(child)] + found

    def close(self):
        for kind in list(self.running):
            self.kill(kind)


class Appliance:
    """The command, its configuration, and a volume: ext4 in a file."""

    def __init__(self, top, size=256, inodes=20000):
        self.top, self.conf, self.volume = top, top / "etc", top / "volume"
        self.servers, self.mounted = Servers(top / "servers"), False
        (self.conf / "hosts.d").mkdir(parents=True)
        self.volume.mkdir()
        image = top / "volume.img"
        with open(image, "wb") as handle:
            handle.truncate(size << 20)
        run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-N", inodes, "-E", "lazy_itable_init=1", image)
        code, text = run("mount", "-o", "loop,noatime", image, self.volume, ok=None)
        if code:
            pytest.skip(f"needs a loop mount of ext4, which failed: {text.strip()}")
        self.mounted = True
        self.settings()
        self("init")

    def settings(self, more="", free=1):
        (self.conf / "itree-backup.conf").write_text(
            f"[volume]\ndirectory = {self.volume}\nmin_free_percent = {free}\nmin_free_inodes_percent = 1\n"
            f"[metrics]\ndirectory = {self.top}/metrics\n{more}"
        )

    def host(self, name, method, number, *paths, more=""):
        listed = "".join(f"\n    {p}" for p in paths)
        (self.conf / "hosts.d" / f"{name}.conf").write_text(
            f"[host]\naddress = 127.0.0.1\nport = {number}\nmethod = {method}\npaths ={listed}\ntimeout = 300\n{more}"
        )

    def argv(self, *args):
        return [COMMAND, "--config", self.conf, *args]

    def __call__(self, *args, ok=(0,), **kwargs):
        """Run itree-backup; what it said."""
        __tracebackhide__ = True
        # As systemd does it for the units.
        kwargs["env"] = {"STATE_DIRECTORY": f"{self.top}/state", **(kwargs.get("env") or os.environ)}
        return run(*self.argv(*args), ok=ok, **kwargs)[1]

    def good(self, host):
        """Paths of the good snapshots, oldest first."""
        return sorted(p for p in (self.volume / host).iterdir() if p.name[0] != "." and p.name.endswith("Z"))

    def with_gaps(self, host):
        """Paths of the snapshots with gaps, oldest first."""
        return sorted((self.volume / host).glob("*.gaps"))

    def partial(self, host):
        return sorted((self.volume / host).glob("*.partial"))

    def status(self, host):
        return json.loads((self.volume / host / ".itree-backup" / "status.json").read_text())

    def close(self):
        self.servers.close()
        if self.mounted:
            # A killed run's rsync may need a moment to end.
            for _ in range(600):
                if run("umount", self.volume, ok=None)[0] == 0:
                    return
                time.sleep(0.1)
            pytest.fail(f"{self.volume} cannot be unmounted")


@pytest.fixture
def make_appliance(tmp_path):
    """Makes appliances; servers are stopped and volumes unmounted whatever happens."""
    if os.geteuid():
        pytest.skip("keeping owners of files and mounting a volume want the rights of root")
    made = []

    def make(**kwargs):
        top = tmp_path / f"appliance{len(made)}"
        top.mkdir()
        one = Appliance.__new__(Appliance)
        one.servers, one.mounted = None, False
        made.append(one)
        one.__init__(top, **kwargs)
        return one

    yield make
    for one in made:
        if one.servers:
            one.close()


@pytest.fixture
def appliance(make_appliance):
    return make_appliance()
