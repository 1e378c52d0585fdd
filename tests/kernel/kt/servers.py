# SPDX-License-Identifier: GPL-2.0-only
"""File servers in user space, as Debian has them: names that the server renames over, and restarts in mid-listing.

The servers run in a chroot of a Debian root, on the kernel under test. What the itree must guarantee is measured beside
a volume without the feature, in the same machine: a server may miss names by its own doing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from kt.guest import Failed, Guest
from kt.neighbours import Server
from kt.positions import Storm, Stream
from kt.registry import case
from kt.resume import Listing

PACKAGES = ("attr", "dbus", "glusterfs-client", "glusterfs-server", "nfs-ganesha", "nfs-ganesha-vfs", "procps",
            "rpcbind")  # fmt: skip
FULL = "servers in user space take minutes, and a Debian root of 340 MB"
BUFFER = 2000  # bytes of one getdents of the client


class Chroot:
    """The Debian root, writable in memory, with the kernel's file systems and the volume in their usual places."""

    def __init__(self, g: Guest):
        g.tmp.mkdir(parents=True, exist_ok=True)
        layers = pathlib.Path(tempfile.mkdtemp(prefix="layers-", dir=g.tmp))
        self.g, self.at = g, layers / "root"
        for path in (self.at, layers / "upper", layers / "work"):
            path.mkdir()
        lower = g.job["roots"][g.case.id]
        options = f"lowerdir={lower},upperdir={layers}/upper,workdir={layers}/work"
        g.run("mount", "-t", "overlay", "-o", options, "overlay", self.at)
        for path in ("/dev", "/proc", "/sys"):
            g.run("mount", "--rbind", path, self.within(path))
        g.run("mount", "-t", "tmpfs", "-o", "mode=755", "none", self.within("/run"))
        self.within("/etc/mtab").symlink_to("/proc/self/mounts")
        self.within("/etc/hosts").write_text("127.0.0.1 localhost itree-test\n")
        self.volume = self.within(g.mnt)
        self.volume.mkdir(parents=True)
        self.daemons: list[subprocess.Popen] = []

    def within(self, path) -> pathlib.Path:
        """Where a path of the root lies for this program."""
        return self.at / str(path).lstrip("/")

    def run(self, *argv, **more) -> subprocess.CompletedProcess:
        return self.g.run("chroot", self.at, *argv, **more)

    def start(self, *argv, log: str) -> subprocess.Popen:
        with open(self.within(log), "ab") as out:
            proc = subprocess.Popen(["chroot", str(self.at), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=subprocess.STDOUT)  # fmt: skip
        self.daemons.append(proc)
        return proc

    def kill(self, *programs: str) -> None:
        """End what runs in the root, of these programs only if any are named; as a crash does it."""
        for _ in range(240):
            left = [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.runs(p, programs)]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for proc in self.daemons:
                proc.poll()
            time.sleep(0.25)
        raise Failed(f"processes that do not end: {left}")

    def runs(self, pid: int, programs: tuple[str, ...]) -> bool:
        try:
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            return os.readlink(f"/proc/{pid}/root") == str(self.at) and (not programs or name in programs)
        except OSError:
            return False

    def show(self) -> None:
        self.g.run("mount", "--bind", self.g.mnt, self.volume)

    def hide(self) -> None:
        self.g.run("umount", self.volume)

    def close(self) -> None:
        self.kill()
        if os.path.ismount(self.volume):
            self.hide()
        self.g.run("umount", "--recursive", "--lazy", self.at, check=False)


GANESHA = """
NFS_CORE_PARAM {{ Protocols = 3, 4; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; }}
# As with actimeo=0 of the client: what others do to the directory is seen.
EXPORT_DEFAULTS {{ Attr_Expiration_Time = 0; }}
EXPORT {{
    Export_Id = 1; Path = {path}; Pseudo = /; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
    Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""


class Ganesha(Server):
    """nfs-ganesha on the guest's loopback interface, with the volume as its export."""

    survivor = Stream  # a reader that goes on after a restart

    def __init__(self, g: Guest):
        self.g, self.chroot, self.daemon = g, Chroot(g), None
        self.chroot.within("/etc/ganesha/ganesha.conf").write_text(GANESHA.format(path=g.mnt))
        for path in ("/run/rpcbind", "/run/ganesha", "/var/lib/nfs/ganesha", "/var/log/ganesha"):
            self.chroot.within(path).mkdir(parents=True, exist_ok=True)
        self.chroot.start("rpcbind", "-f", "-w", log="/run/rpcbind.log")
        self.start()

    def start(self) -> None:
        self.chroot.show()
        argv = ("ganesha.nfsd", "-F", "-L", "/run/ganesha.log", "-N", "NIV_EVENT")
        self.daemon = self.chroot.start(*argv, log="/run/ganesha.out")
        log = self.chroot.within("/run/ganesha.log")
        for _ in range(240):
            if log.exists() and "NFS SERVER INITIALIZED" in log.read_text(errors="replace"):
                return
            if self.daemon.poll() is not None:
                break
            time.sleep(0.5)
        output = log.read_text(errors="replace") if log.exists() else self.chroot.within("/run/ganesha.out").read_text()
        raise Failed(f"nfs-ganesha does not start:\n{output[-3000:]}")

    def stored(self, name: str) -> list[str]:
        """Where a directory of the clients lies on the volume."""
        return [self.g.path(name)]

    def end(self) -> None:
        """As a crash does it: nothing is handed over to the next."""
        self.chroot.kill("ganesha.nfsd")
        log = self.chroot.within("/run/ganesha.log")
        with open(self.g.share / "ganesha.log", "a") as kept:
            kept.write(log.read_text(errors="replace"))
        log.unlink()
        self.chroot.hide()

    def restart(self) -> None:
        """Restart the server, with nothing of the volume in memory."""
        self.end()
        self.g.again()
        self.start()

    def stop(self) -> None:
        self.chroot.close()


def volume(g: Guest, itree: bool) -> None:
    """An empty volume, with the feature or without."""
    g.umount()
    features = "itree" if itree and g.job["itree"] else "^itree"
    g.run(g.tool("mke2fs"), "-q", "-F", "-t", "ext4", "-O", features, *g.case.mkfs, g.dev)
    g.mount()


def listing(g: Guest, one, storm: Storm, storms: bool, restart=None) -> list[str]:
    """The names that a client gets; restart, if any, is called when it has a third of them."""
    n = len(storm.names)
    with contextlib.closing(one):
        while one.call() and len(one.names) < 4 * n:
            if storms and len(storm.replaced) < n // 10:
                storm.blow(one.names, n // 100)
            if restart and len(one.names) > n // 3:
                restart()
                restart = None
    g.want(restart is None, "the listing had ended before the server was to be restarted")
    g.want(not storms or len(storm.replaced) >= n // 20, f"only {len(storm.replaced)} names replaced")
    return one.names


# A phase is (what happens during the listing, names are renamed over, the server restarts).
PHASES = (("at rest", False, False), ("restarted", False, True), ("storm", True, False),
          ("storm, restarted", True, True))  # fmt: skip


def measured(g: Guest, server, where: pathlib.Path, itree: bool, label: str, make=Storm) -> dict:
    """For each phase, how many names are missed, come twice, and come more often than that."""
    found, n = {}, g.p["n"]
    # Two storms rename a tenth of the names over each.
    storm = make(g, n, n // 4, "d")
    for local in server.stored("d"):
        g.equal(g.has_tree(local), itree and g.job["itree"], f"itree flag of {local}")
    for phase, storms, restarts in PHASES:
        reader = server.survivor if restarts else Stream
        got = listing(g, reader(str(where / "d"), BUFFER), storm, storms, server.restart if restarts else None)
        missed, twice = storm.count(got)
        found[phase] = len(missed), len(twice), len(storm.count(got, 2, 2)[1])
        volume_is = "itree" if itree else "stock"
        counts = "missed {}, more than once {}, more than twice {}".format(*found[phase])
        g.kmsg(f"{label}, {volume_is}, {n} names, {phase}: replaced {len(storm.replaced)}, {counts}")
        storm.replaced.clear()
    return found


def compare(g: Guest, label: str, stock: dict, ours: dict) -> None:
    """With the feature a server misses no name more than without, and gives each once while nothing changes."""
    for phase, storms, restarts in PHASES:
        (missed, twice, more), (missed_stock, twice_stock, more_stock) = ours[phase], stock[phase]
        what = f"{label}, {phase}"
        g.want(missed <= missed_stock, f"{what}: {missed} names missed, without the feature {missed_stock}")
        g.want(more <= more_stock, f"{what}: {more} names come more than twice, without the feature {more_stock}")
        if not storms and not restarts:
            g.want(twice <= twice_stock, f"{what}: {twice} names come twice, without the feature {twice_stock}")
        g.stats["missed"] = g.stats.get("missed", 0) + missed
        g.stats["missed_stock"] = g.stats.get("missed_stock", 0) + missed_stock
        g.stats["twice"] = g.stats.get("twice", 0) + twice
        g.stats["twice_stock"] = g.stats.get("twice_stock", 0) + twice_stock


def ganesha(g: Guest) -> None:
    """A client of nfs-ganesha gets each name, whatever the server renames over, and after a restart."""
    versions = ("3", "4.2")
    found: dict[bool, dict[str, dict]] = {False: {}, True: {}}
    for itree in (False, True):
        volume(g, itree)
        server = Ganesha(g)
        try:
            for version in versions:
                at = server.mount(version, "rsize=4096")
                try:
                    found[itree][version] = measured(g, server, at, itree, f"NFS {version}")
                finally:
                    g.run("umount", "-l", at, check=False)
                g.run("rm", "-rf", g.path("d"), g.path("d-pool"), timeout=600)
        finally:
            server.stop()
    for version in versions:
        compare(g, f"NFS {version}", found[False][version], found[True][version])


for _n in (5_000, 50_000):
    case(f"reader-ganesha-{_n}", "open", {"n": _n}, size="1G", mkfs=("-b", "4096", "-N", "150000"), root=PACKAGES,
         memory="2G", cost=200, limit=1500, full=FULL)(ganesha)  # fmt: skip


ADDRESS = "192.0.2.1"  # GlusterFS takes no loopback address
STORED = ("gluster", "--mode=script", "volume")


class Gluster:
    """A GlusterFS volume of two bricks, both on the volume under test, and a client of it."""

    # A client that keeps the directory open misses the rest of a brick that was restarted, on stock ext4 as well.
    survivor = Listing

    def __init__(self, g: Guest):
        self.g, self.chroot = g, Chroot(g)
        self.client = self.chroot.within("/mnt")
        g.run("ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo")
        for path in ("/run/gluster", "/var/log/glusterfs/bricks"):
            self.chroot.within(path).mkdir(parents=True, exist_ok=True)
        self.bricks = [g.path(f"brick{i}") for i in range(2)]
        for brick in self.bricks:
            os.mkdir(brick)
        try:
            self.start()
            self.chroot.run(*STORED, "create", "v", *(f"{ADDRESS}:{b}" for b in self.bricks), "force", timeout=300)
            self.chroot.run(*STORED, "start", "v", timeout=300)
            self.chroot.run("glusterfs", f"--volfile-server={ADDRESS}", "--volfile-id=v", "/mnt", timeout=300)
            self.wait(self.connected, "the client of GlusterFS does not reach both bricks")
        except BaseException:
            self.stop()
            raise

    def wait(self, ready, problem: str) -> None:
        for _ in range(240):
            if ready():
                return
            time.sleep(0.5)
        raise Failed(problem)

    def start(self) -> None:
        self.chroot.show()
        self.chroot.start("glusterd", "-N", log="/run/glusterd.out")
        self.wait(lambda: not self.chroot.run(*STORED, "list", check=False, timeout=300).returncode,
                  "glusterd does not answer")  # fmt: skip

    def connected(self) -> bool:
        """Does the client have both bricks?"""
        try:
            states = [self.client / f".meta/graphs/active/v-client-{i}/private" for i in range(2)]
            return all("connected = 1" in state.read_text() for state in states)
        except OSError:
            return False

    def restart(self) -> None:
        """Restart both bricks, with nothing of the volume in memory; the client stays."""
        self.chroot.kill("glusterd", "glusterfsd")
        self.chroot.hide()
        self.g.again()
        self.wait(lambda: not self.connected(), "the client of GlusterFS does not see that the bricks are gone")
        self.start()
        self.wait(self.connected, "the client of GlusterFS does not reach the bricks again")

    def stored(self, name: str) -> list[str]:
        """Where a directory of the clients lies on the volume."""
        return [os.path.join(brick, name) for brick in self.bricks]

    def stop(self) -> None:
        for log in self.chroot.within("/var/log/glusterfs").rglob("*.log"):
            (self.g.share / f"{log.parent.name}-{log.name}").write_text(log.read_text(errors="replace")[-200_000:])
        self.g.run("umount", "--lazy", self.client, check=False)
        self.chroot.close()


class BrickStorm(Storm):
    """The storm on the bricks themselves; the files are made by the client, and stay on the brick that has them."""

    def __init__(self, g: Guest, n: int, spare: int, name: str, server: Gluster):
        super().__init__(g, n, spare, name, str(server.client))
        self.dirs = server.stored(name)
        self.pools = [[os.path.join(pool, p) for p in os.listdir(pool)] for pool in server.stored(f"{name}-pool")]

    def replace(self, name: str) -> None:
        for where, pool in zip(self.dirs, self.pools, strict=True):
            if os.path.exists(os.path.join(where, name)):
                os.rename(pool.pop(), os.path.join(where, name))


def gluster(g: Guest) -> None:
    """A client of GlusterFS gets each name, whatever another renames over, and after a restart of the bricks."""
    found = {}
    for itree in (False, True):
        volume(g, itree)
        server = Gluster(g)
        try:
            found[itree] = measured(g, server, server.client, itree, "GlusterFS",
                                    functools.partial(BrickStorm, server=server))  # fmt: skip
        finally:
            server.stop()
    compare(g, "GlusterFS", found[False], found[True])


for _n in (5_000, 50_000):
    case(f"reader-gluster-{_n}", "open", {"n": _n}, size="1G", mkfs=("-b", "4096", "-N", "400000"), root=PACKAGES,
         memory="2G", cost=200, limit=1500, full=FULL)(gluster)  # fmt: skip
