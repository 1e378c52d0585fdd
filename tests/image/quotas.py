# SPDX-License-Identifier: GPL-2.0-only
"""Run in a guest whose kernel has quotas by test_quota.py: each scenario on a new volume, /dev/ubda.

Prepared and run as the units do it, with their capabilities. quotas.py SHARE [SCENARIO]... writes the failure of each
scenario to SHARE/results.json.
"""

import errno
import json
import os
import pathlib
import re
import subprocess
import sys
import traceback

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("image", "lib")]
from conftest import APPLIANCE, Appliance, Servers, as_unit, run, same, state  # noqa: E402

DISK, TOP = "/dev/ubda", pathlib.Path("/mnt/quotas")
LIMIT = 24 << 20
# Each byte is summed three times, which takes minutes for the longer one.
SPARSE = 10_000_000_000 if os.environ.get("ITREE_FULL") else 1_000_000_000
SIZE = "[quota]\nsize = 24M\n"
FEATURES = ("-O", "project,quota", "-E", "quotatype=prjquota")


class Guest(Appliance):
    """An appliance on the disk of the guest, with two clients: mx1, which has limits, and web, which has none."""

    def __init__(self, name, features=FEATURES, more=SIZE):
        self.top = TOP / name
        self.conf, self.volume = self.top / "etc", self.top / "volume"
        (self.conf / "hosts.d").mkdir(parents=True)
        self.volume.mkdir()
        self.servers = Servers(self.top / "servers")
        run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", *features, DISK)
        if features:
            run("tune2fs", "-E", "mount_opts=prjquota", DISK)
        self.mount()
        self.settings()
        self("init")
        self.clients = {}
        for host in ("mx1", "web"):
            self.clients[host] = self.top / "clients" / host
            self.clients[host].mkdir(parents=True)
            (self.clients[host] / "small").write_text("small\n")
            (self.clients[host] / "link").symlink_to("small")
        self.number = self.servers.rsync(**self.clients)
        self.limit(more)
        self.host("web", "rsyncd", self.number, "web")

    def mount(self):
        run("mount", "-o", "noatime", DISK, self.volume)
        self.mounted = True

    def unmount(self):
        run("umount", self.volume)
        self.mounted = False

    def limit(self, more):
        self.host("mx1", "rsyncd", self.number, "mx1", more=more)

    def as_unit(self, unit, *args, ok=(0,)):
        """Run the command with the rights of a unit."""
        env = {**os.environ, "STATE_DIRECTORY": f"{self.top}/state"}
        return run(*as_unit(unit), *self.argv(*args), ok=ok, env=env)[1]

    def night(self, host, ok=(0,)):
        """Back a host up as at night; what the run said."""
        self.as_unit("backup-prepare@.service", "prepare", host)
        return self.as_unit("backup@.service", "run", host, ok=ok)

    def used(self, host):
        """Bytes and inodes that a host takes, as quota-tools see it."""
        project = run("lsattr", "-dp", self.volume / host)[1].split()[0]
        line = next(line for line in run("repquota", "-P", "-v", self.volume)[1].splitlines()
                    if line.startswith(f"#{project} "))  # fmt: skip
        fields = line.split()
        return int(fields[2]) << 10, int(fields[5])


def scenario_endless_file(guest):
    """A file that never ends fills the share of its host; the other's night is good; without it all is well again."""
    guest.night("mx1")
    first = state(guest.good("mx1")[0])
    wrong = guest.clients["mx1"] / "wrong"
    wrong.write_bytes(os.urandom(64 << 20))
    for _ in range(2):
        output = guest.night("mx1", ok=(4,))
        assert "the quota of this host" in output and "Other hosts are not affected" in output, output
        # With no block left, the status still says so.
        assert guest.status("mx1")["state"] == "no-space" and "quota" in guest.status("mx1")["message"]
        used = guest.used("mx1")[0]
        assert LIMIT - (1 << 20) < used <= LIMIT, used
        (guest.clients["web"] / "more").write_bytes(os.urandom(40 << 20))
        guest.night("web")
        same(state(guest.clients["web"]), state(guest.good("web")[-1]))
    assert guest.partial("mx1") and len(guest.good("mx1")) == 1
    output = guest("status", ok=(1,))
    assert re.search(r"quota 2[34]\S* MiB of 24 MiB", output) and "are used ([quota])" in output, output
    wrong.unlink()
    guest.night("mx1")
    same(first, state(guest.good("mx1")[0]))
    same(state(guest.clients["mx1"]), state(guest.good("mx1")[-1]))
    assert not guest.partial("mx1") and guest.used("mx1")[0] < LIMIT // 10
    output = guest("status")
    assert re.search(r"quota \S+ KiB of 24 MiB", output) and "are used" not in output, output


def scenario_by_hand(guest):
    """Root, who may pass over limits, does not when it is a backup."""
    (guest.clients["mx1"] / "wrong").write_bytes(os.urandom(64 << 20))
    assert "the quota of this host" in guest("run", "mx1", ok=(4,))
    assert guest.used("mx1")[0] <= LIMIT + (1 << 20)


def scenario_sparse_file(guest):
    """A file of many times the limit in length costs its host what is in it."""
    sparse = guest.clients["mx1"] / "sparse"
    with open(sparse, "wb") as handle:
        handle.write(os.urandom(1 << 20))
        handle.truncate(SPARSE)
    guest.night("mx1")
    stored = guest.good("mx1")[0] / "sparse"
    assert stored.stat().st_size == SPARSE
    assert guest.used("mx1")[0] < 2 << 20


def scenario_inodes(guest):
    """The number of inodes is a limit, too."""
    guest.limit("[quota]\ninodes = 100\n")
    guest.night("mx1")
    for n in range(300):
        (guest.clients["mx1"] / str(n)).touch()
    assert "the quota of this host" in guest.night("mx1", ok=(4,))
    assert guest.used("mx1")[1] == 100 and guest.status("mx1")["state"] == "no-space"
    assert "100 of 100 inodes are used" in guest.night("mx1", ok=(4,))
    guest.night("web")
    guest.limit("[quota]\ninodes = 1000\n")
    guest.night("mx1")
    same(state(guest.clients["mx1"]), state(guest.good("mx1")[-1]))
    guest.limit("")
    guest.night("mx1")
    guest.night("web")
    output = guest("status")
    assert "  quota " not in output, output


def scenario_links(guest):
    """Snapshots of a host share files; hosts cannot. Each has a project of its own."""
    guest.host("web", "rsyncd", guest.number, "web", more=SIZE)
    (guest.clients["mx1"] / "large").write_bytes(os.urandom(10 << 20))
    for _ in range(3):
        guest.night("mx1")
    guest.night("web")
    newest = guest.good("mx1")[-1]
    links, used = (newest / "large").stat().st_nlink, guest.used("mx1")[0]
    assert links == 3 and used < 12 << 20, (links, used)
    try:
        os.link(newest / "large", guest.good("web")[0] / "large")
    except OSError as err:
        assert err.errno == errno.EXDEV, err
    else:
        raise AssertionError("a file of one host was linked into the tree of another")
    projects = {run("lsattr", "-dp", guest.volume / host)[1].split()[0] for host in ("mx1", "web")}
    assert len(projects) == 2 and "0" not in projects


def scenario_older_snapshots(guest):
    """A host that has snapshots gets a limit: they count, and are linked to."""
    guest.limit("")
    (guest.clients["mx1"] / "large").write_bytes(os.urandom(10 << 20))
    (guest.clients["mx1"] / "d").mkdir()
    os.mkfifo(guest.clients["mx1"] / "d" / "fifo")
    guest.night("mx1")
    before = state(guest.good("mx1")[0])
    guest.limit(SIZE)
    guest.night("mx1")
    assert 10 << 20 < guest.used("mx1")[0] < 12 << 20
    old, new = guest.good("mx1")
    assert (new / "large").samefile(old / "large")
    same(before, state(old))
    same(state(guest.clients["mx1"]), state(new))
    guest("verify", "mx1", "--all")


def scenario_locked_snapshots(guest):
    """They cannot join a project, and the error says what to do. The rights of the unit suffice to lock them."""
    lock = "[lock]\ndays = 7\n"
    guest.limit(lock)
    (guest.clients["mx1"] / "d").mkdir()
    os.chown(guest.clients["mx1"] / "d", 1234, 1234)
    (guest.clients["mx1"] / "d").chmod(0o700)
    guest.night("mx1")
    guest.as_unit("backup-lock@.service", "lock", "mx1")
    guest.limit(lock + SIZE)
    output = guest.as_unit("backup-prepare@.service", "prepare", "mx1", ok=(1,))
    assert "locked snapshots cannot be counted for a new [quota]" in output, output
    guest.limit("[lock]\ndays = 0\n" + SIZE)
    guest.as_unit("backup-lock@.service", "lock", "mx1")
    guest.night("mx1")
    guest.limit(lock + SIZE)
    guest.as_unit("backup-lock@.service", "lock", "mx1")
    guest.night("mx1")
    assert len(guest.good("mx1")) == 3
    guest.limit("[lock]\ndays = 0\n" + SIZE)
    guest.as_unit("backup-lock@.service", "lock", "mx1")


def scenario_no_quotas(guest):
    """A volume without project quotas: the error tells how it gets them, and that works."""
    guest.close()
    guest.__init__("second", features=())
    output = guest.as_unit("backup-prepare@.service", "prepare", "mx1", ok=(1,))
    assert "has no project quotas, which [quota] of mx1 needs" in output, output
    # The others are backed up.
    guest.night("web")
    assert "has no project quotas" in guest("run", "mx1", ok=(1,)) and guest.status("mx1")["state"] == "failed"
    commands = re.findall(r"'((?:e2fsck|tune2fs)[^']*)'", output)
    assert len(commands) == 2, output
    guest.unmount()
    for command in commands:
        run("sh", "-c", command.replace("DEVICE", DISK))
    assert run("e2fsck", "-fn", DISK)[0] == 0
    guest.mount()
    guest.night("mx1")
    assert "MiB" in guest("status")
    # The same if only the option is missing.
    guest.unmount()
    run("tune2fs", "-E", "mount_opts=", DISK)
    guest.mount()
    assert "does not enforce project quotas" in guest.as_unit("backup-prepare@.service", "prepare", "mx1", ok=(1,))
    assert "does not enforce project quotas" in guest("run", "mx1", ok=(1,))


def scenario_page_and_metrics(guest):
    """What is used of which limit, for people and for programs; free space is that of the volume."""
    (guest.clients["mx1"] / "large").write_bytes(os.urandom(10 << 20))
    guest.night("mx1")
    text = (guest.top / "metrics" / "itree_backup_mx1.prom").read_text()
    assert f'itree_backup_quota_bytes{{host="mx1"}} {LIMIT}' in text, text
    used = int(re.search(r'quota_used_bytes{host="mx1"} (\d+)', text)[1])
    assert used == guest.used("mx1")[0]
    assert int(re.search(r'volume_free_bytes{host="mx1"} (\d+)', text)[1]) > 10 * LIMIT
    guest.night("web")
    found = json.loads(guest("status", "--json"))["hosts"]
    assert found["mx1"]["quota"] == {"limit": LIMIT, "used": used, "inode_limit": 0, "inodes": 0}
    assert found["mx1"]["well"] and found["web"]["quota"] is None
    script = f"""
import sys
sys.path.insert(0, {str(APPLIANCE / 'usr/lib/itree-backup')!r})
from itree_backup import page
page.set_password(__import__("pathlib").Path({str(guest.conf)!r}), "correct horse")
print(page.create_app({str(guest.conf)!r}).test_client().get("/host/mx1", auth=("admin", "correct horse")).text)
"""
    page = subprocess.run(["/usr/bin/python3", "-B", "-c", script], capture_output=True, text=True, check=False)
    assert re.search(r"Quota: 1\d\S* MiB of 24 MiB\.", page.stdout), page.stdout + page.stderr


SCENARIOS = {name.removeprefix("scenario_"): each for name, each in list(globals().items()) if "scenario_" in name[:9]}


def main(share, *names):
    results = {}
    for name in names or SCENARIOS:
        guest = Guest.__new__(Guest)
        guest.servers, guest.mounted = None, False
        try:
            guest.__init__(name)
            SCENARIOS[name](guest)
            results[name] = ""
        # A failure belongs to its scenario.
        except BaseException:  # noqa: BLE001
            results[name] = traceback.format_exc()
        finally:
            if guest.servers:
                guest.close()
    (share / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
