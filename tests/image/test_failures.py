# SPDX-License-Identifier: GPL-2.0-only
"""What goes wrong in the night: each time the state is clear, and what was good before is good after."""

import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest
from conftest import farm, maildir, run, same, state


@pytest.fixture
def backed(appliance, tmp_path):
    """An appliance with one good snapshot of the host mx1, and what it must be for ever; (appliance, mail, state)."""
    mail = maildir(tmp_path / "mail", 300)
    appliance.number = appliance.servers.rsync(mail=mail)
    appliance.host("mx1", "rsyncd", appliance.number, "mail")
    appliance("run", "mx1")
    return appliance, mail, state(appliance.good("mx1")[0])


def night(mail, number, seed):
    """Enough new mail for a run that can be cut off, and old mail whose mode and time change."""
    chance = random.Random(seed)
    for n in range(number):
        (mail / "new" / f"{seed}{n:06}.mx1").write_bytes(chance.randbytes(4000))
    for path in sorted((mail / "cur").iterdir())[:20]:
        path.chmod(chance.choice((0o600, 0o640, 0o644)))
        os.utime(path, ns=(chance.randrange(10**18),) * 2)


def slow(appliance, name="mx1", more="bandwidth = 2000\n"):
    """The host again, with a network that leaves time to break things."""
    appliance.host(name, "rsyncd", appliance.number, "mail", more=more)


def begin(appliance, *args):
    return subprocess.Popen([str(a) for a in appliance.argv(*args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)  # fmt: skip


def fetched(appliance, number, host="mx1"):
    """Wait until a run has that many files of new mail."""
    for _ in range(2400):
        for partial in appliance.partial(host):
            if len(list(partial.rglob("*.mx1"))) >= number:
                return
        time.sleep(0.05)
    pytest.fail("the run fetches nothing")


def test_killed(backed):
    """kill -9 at random moments; the run after that completes, and all snapshots are what they were."""
    appliance, mail, first = backed
    chance, goods = random.Random(0), {appliance.good("mx1")[0]: first}
    cut = 0
    for turn in range(4):
        night(mail, 250, turn)
        slow(appliance)
        for _ in range(2):
            proc = begin(appliance, "run", "mx1")
            time.sleep(chance.uniform(0.2, 1.2))
            proc.kill()
            proc.communicate()
            cut += proc.returncode == -signal.SIGKILL
        slow(appliance, more="")
        # Metadata changes while what was fetched waits: links of it must not be touched in place.
        night(mail, 5, 100 + turn)
        appliance("run", "mx1")
        assert not appliance.partial("mx1")
        for path, was in goods.items():
            if path.exists():
                same(was, state(path))
        newest = appliance.good("mx1")[-1]
        goods[newest] = state(newest)
        same(state(mail), goods[newest])
    assert cut >= 4
    assert " 0 damaged, 0 of which nothing is known" in appliance("verify", "mx1")


def test_client_gone(backed):
    """The client falls over in mid-run: the state says so; what came is checked, used, and not fetched again."""
    appliance, mail, first = backed
    night(mail, 600, 7)
    slow(appliance)
    proc = begin(appliance, "run", "mx1")
    fetched(appliance, 150)
    appliance.servers.kill("rsync")
    said = proc.communicate(timeout=60)[0]
    assert proc.returncode == 5 and "the next run goes on from there" in said
    assert appliance.status("mx1")["state"] == "client-gone"
    assert "client-gone" in appliance("status", ok=(1,))
    assert 'last_run_success{host="mx1"} 0' in (appliance.top / "metrics" / "itree_backup_mx1.prom").read_text()
    partial = appliance.partial("mx1")
    assert len(partial) == 1 and len(appliance.good("mx1")) == 1
    # As long as the client is away no further leftovers come up.
    assert "no connection" in appliance("run", "mx1", ok=(5,))
    assert appliance.partial("mx1") == partial
    # A power cut may leave a file of the right size and time with other data.
    victim = sorted(partial[0].rglob("*.mx1"))[10]
    was = victim.stat()
    victim.write_bytes(b"\0" * was.st_size)
    os.utime(victim, ns=(was.st_atime_ns, was.st_mtime_ns))
    appliance.number = appliance.servers.rsync(mail=mail)
    slow(appliance, more="")
    said = appliance("run", "mx1")
    assert "need not be fetched again; " in said
    kept, removed = (int(w) for w in said.split("files of it")[0].split()[-1:] + said.split("again; ")[1].split()[:1])
    assert kept >= 100 and removed >= 1
    assert appliance.status("mx1")["files"] <= 600 + 20 - kept
    same(first, state(appliance.good("mx1")[0]))
    same(state(mail), state(appliance.good("mx1")[1]))


def test_stopped(backed):
    """systemctl stop, or Control-C: rsync ends too, the lock is free, the next run goes on."""
    appliance, mail, first = backed
    night(mail, 400, 7)
    slow(appliance, more="bandwidth = 60\n")
    proc = begin(appliance, "run", "mx1")
    fetched(appliance, 10)
    assert "is at work" in appliance("prune", "mx1", ok=(3,))
    proc.terminate()
    said = proc.communicate(timeout=30)[0]
    assert proc.returncode == 8 and "stopped by signal 15" in said
    assert appliance.status("mx1")["state"] == "interrupted"
    appliance("discard", "mx1")
    assert not appliance.partial("mx1")
    same(first, state(appliance.good("mx1")[0]))


def test_host_key(appliance, tmp_path):
    """Another machine at the client's address: nothing is asked, nothing fetched."""
    number = appliance.servers.ssh(appliance.conf)
    appliance.host("web", "ssh", number, maildir(tmp_path / "mail", 10))
    known = appliance.conf / "ssh" / "known_hosts"
    right = known.read_text()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other")
    for text in (f"[127.0.0.1]:{number} {(tmp_path / 'other.pub').read_text()}", ""):
        known.write_text(text)
        assert "the host's key is not the one in ssh/known_hosts" in appliance("run", "web", ok=(6,))
        assert appliance.status("web")["state"] == "refused"
        assert known.read_text() == text and not appliance.partial("web") and not appliance.good("web")
    known.write_text(right)
    # Nor does a host that does not know our key leave anything.
    (appliance.conf / "ssh" / "id.pub").write_text((tmp_path / "other.pub").read_text())
    assert "does not let us in" in appliance("run", "web", ok=(6,))
    assert not appliance.partial("web")


def test_disk_full(make_appliance, tmp_path):
    appliance = make_appliance(size=24)
    top = tmp_path / "client"
    top.mkdir()
    (top / "small").write_bytes(os.urandom(100_000))
    appliance.number = appliance.servers.rsync(mail=top)
    appliance.host("mx1", "rsyncd", appliance.number, "mail")
    appliance("run", "mx1")
    first = state(appliance.good("mx1")[0])
    for n in range(40):
        (top / f"large{n:02}").write_bytes(os.urandom(1 << 20))
    assert "filled up in mid-run" in appliance("run", "mx1", ok=(4,))
    same(first, state(appliance.good("mx1")[0]))
    assert appliance.status("mx1")["state"] == "no-space" and len(appliance.partial("mx1")) == 1
    # The next does not even begin.
    assert "Nothing was started" in appliance("run", "mx1", ok=(4,))
    assert "no-space" in appliance("status", ok=(1,))
    appliance("discard", "mx1")
    for n in range(10, 40):
        (top / f"large{n:02}").unlink()
    appliance("run", "mx1")
    same(state(top), state(appliance.good("mx1")[-1]))
    appliance("verify", "mx1", "--all")


def test_clock(backed):
    """A snapshot of the future: backups go on, nothing is pruned, and that is said."""
    appliance, mail, first = backed
    good = appliance.good("mx1")[0]
    future = good.with_name("2037" + good.name[4:])
    good.rename(future)
    appliance.settings("[keep]\nlast = 1\ndaily = 1\nweekly = 0\nmonthly = 0\n")
    for _ in range(2):
        said = appliance("run", "mx1", ok=(1,))
        assert "is good" in said and "one of them is wrong" in said
    assert len(appliance.good("mx1")) == 3
    assert "Nothing is pruned" in appliance("prune", "mx1", ok=(1,))
    assert "one of them is wrong" in appliance("status", ok=(1,))
    same(first, state(future))
    # Mail that did not change is still shared, with whichever snapshot.
    inodes = [{p.stat().st_ino for p in s.rglob("*mx1*")} for s in appliance.good("mx1")]
    assert inodes[0] == inodes[1] == inodes[2]
    appliance("prune", "--remove", future.name, "mx1")
    appliance("prune", "mx1")
    assert len(appliance.good("mx1")) == 1
    assert "is the only good snapshot" in appliance("prune", "--remove", appliance.good("mx1")[0].name, "mx1", ok=(2,))


def test_removal_cut_short(backed):
    """What is half removed has no good name, and goes on being removed."""
    appliance, mail, _ = backed
    appliance("run", "mx1")
    old, new = appliance.good("mx1")
    was = state(new)
    gone = old.rename(old.with_name(old.name + ".deleting"))
    next((gone / "cur").iterdir()).unlink()
    stale = appliance.volume / "mx1" / ".itree-backup" / "2020-01-01T00-00-00Z.sums"
    stale.touch()
    assert appliance("list", "mx1").count("\n") == 1
    appliance("run", "mx1")
    assert not gone.exists() and not stale.exists()
    same(was, state(new))


def test_damage(backed):
    """A bad sector, a flipped bit: found, named, never restored in silence; older snapshots are not pruned then."""
    appliance, mail, _ = backed
    appliance("run", "mx1")
    victim = sorted((appliance.good("mx1")[1] / "cur").iterdir())[3]
    was = victim.stat()
    with open(victim, "r+b") as handle:
        byte = handle.read(1)
        handle.seek(0)
        handle.write(bytes([byte[0] ^ 1]))
    os.utime(victim, ns=(was.st_atime_ns, was.st_mtime_ns))
    said = appliance("verify", "--all", ok=(7,))
    assert said.count(victim.name) == 2 and "2 files are not what the client sent" in said
    assert "2 damaged files" in appliance("status", ok=(1,)) and "damaged" in appliance("list")
    out = appliance.top / "out"
    out.mkdir()
    assert victim.name in appliance("restore", "mx1", "latest", "--to", out, ok=(7,))
    assert "nothing is pruned" in appliance("prune", "mx1", ok=(7,))


WRAPPER = """#!/bin/sh
# An rsync on a bad disk: what it wrote is not what is there afterwards.
rsync=$(PATH=$REAL_PATH command -v rsync)
"$rsync" "$@"; rc=$?
for dest; do :; done
{damage}
exit $rc
"""


@pytest.mark.parametrize(
    "damage, said",
    [
        ('f=$(find "$dest" -name "7*.mx1" | head -1); printf X | dd of="$f" conv=notrunc', "does not give back"),
        ('f=$(find "$dest" -name "7*.mx1" | head -1); rm "$f"', "No such file"),
        ('find "$dest/cur" -type f -links +1 -delete', "are here"),
    ],
)  # fmt: skip
def test_bad_disk(backed, tmp_path, damage, said):
    """What the disk does not give back as it came is no good snapshot."""
    appliance, mail, first = backed
    night(mail, 20, 7)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rsync").write_text(WRAPPER.format(damage=damage))
    (tmp_path / "bin" / "rsync").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "REAL_PATH": os.environ["PATH"]}
    assert said in appliance("run", "mx1", ok=(7,), env=env)
    assert len(appliance.good("mx1")) == 1 and appliance.status("mx1")["state"] == "damaged"
    same(first, state(appliance.good("mx1")[0]))
    appliance("run", "mx1")
    same(state(mail), state(appliance.good("mx1")[1]))


def test_unreadable_on_the_client(backed, tmp_path):
    """A file that the client cannot read: no good snapshot without it."""
    appliance, mail, _ = backed
    conf = appliance.servers.top / "rsyncd.conf"
    conf.write_text(conf.read_text().replace("uid = 0", "uid = 65534"))
    (mail / "cur" / "secret").write_text("secret")
    (mail / "cur" / "secret").chmod(0)
    assert "could not be read" in appliance("run", "mx1", ok=(1,))
    assert len(appliance.good("mx1")) == 1
    appliance.host("mx1", "rsyncd", appliance.number, "mail", more="exclude = /cur/secret\n")
    appliance("run", "mx1")


def test_not_the_volume(backed):
    """The volume is not mounted: the disk below is not filled."""
    appliance, *_ = backed
    run("umount", appliance.volume)
    try:
        assert "is not a backup volume" in appliance("run", "mx1", ok=(1,))
        assert os.listdir(appliance.volume) == []
        assert "is not a mount point" in appliance("init", ok=(1,))
        (appliance.volume / "something").touch()
        assert "is not empty" in appliance("init", "--no-mount", ok=(1,))
        (appliance.volume / "something").unlink()
    finally:
        run("mount", "-o", "loop,noatime", appliance.top / "volume.img", appliance.volume)
    appliance("run", "mx1")


def test_told(backed):
    """The hook after a failure reaches a webhook with all that is needed to act."""
    appliance, *_ = backed
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    appliance.settings(f"[notify]\nwebhook = http://127.0.0.1:{server.server_address[1]}/\n")
    assert "told by webhook (204)" in appliance("notify", "mx1")
    assert got[0]["state"] == "client-gone" and got[0]["host"] == "mx1" and "no connection" in got[0]["message"]
    server.shutdown()
    server.server_close()
    assert "nobody could be told by webhook" in appliance("notify", "mx1", ok=(1,))
    appliance.settings()
    assert "neither [notify]" in appliance("notify", "mx1")


def test_hard_links_and_interruption(appliance, tmp_path):
    """Hard links across an interrupted run are still hard links."""
    links = farm(tmp_path / "farm")
    with open(links / "z-large", "wb") as handle:
        handle.write(os.urandom(3 << 20))
    appliance.number = appliance.servers.rsync(mail=links)
    slow(appliance, "nfs", "bandwidth = 1000\n")
    proc = begin(appliance, "run", "nfs")
    for _ in range(2400):
        if any((p / "odd" / "setuid").exists() for p in appliance.partial("nfs")):
            break
        time.sleep(0.05)
    proc.kill()
    proc.communicate()
    assert proc.returncode == -signal.SIGKILL and appliance.partial("nfs")
    shutil.rmtree(links / "d5")
    slow(appliance, "nfs", "")
    appliance("run", "nfs")
    same(state(links), state(appliance.good("nfs")[0]))


def test_directory_elsewhere(appliance, tmp_path):
    """Something is mounted over the host's directory: a run says so, and nothing is written that would be lost."""
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=maildir(tmp_path / "mail", 20)), "mail")
    appliance("run", "mx1")
    where = appliance.volume / "mx1"
    run("mount", "-t", "tmpfs", "itree-test", where)
    try:
        said = appliance("run", "mx1", ok=(1,))
        assert "is not on the file system of" in said
        assert not list(where.glob("2*"))
    finally:
        run("umount", where)
    appliance("run", "mx1")
    assert len(appliance.good("mx1")) == 2
