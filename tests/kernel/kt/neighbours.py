# SPDX-License-Identifier: GPL-2.0-only
"""Trees with other features: NFS, overlayfs, loop devices, online resize, freezing, very many subdirectories."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import pathlib
import subprocess
import threading
import time

from kt import itree_ioctl as io
from kt.guest import Failed, Guest
from kt.registry import case


def entries(path) -> list[tuple[str, int]]:
    with os.scandir(path) as it:
        return [(e.name, e.inode()) for e in it]


@contextlib.contextmanager
def churning(g: Guest, path, stable: str = "old-"):
    """Context: meanwhile, create and delete names, but none that begin with `stable`."""
    stop, faults, start = threading.Event(), [], g.stats.get("changes", 0)

    def work(first: int) -> None:
        n, kept = first, collections.deque()
        try:
            while not stop.is_set():
                new = os.path.join(path, f"new-{start}-{n}")
                os.mknod(new)
                if n % 3 == 0:
                    os.rename(new, new + "-moved")
                    os.unlink(new + "-moved")
                elif n % 3 == 1:
                    os.unlink(new)
                else:
                    kept.append(new)
                    # However long it goes on, the volume does not fill up.
                    if len(kept) > 3000:
                        os.unlink(kept.popleft())
                n += 2
                g.stats["changes"] = g.stats.get("changes", 0) + 1
        except OSError as err:
            faults.append(f"a writer fails: {err}")

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for t in threads:
        t.start()
    try:
        yield
    finally:
        stop.set()
        for t in threads:
            t.join(120)
            g.want(not t.is_alive(), "a writer does not come back")
        for text in faults:
            g.fail(text)


def once(g: Guest, got: list[str], want: set[str], what: str) -> None:
    """Check that each of these names is there once; others may be there or not."""
    mine = [n for n in got if n in want]
    g.want(len(mine) == len(set(mine)), f"{what}: {len(mine) - len(set(mine))} names twice")
    g.want(set(mine) == want, f"{what}: {len(want - set(mine))} names missing: {sorted(want - set(mine))[:3]}")


def fill(g: Guest, path, n: int, prefix: str = "old-") -> set[str]:
    """Make empty files whose names are not in the order of their inodes, and delete some."""
    made = [f"{prefix}{i * 7919 % 1000003}" for i in range(n)]
    for name in made:
        os.mknod(os.path.join(path, name))
    for name in made[:: 4]:
        os.unlink(os.path.join(path, name))
    return set(made) - set(made[:: 4])


# --- NFS


class Server:
    """knfsd on the guest's own loopback interface."""

    def __init__(self, g: Guest):
        self.g, self.daemons = g, []
        state = g.tmp / "nfs"
        state.mkdir(parents=True)
        g.run("mount", "--bind", state, "/var/lib/nfs")
        for sub in ("sm", "sm.bak", "v4recovery", "rpc_pipefs", "nfsdcltrack"):
            (state / sub).mkdir(exist_ok=True)
        for name in ("etab", "rmtab", "state"):
            (state / name).touch()
        g.run("ip", "link", "set", "lo", "up")
        if not os.path.ismount("/proc/fs/nfsd"):
            g.run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
        g.run("mount", "-t", "tmpfs", "none", "/run/rpcbind") if os.path.isdir("/run/rpcbind") else None
        self.daemons.append(subprocess.Popen(["rpcbind", "-f", "-w"], stderr=subprocess.DEVNULL))
        g.run("exportfs", "-i", "-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=0", f"127.0.0.1:{g.mnt}")
        # It registers with rpcbind, which has only just been started.
        for left in reversed(range(20)):
            if not g.run("rpc.nfsd", "-V", "3", "2", check=not left).returncode:
                break
            time.sleep(0.5)
        self.daemons.append(subprocess.Popen(["rpc.mountd", "-F", "-p", "20048"], stderr=subprocess.DEVNULL))
        time.sleep(2)

    def mount(self, version: str, more: str = "") -> pathlib.Path:
        at = self.g.tmp / f"nfs{version}"
        at.mkdir(exist_ok=True)
        options = f"vers={version},proto=tcp,port=2049,soft,timeo=600,actimeo=0"
        if version == "3":
            options += ",nolock,mountproto=tcp,mountport=20048"
        options += f",{more}" if more else ""
        for _ in range(10):
            what = self.g.mnt if version == "3" else "/"
            res = self.g.run("mount.nfs", f"127.0.0.1:{what}", at, "-o", options, check=False, timeout=200)
            if not res.returncode:
                return at
            time.sleep(1)
        raise Failed(f"mount.nfs vers={version}: {res.stderr.strip()}")

    def stop(self) -> None:
        self.g.run("rpc.nfsd", "0", check=False)
        self.g.run("exportfs", "-ua", check=False)
        for d in self.daemons:
            d.terminate()
            d.wait(20)
        self.g.run("umount", "/var/lib/nfs", check=False)


def nfs(g: Guest) -> None:
    """Listings over NFS while files are created and deleted: every name that stays, once."""
    g.mount()
    os.mkdir(g.path("d"))
    want = fill(g, g.path("d"), g.p["full" if g.job["full"] else "n"])
    g.want_tree(g.path("d"))
    server = Server(g)
    try:
        for version in ("3", "4.2"):
            at = server.mount(version)
            try:
                g.settle()
                got = entries(at / "d")
                once(g, [n for n, _ in got], want, f"NFS {version}, nobody else")
                g.equal(len(got), len(os.listdir(g.path("d"))), f"names over NFS {version}")
                g.stats["names"] = len(got)
                with churning(g, g.path("d")):
                    for _ in range(g.p["rounds"]):
                        once(g, os.listdir(at / "d"), want, f"NFS {version}, changes on the server")
                        g.settle()
                with churning(g, at / "d"):
                    once(g, os.listdir(at / "d"), want, f"NFS {version}, changes by the client")
                    once(g, os.listdir(g.path("d")), want, f"local, changes through NFS {version}")
                # All of it in one pass, as ls -l does: READDIRPLUS, then attributes.
                for name in sorted(want)[:50]:
                    g.run_quiet(os.stat, at / "d" / name)
            finally:
                g.run("umount", "-l", at, check=False)
    finally:
        server.stop()
    g.want(g.stats.get("changes", 0) > 100, f"hardly a change: {g.stats}")
    a = io.itree(g.path("d"), io.CHECK)
    g.want((a.missing, a.extra) == (0, 0), f"{a.missing} keys missing, {a.extra} too many")
    g.again()
    once(g, os.listdir(g.path("d")), want, "mounted again")


# Delete a quarter of the names.
case(
    "neighbours-nfs", "neighbours", {"n": 12_000, "full": 400_000, "rounds": 2},
    size="1G", mkfs=("-N", "450000"), cost=90, limit=3000,
)(nfs)  # fmt: skip


# --- overlayfs above, a loop device above, a larger device below


def overlay(g: Guest) -> None:
    """Upper, lower and work directories on one volume: merged listings, copied up files, whiteouts."""
    g.mount()
    for d in ("lower", "upper", "work", "merged"):
        os.mkdir(g.path(d))
    (pathlib.Path(g.path("lower")) / "d").mkdir()
    want = fill(g, g.path("lower/d"), 3000)
    options = f"lowerdir={g.path('lower')},upperdir={g.path('upper')},workdir={g.path('work')}"
    g.run("mount", "-t", "overlay", "-o", options, "overlay", g.path("merged"))
    try:
        d = g.path("merged/d")
        once(g, os.listdir(d), want, "merged")
        gone = sorted(want)[::3]
        for name in gone:
            os.unlink(os.path.join(d, name))
        added = fill(g, d, 3000, "top-")
        for name in sorted(want - set(gone))[:200]:
            os.rename(os.path.join(d, name), os.path.join(d, f"moved-{name}"))
        moved = {f"moved-{n}" for n in sorted(want - set(gone))[:200]}
        now = (want - set(gone) - {n[len("moved-"):] for n in moved}) | added | moved
        g.equal(sorted(os.listdir(d)), sorted(now), "names after changes in the upper directory")
        with churning(g, d):
            once(g, os.listdir(d), now, "merged, while files come and go")
        g.want_tree(g.path("upper/d"))
    finally:
        g.run("umount", g.path("merged"))
    once(g, os.listdir(g.path("lower/d")), want, "the lower directory")
    g.again()


case("neighbours-overlay", "neighbours", size="256M", cost=40, limit=900)(overlay)


def loop(g: Guest) -> None:
    """A file system with trees in a file of a file system with trees."""
    g.mount()
    os.mkdir(g.path("d"))
    want = fill(g, g.path("d"), 3000)
    image, inner = g.path("image"), g.tmp / "inner"
    inner.mkdir(parents=True)
    g.run("truncate", "-s", "64M", image)
    g.run(g.tool("mke2fs"), "-q", "-t", "ext4", "-O", "itree", "-b", "1024", "-N", "16000", "-F", image)
    g.run("mount", "-o", "loop", image, inner)
    try:
        (inner / "d").mkdir()
        within = fill(g, inner / "d", 3000)
        g.want(g.has_tree(inner / "d"), "no tree within")
        with churning(g, g.path("d")):
            once(g, os.listdir(inner / "d"), within, "within")
            once(g, os.listdir(g.path("d")), want, "without")
    finally:
        g.run("umount", inner)
    res = g.run(g.tool("e2fsck"), "-fn", image, check=False)
    g.equal(res.returncode, 0, f"e2fsck within: {res.stdout[-300:]}")


case("neighbours-loop", "neighbours", size="256M", cost=40, limit=900)(loop)


def resize(g: Guest) -> None:
    """The volume grows while a directory with a tree is changed and read."""
    size = os.stat(g.dev).st_size or int(g.run("blockdev", "--getsize64", g.dev).stdout)
    g.run(g.tool("resize2fs"), g.dev, "40M")
    g.mount()
    os.mkdir(g.path("d"))
    want = fill(g, g.path("d"), 3000)
    with churning(g, g.path("d")):
        for megabytes in (64, 96, 128, size >> 20):
            g.run(g.tool("resize2fs"), g.dev, f"{megabytes}M", timeout=300)
            once(g, os.listdir(g.path("d")), want, f"grown to {megabytes} MiB")
    g.want_tree(g.path("d"))
    g.want(os.statvfs(g.mnt).f_blocks * os.statvfs(g.mnt).f_frsize > 0.8 * size, "the volume did not grow")
    # New blocks are used by the tree as any others.
    more = fill(g, g.path("d"), 3000, "more-")
    once(g, os.listdir(g.path("d")), want | more, "after growing")
    g.again()
    once(g, os.listdir(g.path("d")), want | more, "mounted again")


case("neighbours-resize", "neighbours", mkfs=("-b", "1024", "-N", "40000"), size="200M", cost=60, limit=900)(resize)


def freeze(g: Guest) -> None:
    """Freeze in the middle of changes: readers continue, the image is consistent, writers continue after the thaw."""
    g.mount()
    os.mkdir(g.path("d"))
    want = fill(g, g.path("d"), 3000)
    with churning(g, g.path("d")):
        for number in range(4):
            g.run("fsfreeze", "-f", g.mnt)
            try:
                once(g, os.listdir(g.path("d")), want, "while frozen")
                if number == 2:
                    copy = g.copy_frozen()
            finally:
                g.run("fsfreeze", "-u", g.mnt)
            time.sleep(0.3)
    g.want_clean(copy, "the snapshot")
    g.want_tree(g.path("d"))


case("neighbours-freeze", "neighbours", mkfs=("-b", "1024"), size="64M", cost=30, limit=600)(freeze)


def subdirs(g: Guest) -> None:
    """More subdirectories than a link count holds."""
    count = 70_000
    g.mount()
    os.mkdir(g.path("d"))
    for n in range(count):
        os.mkdir(g.path(f"d/{n * 7919 % 1000003}"))
    g.equal(os.stat(g.path("d")).st_nlink, 1, "link count beyond 65,000 subdirectories")
    g.want_tree(g.path("d"))
    g.again()
    got = entries(g.path("d"))
    g.equal(len({n for n, _ in got}), count, "different names")
    g.want(g.job["plain"] or [i for _, i in got] == sorted(i for _, i in got), "no inode order")
    for name, _ in got[::2]:
        os.rmdir(g.path(f"d/{name}"))
    g.equal(len(os.listdir(g.path("d"))), count - len(got[::2]), "names after deleting every other")


case(
    "neighbours-subdirs", "neighbours", mkfs=("-b", "1024", "-N", "80000", "-I", "128"),
    features="^resize_inode,dir_nlink", size="200M", cost=200, limit=1500, full="70,000 subdirectories take minutes",
)(subdirs)  # fmt: skip


def project(g: Guest) -> None:
    """Project quota counts the tree's blocks; a create over quota fails and leaves both indexes unchanged."""
    g.mount("prjquota")
    os.mkdir(g.path("d"))
    g.run("chattr", "-p", "7", "+P", g.path("d"))
    want = fill(g, g.path("d"), 3000)
    held = sum(length for _, _, length in g.segment(g.path("d"))) // 1024
    quotas = g.run("repquota", "-P", "-v", g.mnt).stdout
    row = next((line.split() for line in quotas.splitlines() if line.startswith("#7")), None)
    used = int(row[2]) if row else -1
    g.equal(used, os.stat(g.path("d")).st_blocks // 2, f"KiB of the project, of which the tree has {held}")
    g.run("setquota", "-P", "7", "0", str(used + 12), "0", "0", g.mnt)
    made, err = 0, 0
    os.chmod(g.path("d"), 0o777)
    # Quota does not bind root.
    os.seteuid(1000)
    try:
        while made < 5000 and not err:
            try:
                os.mknod(g.path(f"d/{'x' * 200}{made}"))
                made += 1
            except OSError as caught:
                err = caught.errno
    finally:
        os.seteuid(0)
    g.equal(err, errno.EDQUOT, f"error after {made} files")
    a = io.itree(g.path("d"), io.CHECK)
    g.want(a.state & io.HAS_TREE and (a.missing, a.extra) == (0, 0), f"the tree after EDQUOT: {a}")
    once(g, os.listdir(g.path("d")), want, "after EDQUOT")
    g.equal(len(os.listdir(g.path("d"))), len(want) + made, "names after EDQUOT")


case(
    "neighbours-project", "neighbours", features="quota,project", mkfs=("-b", "1024", "-E", "quotatype=prjquota"),
    size="64M", cost=30, limit=600,
)(project)  # fmt: skip
