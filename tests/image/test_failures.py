# SPDX-License-Identifier: GPL-2.0-only
"""What goes wrong in the night: each time the state is clear, and what was good before is good after."""

import fcntl
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
from itree_backup import config, report
from itree_backup.store import Store


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


def half_run(appliance, mail):
    """A run of the host that has something, and will be at work for a while."""
    night(mail, 400, 7)
    slow(appliance, more="bandwidth = 60\n")
    proc = begin(appliance, "run", "mx1")
    fetched(appliance, 10)
    return proc


def fake_rsync(tmp_path, script):
    """The environment in which the appliance finds a script in place of rsync, whose PATH is REAL_PATH then."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rsync").write_text(script)
    (tmp_path / "bin" / "rsync").chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "REAL_PATH": os.environ["PATH"]}


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
    assert " 0 damaged, 0 without a recorded checksum" in appliance("verify", "mx1")


def test_client_gone(backed):
    """The client falls over in mid-run: the state says so; what came is checked, used, and not fetched again."""
    appliance, mail, first = backed
    night(mail, 600, 7)
    slow(appliance)
    proc = begin(appliance, "run", "mx1")
    fetched(appliance, 150)
    appliance.servers.kill("rsync")
    output = proc.communicate(timeout=60)[0]
    assert proc.returncode == 5 and "the next run goes on from there" in output
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
    output = appliance("run", "mx1")
    assert "need not be fetched again; " in output
    kept = int(output.split("of its files")[0].split()[-1])
    removed = int(output.split("again; ")[1].split()[0])
    assert kept >= 100 and removed >= 1
    assert appliance.status("mx1")["files"] <= 600 + 20 - kept
    same(first, state(appliance.good("mx1")[0]))
    same(state(mail), state(appliance.good("mx1")[1]))


def test_stopped(backed):
    """systemctl stop, or Control-C: rsync ends too, the lock is free, the next run goes on."""
    appliance, mail, first = backed
    proc = half_run(appliance, mail)
    assert "is at work" in appliance("prune", "mx1", ok=(3,))
    proc.terminate()
    output = proc.communicate(timeout=30)[0]
    assert proc.returncode == 8 and "stopped by signal 15" in output
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
        output = appliance("run", "mx1", ok=(1,))
        assert "is good" in output and "one of them is wrong" in output
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
    flip(victim)
    output = appliance("verify", "--all", ok=(7,))
    assert output.count(victim.name) == 2 and "2 files are not what the client sent" in output
    assert "2 damaged files" in appliance("status", ok=(1,)) and "damaged" in appliance("list")
    out = appliance.top / "out"
    out.mkdir()
    assert victim.name in appliance("restore", "mx1", "latest", "--to", out, ok=(7,))
    assert "nothing is pruned" in appliance("prune", "mx1", ok=(7,))
    # It has not changed on the client: linked as ever, the new snapshot would be as wrong.
    assert "1 files were found damaged in older snapshots" in appliance("run", "mx1")
    new = appliance.good("mx1")[-1]
    same(state(mail), state(new))
    assert " 0 damaged" in appliance("verify", "mx1")
    # What is right again is linked to again.
    assert "found damaged" not in appliance("run", "mx1")
    assert (appliance.good("mx1")[-1] / "cur" / victim.name).stat().st_ino == (new / "cur" / victim.name).stat().st_ino


def flip(path):
    """A bit goes wrong on the disk: size and time stay."""
    was = path.stat()
    with open(path, "r+b") as handle:
        byte = handle.read(1)
        handle.seek(0)
        handle.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("method", ["rsyncd", "ssh", "rrsync"])
def test_damaged_files_are_fetched_again(appliance, tmp_path, method):
    """Whatever is linked, or copied because its mode has changed; names nobody wants; older snapshots as they were."""
    links = farm(tmp_path / "farm")
    if method == "rsyncd":
        appliance.host("mx1", method, appliance.servers.rsync(mail=tmp_path), "mail/farm")
        below = "farm"
    else:
        number = appliance.servers.ssh(appliance.conf)
        if method == "rrsync":
            key = appliance.conf / "ssh" / "id.pub"
            key.write_text(f'restrict,command="rrsync -ro /" {key.read_text()}')
        appliance.host("mx1", "ssh", number, links)
        below = str(links).lstrip("/")
    appliance("run", "mx1")
    first = appliance.good("mx1")[0]
    shared, copied, odd = (first / below / n for n in ("d3/name2", "odd/\\#012", "odd/new\nline"))
    for path in (shared, copied, odd):
        flip(path)
    appliance("verify", "mx1", ok=(7,))
    was = state(first)
    (links / "odd" / "\\#012").chmod(0o606)
    # rsync has copied it from the damaged one by the time it is known.
    assert "22 files were found damaged" in appliance("run", "mx1")
    new = appliance.good("mx1")[1]
    same(state(links), state(new / below))
    same(was, state(first))
    assert new.stat().st_mode == first.stat().st_mode
    assert not list((appliance.volume / "mx1" / ".itree-backup").glob("*.again"))
    assert " 0 damaged, 0 without a recorded checksum" in appliance("verify", "mx1")


def test_damaged_file_that_has_gone(backed, tmp_path):
    """Between being listed and being fetched again it goes on the client: no snapshot has it damaged."""
    appliance, mail, _ = backed
    victim = sorted((appliance.good("mx1")[0] / "cur").iterdir())[3]
    flip(victim)
    appliance("verify", "mx1", ok=(7,))
    gone = f"case \"$*\" in *--files-from=*) rm -f '{mail}/cur/{victim.name}' ;; esac"
    env = fake_rsync(tmp_path, f'#!/bin/sh\n{gone}\nPATH=$REAL_PATH exec rsync "$@"\n')
    assert "is no longer on the client" in appliance("run", "mx1", env=env)
    new = state(appliance.good("mx1")[1])
    assert os.fsencode(f"cur/{victim.name}") not in new
    appliance("run", "mx1")
    same(state(mail), state(appliance.good("mx1")[2]))


def test_interrupted_run_with_damaged_files(backed):
    """An interrupted run that had linked to them is not linked to."""
    appliance, mail, _ = backed
    proc = half_run(appliance, mail)
    proc.terminate()
    proc.communicate(timeout=30)
    (partial,) = appliance.partial("mx1")
    linked = [p for p in sorted((partial / "cur").iterdir()) if p.stat().st_nlink > 1]
    flip(linked[0])
    appliance("verify", "mx1", ok=(7,))
    slow(appliance, more="")
    assert "1 files were found damaged" in appliance("run", "mx1")
    same(state(mail), state(appliance.good("mx1")[1]))


def test_unreadable_block_is_damage(backed, monkeypatch):
    """A file that the disk does not give at all is marked like one that is wrong."""
    from itree_backup import sums as sums_
    from itree_backup import verify

    appliance, *_ = backed
    snapshot = appliance.good("mx1")[0]
    victim = sorted((snapshot / "cur").iterdir())[3]
    real = verify.read_one

    def read_one(tree, path):
        if path.endswith(os.fsencode(victim.name)):
            raise OSError(5, "Input/output error")
        return real(tree, path)

    monkeypatch.setattr(verify, "read_one", read_one)
    sums = sums_.Sums(appliance.volume / "mx1" / ".itree-backup" / "sums.sqlite")
    try:
        found = verify.snapshot(snapshot, sums, time.time(), False, "test")
    finally:
        sums.close()
    assert found.wrong == 1 and "Input/output error" in found.bad[0]
    assert "1 files were found damaged" in appliance("run", "mx1")


def test_readers_do_not_stop_a_backup(backed):
    """A list of sums that somebody reads slowly: the run commits meanwhile, and that snapshot is not removed."""
    appliance, mail, _ = backed
    # More than a pipe holds.
    for n in range(2000):
        (mail / "new" / f"{'n' * 100}{n}").write_text(f"{n}")
    appliance("run", "mx1")
    reader = begin(appliance, "sums", "mx1", "latest")
    assert reader.stdout.readline()
    oldest, newest = (p.name for p in appliance.good("mx1"))
    try:
        night(mail, 50, 7)
        appliance("run", "mx1")
        assert "reads this snapshot" in appliance("prune", "--remove", newest, "mx1", ok=(3,))
        appliance("prune", "--remove", oldest, "mx1")
        # Retention would let it go now, and leaves it as well.
        slow(appliance, more="[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n")
        assert "reads this snapshot" in appliance("prune", "mx1")
        assert newest in [p.name for p in appliance.good("mx1")]
    finally:
        reader.communicate(timeout=60)
    assert reader.returncode == 0
    appliance("prune", "mx1")
    assert [p.name for p in appliance.good("mx1")] == [p.name for p in appliance.good("mx1")[-1:]]
    assert newest not in [p.name for p in appliance.good("mx1")]


def test_other_work_is_waited_for(backed):
    """A verification that takes hours: the run of the night waits; a verification leaves that host out."""
    appliance, *_ = backed
    appliance.host("mx2", "rsyncd", appliance.number, "mail/cur")
    appliance("run", "mx2")
    with open(appliance.volume / "mx1" / ".itree-backup" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        appliance("verify", "mx1", ok=(3,))
        output = appliance("verify", ok=(3,))
        assert "mx2 20" in output and " 300 files right" in output and "not verified" in output
        appliance("run", "--wait", "0", "mx1", ok=(3,))
        proc = begin(appliance, "run", "--wait", "60", "mx1")
        time.sleep(2)
        assert proc.poll() is None
    proc.communicate(timeout=60)
    assert proc.returncode == 0 and len(appliance.good("mx1")) == 2


WRAPPER = """#!/bin/sh
# An rsync on a bad disk: what it wrote is not what is there afterwards.
rsync=$(PATH=$REAL_PATH command -v rsync)
"$rsync" "$@"; rc=$?
for dest; do :; done
{damage}
exit $rc
"""


@pytest.mark.parametrize(
    "damage, output",
    [
        ('f=$(find "$dest" -name "7*.mx1" | head -1); printf X | dd of="$f" conv=notrunc', "does not give back"),
        ('f=$(find "$dest" -name "7*.mx1" | head -1); rm "$f"', "No such file"),
        ('find "$dest/cur" -type f -links +1 -delete', "are here"),
    ],
)  # fmt: skip
def test_bad_disk(backed, tmp_path, damage, output):
    """What the disk does not give back as it came is no good snapshot."""
    appliance, mail, first = backed
    night(mail, 20, 7)
    env = fake_rsync(tmp_path, WRAPPER.format(damage=damage))
    assert output in appliance("run", "mx1", ok=(7,), env=env)
    assert len(appliance.good("mx1")) == 1 and appliance.status("mx1")["state"] == "damaged"
    same(first, state(appliance.good("mx1")[0]))
    appliance("run", "mx1")
    same(state(mail), state(appliance.good("mx1")[1]))


def test_unreadable_on_the_client(backed, tmp_path):
    """A file that the client cannot read: a snapshot without it does not count as good."""
    appliance, mail, _ = backed
    conf = appliance.servers.top / "rsyncd.conf"
    conf.write_text(conf.read_text().replace("uid = 0", "uid = 65534"))
    (mail / "cur" / "secret").write_text("secret")
    (mail / "cur" / "secret").chmod(0)
    assert "could not give 1 of its files" in appliance("run", "mx1", ok=(9,))
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
    hook = Hook()
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    appliance.settings(hook.settings)
    assert "sent by webhook (204)" in appliance("notify", "mx1")
    message = hook.got[0]
    assert message["state"] == "client-gone" and message["host"] == "mx1" and "no connection" in message["message"]
    hook.close()
    output = appliance("notify", "mx1", ok=(1,))
    assert "could not be delivered by webhook" in output and "it is kept" in output
    appliance.settings()
    assert "[notify] has neither" in appliance("notify", "mx1")


def test_alarm_about_a_host_that_never_ran(appliance, monkeypatch):
    sent = []
    monkeypatch.setattr(report, "tell", lambda _base, _subject, text, _facts: sent.append(text))
    report.notify(Store(config.settings(appliance.conf), "mx1"))
    assert "last run ended: never\n" in sent[0]


class Hook:
    """A webhook that keeps what it is told."""

    def __init__(self):
        self.got = got = []

        self.answers = answers = []  # codes of the next answers; then 204
        self.beats = beats = []  # addresses that were fetched

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = answers.pop(0) if answers else 204
                if code == 204:
                    got.append(message)
                self.send_response(code)
                self.end_headers()

            def do_GET(self):
                beats.append(self.path)
                self.send_response(answers.pop(0) if answers else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.settings = f"[notify]\nwebhook = http://127.0.0.1:{self.server.server_address[1]}/\n"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hook():
    made = Hook()
    yield made
    made.close()


def test_message_that_is_refused_once_is_sent_again(backed, hook):
    """A webhook is out of order for a while; what is told meanwhile, and in which order, is not lost."""
    appliance, *_ = backed
    appliance.settings(hook.settings)
    hook.answers[:] = [503, 503, 503]
    appliance("notify", "--message", "the first", ok=(1,))
    appliance("notify", "--message", "the second", ok=(1,))
    assert "not delivered" in appliance("notify", "--pending", ok=(1,))  # the first once more, and the second
    assert [t["message"] for t in hook.got] == ["the second"]
    assert "delivered: " in appliance("notify", "--pending")
    assert [t["message"] for t in hook.got] == ["the second", "the first"]
    assert appliance("notify", "--pending") == "" and len(hook.got) == 2


def test_hosts_take_turns(backed):
    """One at a time: the second begins when the first has ended, however that ends."""
    appliance, mail, _ = backed
    (appliance.conf / "itree-backup.conf").write_text(
        (appliance.conf / "itree-backup.conf").read_text().replace("[volume]\n", "[volume]\nat_once = 1\n")
    )
    night(mail, 300, 5)
    slow(appliance, more="bandwidth = 500\n")
    appliance.host("mx2", "rsyncd", appliance.number, "mail")
    env = {**os.environ, "STATE_DIRECTORY": f"{appliance.top}/state"}
    first = subprocess.Popen([str(a) for a in appliance.argv("run", "mx1")], stdout=subprocess.PIPE, text=True, env=env)
    turns = appliance.top / "state" / "turns" / "0"
    while run("flock", "-n", turns, "true", ok=None)[0] == 0:
        assert first.poll() is None, first.stdout.read()
    second = subprocess.Popen(
        [str(a) for a in appliance.argv("run", "mx2")], stdout=subprocess.PIPE, text=True, env=env
    )
    assert "waiting for one of 1 other backups" in second.stdout.readline()
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert " is good: " in second.communicate(timeout=120)[0]


def test_a_host_that_is_verified_takes_no_turn(backed):
    """Its backup waits, with the lock of its host; the others' go on."""
    appliance, _, _ = backed
    config = appliance.conf / "itree-backup.conf"
    config.write_text(config.read_text().replace("[volume]\n", "[volume]\nat_once = 1\n"))
    appliance.host("mx2", "rsyncd", appliance.number, "mail")
    env = {**os.environ, "STATE_DIRECTORY": f"{appliance.top}/state"}
    with open(appliance.volume / "mx1" / ".itree-backup" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [str(a) for a in appliance.argv("run", "mx1", "--wait", "100")]
        first = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
        time.sleep(2)
        assert " is good: " in appliance("run", "mx2", timeout=60)
        assert first.poll() is None
    assert " is good: " in first.communicate(timeout=120)[0]


def test_apprise_reaches_the_rest_of_the_world(backed, hook):
    """Its addresses have passwords in them: they are on no command line. What fails is kept, as for the other ways."""
    appliance, *_ = backed
    address = f"json://127.0.0.1:{hook.server.server_address[1]}/"
    appliance.settings(f"[notify]\napprise =\n    {address}?method=POST\n")
    log = appliance.top / "exec"
    run("strace", "-f", "-s", "1000", "-e", "trace=execve", "-o", log, *appliance.argv("notify", "mx1"),
        env={**os.environ, "STATE_DIRECTORY": f"{appliance.top}/state"})  # fmt: skip
    assert hook.got[0]["title"] == "backup of mx1: ok" and "newest good snapshot" in hook.got[0]["message"]
    assert "apprise" in log.read_text() and "json://" not in log.read_text()
    hook.answers[:] = [503]
    assert "it is kept" in appliance("notify", "mx1", ok=(1,))
    assert "delivered: backup of mx1: ok: apprise (1 services)" in appliance("notify", "--pending")
    assert len(hook.got) == 2


def test_heartbeat_stops_when_something_is_wrong(backed, hook):
    appliance, *_ = backed
    address = f"http://127.0.0.1:{hook.server.server_address[1]}"
    appliance.settings(f"[notify]\nheartbeat = {address}/all\n")
    config = appliance.conf / "hosts.d" / "mx1.conf"
    config.write_text(config.read_text() + f"heartbeat = {address}/mx1\n")
    appliance("run", "mx1")
    appliance("status")
    appliance("status", "--beat")
    assert hook.beats == ["/mx1", "/all"]
    # A monitor that is down costs no backup.
    hook.answers[:] = [503]
    assert "heartbeat: HTTP Error 503" in appliance("run", "mx1")
    del hook.beats[:]
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    appliance("status", "--beat", ok=(1,))
    assert hook.beats == []


def test_two_alarms_of_one_night_are_both_told(backed, hook):
    """The same alarm again within twelve hours is not, though its ages and sizes have changed."""
    appliance, *_ = backed
    appliance.settings(hook.settings)
    env = {**os.environ, "MONITOR_UNIT": "backup-watch.service"}
    flip(sorted((appliance.good("mx1")[0] / "cur").iterdir())[0])
    appliance("verify", ok=(7,))
    appliance("notify", "--failed", env=env)
    (appliance.volume / "mx1" / "ballast").write_bytes(b"x" * (3 << 20))
    assert "nothing is worse than in the alarms of the last 12 hours" in appliance("notify", "--failed", env=env)
    appliance.servers.kill("rsync")
    appliance("run", "mx1", ok=(5,))
    appliance("notify", "--failed", env=env)
    assert ["damaged files" in t["message"] for t in hook.got] == [True, True]
    assert "no connection" in hook.got[1]["message"]


def test_alarm_is_repeated_when_the_damage_grows(backed, hook):
    """One damaged file more is news, and so is a second host; the same state again is not."""
    appliance, *_ = backed
    appliance.settings(hook.settings)
    env = {**os.environ, "MONITOR_UNIT": "backup-watch.service", "MONITOR_EXIT_STATUS": "1"}
    appliance.host("mx2", "rsyncd", appliance.number, "mail")
    appliance("run", "mx2")
    files = sorted((appliance.good("mx1")[0] / "cur").iterdir())

    def alarm():
        appliance("verify", ok=(7,))
        appliance("notify", "--failed", env=env)
        return len(hook.got)

    flip(files[0])
    assert alarm() == 1 and alarm() == 1
    flip(files[1])
    assert alarm() == 2 and "2 damaged files" in hook.got[1]["message"]
    assert alarm() == 2
    flip(sorted((appliance.good("mx2")[0] / "cur").iterdir())[0])
    assert alarm() == 3 and hook.got[2]["message"].count(" damaged files") == 2
    assert alarm() == 3


def test_alarm_counts_as_sent_only_when_it_is_delivered(backed, hook):
    """An alarm that waits for delivery is not doubled; one that is lost before its delivery is made again."""
    appliance, *_ = backed
    appliance.settings(hook.settings)
    env = {**os.environ, "MONITOR_UNIT": "backup-watch.service"}
    flip(sorted((appliance.good("mx1")[0] / "cur").iterdir())[0])
    appliance("verify", ok=(7,))
    hook.answers[:] = [503, 503]
    assert "it is kept" in appliance("notify", "--failed", env=env, ok=(1,))
    assert "nothing is worse" in appliance("notify", "--failed", env=env)
    outbox = appliance.top / "state" / "outbox"
    (waiting,) = outbox.iterdir()
    waiting.unlink()
    assert "it is kept" in appliance("notify", "--failed", env=env, ok=(1,))
    assert not hook.got
    assert "delivered: " in appliance("notify", "--pending")
    assert "1 damaged files" in hook.got[0]["message"]
    assert "nothing is worse" in appliance("notify", "--failed", env=env)
    # What was sent cannot be noted: the alarm goes out all the same, and again.
    (outbox / "sent.json").unlink()
    (outbox / "sent.json").mkdir()
    assert "cannot note what was reported" in appliance("notify", "--failed", env=env)
    assert len(hook.got) == 2


def test_alarm_never_says_all_is_well(backed, hook):
    """A unit failed before a run could note anything, or has nothing to do with a run; the volume is gone."""
    appliance, *_ = backed
    appliance.settings(hook.settings)
    appliance("notify", "mx1")
    assert hook.got[-1]["state"] == "ok"
    env = {**os.environ, "MONITOR_UNIT": "backup@mx1.service", "MONITOR_EXIT_STATUS": "2"}
    appliance("notify", "--failed", "mx1", env=env)
    assert hook.got[-1]["state"] == "configuration" and "backup@mx1.service" in hook.got[-1]["message"]
    appliance("notify", "--failed", "mx1")  # systemd before 251
    assert hook.got[-1]["state"] == "failed"
    appliance("notify", "--failed", env={**os.environ, "MONITOR_UNIT": "itree-check.service"})
    assert hook.got[-1]["message"].startswith("itree-check.service has failed")
    run("umount", appliance.volume)
    try:
        appliance("notify", "--failed", env={**os.environ, "MONITOR_UNIT": "backup-watch.service"})
        assert "is not a backup volume" in hook.got[-1]["message"]
        appliance("notify", "--failed", "mx1")
        assert hook.got[-1]["state"] == "failed"
    finally:
        run("mount", "-o", "loop,noatime", appliance.top / "volume.img", appliance.volume)


def test_host_that_was_taken_out(backed):
    """Its snapshots stay, and get old: no alarm, but for damage."""
    appliance, *_ = backed
    (appliance.conf / "hosts.d" / "mx1.conf").unlink()
    path = appliance.volume / "mx1" / ".itree-backup" / "status.json"
    path.write_text(json.dumps({**appliance.status("mx1"), "last_good_time": 1, "state": "client-gone"}))
    assert "retired" in appliance("status")
    assert json.loads(appliance("status", "--json"))["hosts"]["mx1"]["retired"] is True
    flip(sorted((appliance.good("mx1")[0] / "cur").iterdir())[0])
    appliance("verify", ok=(7,))
    assert "1 damaged files" in appliance("status", ok=(1,))


def test_host_file_that_cannot_be_a_host(appliance, tmp_path):
    """A name too long, or with a space in it, is told: nothing would ever back it up."""
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=maildir(tmp_path / "mail", 20)), "mail")
    appliance("run", "mx1")
    (appliance.conf / "hosts.d" / ".#mx1.conf").touch()  # an editor's
    appliance("status")
    for name in ("mail_2 .conf", f"{'x' * 64}.conf"):
        bad = appliance.conf / "hosts.d" / name
        bad.touch()
        assert name in appliance("status", ok=(1,))
        problem = json.loads(appliance("status", "--json", ok=(1,)))["problems"][0]
        assert str(bad) in problem and problem in appliance("status", ok=(1,))
        assert name in appliance("setup", "--no-timers", ok=(2,))
        bad.unlink()


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
        output = appliance("run", "mx1", ok=(1,))
        assert "is not on the file system of" in output
        assert not list(where.glob("2*"))
    finally:
        run("umount", where)
    appliance("run", "mx1")
    assert len(appliance.good("mx1")) == 2
