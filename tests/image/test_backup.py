# SPDX-License-Identifier: GPL-2.0-only
"""Backups of clients, twice, with changes between; getting everything back; what the admin sees."""

import json
import os
import shutil
import subprocess
import time

import pytest
from conftest import farm, maildir, same, source_tree, state

# Messages of the mail spool that is backed up twice.
MESSAGES = 100_000 if os.environ.get("ITREE_FULL") else 1500


def change_mail(top):
    """A night in a mail spool: mail comes, is read, is deleted; one message gets another mode."""
    messages = sorted((top / "cur").iterdir())
    for path in messages[:50]:
        path.unlink()
    for path in messages[50:90]:
        path.rename(path.with_name(path.name.replace(":2,S", ":2,RS")))
    for n in range(60):
        (top / "new" / f"18000{n:05}.M1P{n}.mx1").write_bytes(bytes([n]) * (100 + n))
    messages[100].chmod(0o600)
    was = messages[101].stat()
    messages[101].write_bytes(messages[101].read_bytes()[::-1])
    # The size is the same, and the second.
    os.utime(messages[101], ns=(was.st_mtime_ns // 10**9 * 10**9 + 999,) * 2)


def night(appliance, name):
    """One run; what it said, and for the reader of -s how long it took."""
    began = time.monotonic()
    output = appliance("run", name, timeout=3600)
    print(f"{name}: {time.monotonic() - began:.1f} s: {output.strip().splitlines()[-1]}")
    return output


@pytest.mark.timeout(3 * 3600)
def test_three_clients(make_appliance, tmp_path):
    appliance = make_appliance(size=256 + MESSAGES // 75, inodes=20000 + 2 * MESSAGES)
    mail, source, links = maildir(tmp_path / "mail", MESSAGES), source_tree(tmp_path / "src"), farm(tmp_path / "farm")
    ssh = appliance.servers.ssh(appliance.conf)
    daemon = appliance.servers.rsync(links=links)
    clients = {"mx1": (mail, f"{mail}"), "dev": (source, f"{source}"), "nfs": (links, "")}
    appliance.host("mx1", "ssh", ssh, mail)
    appliance.host("dev", "ssh", ssh, source, tmp_path / "second")
    appliance.host("nfs", "rsyncd", daemon, "links")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "file").write_text("of the second path\n")
    first = {}
    for name, (top, below) in clients.items():
        assert "is good" in night(appliance, name)
        first[name] = state(top)
        same(first[name], state(appliance.good(name)[0].joinpath(below.strip("/"))))
    assert (appliance.good("dev")[0] / f"{tmp_path}/second/file".strip("/")).read_text() == "of the second path\n"

    change_mail(mail)
    (links / "d3" / "name4").unlink()
    (source / "README.md").write_text("changed\n")
    for name, (top, below) in clients.items():
        night(appliance, name)
        one, two = (p.joinpath(below.strip("/")) for p in appliance.good(name))
        same(state(top), state(two))
        # What was good stays as it was.
        same(first[name], state(one))
    # What did not change takes no space: of the mail that stayed all but the two messages that changed.
    one, two = (p.joinpath(str(mail).strip("/"), "cur") for p in appliance.good("mx1"))
    stayed = {p.name for p in one.iterdir()} & {p.name for p in two.iterdir()}
    shared = [n for n in stayed if (one / n).stat().st_ino == (two / n).stat().st_ino]
    assert len(stayed) - len(shared) == 2
    assert appliance.status("mx1")["files"] == 60 + 40 + 2

    get_back(appliance, clients, tmp_path)
    look(appliance)


def get_back(appliance, clients, tmp_path):
    """One file, a tree, a whole client as a tar stream."""
    for name, (top, below) in clients.items():
        back = tmp_path / f"back-{name}"
        back.mkdir()
        output = appliance("restore", name, "latest", *([below] if below else []), "--to", back, timeout=3600)
        assert "compared and right" in output and "could not be compared" not in output
        same(state(top), state(back.joinpath(below.strip("/"))))
    mail = clients["mx1"][0]
    names = sorted((mail / "cur").iterdir())
    one = tmp_path / "one"
    one.mkdir()
    appliance("restore", "mx1", "latest", names[5], "--to", one)
    files = [p for p in one.rglob("*") if p.is_file()]
    assert [p.read_bytes() for p in files] == [names[5].read_bytes()]
    # A file that is there is not replaced unasked.
    files[0].write_text("newer\n")
    assert "1 were there already" in appliance("restore", "mx1", "latest", names[5], "--to", one)
    assert files[0].read_text() == "newer\n"
    appliance("restore", "mx1", "latest", names[5], "--to", one, "--overwrite")
    assert files[0].read_bytes() == names[5].read_bytes()
    out = tmp_path / "tar"
    out.mkdir()
    with subprocess.Popen([str(a) for a in appliance.argv("export", "nfs", "latest")], stdout=subprocess.PIPE) as proc:
        subprocess.run(["tar", "-C", str(out), "--xattrs", "--acls", "-xp"], stdin=proc.stdout, check=True)
    assert proc.returncode == 0
    same(state(clients["nfs"][0]), state(out))
    # Not onto the backups themselves, not by way of a link, not what is not there.
    assert "is on the backup volume" in appliance("restore", "mx1", "latest", "--to", appliance.volume, ok=(2,))
    assert "there is no nothing" in appliance("restore", "nfs", "latest", "/nothing", "--to", out, ok=(1,))
    source = clients["dev"][1]
    (appliance.good("dev")[-1] / source.strip("/") / "way").symlink_to("/etc")
    assert "there is no" in appliance("restore", "dev", "latest", f"{source}/way/hostname", "--to", out, ok=(1,))


def look(appliance):
    """list, verify, status, metrics."""
    output = appliance("verify", "--all", timeout=3600)
    assert output.count(" 0 damaged, 0 without a recorded checksum") == 6
    listed = appliance("list").splitlines()
    assert [line.split()[0] for line in listed] == ["dev", "dev", "mx1", "mx1", "nfs", "nfs"]
    assert "newest" in listed[1]
    assert "odd" in appliance("list", "nfs", "latest", "/")
    assert "empty" in appliance("list", "nfs", "latest", "odd")
    assert appliance("status").count(" ok ") == 3
    report = json.loads(appliance("status", "--json"))
    assert report["hosts"]["mx1"]["well"] and len(report["hosts"]["mx1"]["snapshots"]) == 2
    metrics = (appliance.top / "metrics" / "itree_backup_mx1.prom").read_text()
    assert 'itree_backup_last_run_success{host="mx1"} 1\n' in metrics
    assert 'itree_backup_snapshots{host="mx1"} 2\n' in metrics
    # For people who trust nobody's verify.
    with open(appliance.top / "md5", "wb") as out:
        appliance("sums", "nfs", "latest", stdout=out)
    checked = subprocess.run(["md5sum", "-c", appliance.top / "md5"], cwd=appliance.good("nfs")[-1],
                             capture_output=True, check=True)  # fmt: skip
    assert checked.stdout.count(b": OK\n") == 299 + 12
    appliance.settings("[status]\nmax_age_hours = 1\n")
    meta = appliance.volume / "mx1" / ".itree-backup" / "status.json"
    status = json.loads(meta.read_text())
    meta.write_text(json.dumps({**status, "last_good_time": status["last_good_time"] - 7200}))
    assert "older than 1 h" in appliance("status", "mx1", ok=(1,))


def test_excluded_and_other_file_systems(appliance, tmp_path):
    """Left out is what the admin names, and what is mounted below; never the mount point itself."""
    top = tmp_path / "client"
    (top / "keep").mkdir(parents=True)
    (top / "mnt").mkdir()
    for name in ("keep/a", "keep/a.tmp", "keep/sp ace"):
        (top / name).write_text(name)
    subprocess.run(["mount", "-t", "tmpfs", "itree-test", top / "mnt"], check=True)
    try:
        (top / "mnt" / "other").write_text("of another file system")
        appliance.host("web", "ssh", appliance.servers.ssh(appliance.conf), top, more="exclude = *.tmp\n    /x y\n")
        appliance("run", "web")
    finally:
        subprocess.run(["umount", top / "mnt"], check=True)
    got = appliance.good("web")[0] / str(top).strip("/")
    assert sorted(os.listdir(got / "keep")) == ["a", "sp ace"] and os.listdir(got / "mnt") == []


def test_sums_lost(appliance, tmp_path):
    """Without the file of sums nothing is lost but the knowledge of what was sent, and that is said."""
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=maildir(tmp_path / "mail", 20)), "mail")
    appliance("run", "mx1")
    path = appliance.volume / "mx1" / ".itree-backup" / "sums.sqlite"
    path.write_bytes(b"no database at all" * 100)
    assert "Move it aside" in appliance("verify", "mx1", ok=(7,))
    path.unlink()
    assert "20 files have no recorded checksum" in appliance("verify", "mx1", ok=(1,))
    appliance("verify", "--adopt", "mx1")
    appliance("verify", "mx1")
    # A record is of one file, not of whoever gets its inode number next.
    victim = next((appliance.good("mx1")[0] / "cur").iterdir())
    shutil.copy2(victim, victim.with_suffix(".new"))
    victim.with_suffix(".new").rename(victim)
    assert "1 files have no recorded checksum" in appliance("verify", "mx1", ok=(1,))
