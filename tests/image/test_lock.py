# SPDX-License-Identifier: GPL-2.0-only
"""Young snapshots are locked: what the units run as can neither remove nor rename them, nor names in them."""

import datetime
import os
import shlex
import shutil

import pytest
from conftest import as_unit, maildir, run, same, state

# Units that may write to the volume of a host; the sandbox of each takes more away than its capabilities.
WRITERS = ("backup@.service", "backup-prepare@.service", "backup-verify.service", "itree-arrange.service")
# In the directory of the host; S is the snapshot, F a file in it.
WAYS = (
    "rm -rf S", "mv S gone", "mv S S.deleting", "rm S/F", "mv S/F S/other", "mv S/F .",
    "rm -rf S/cur", "mv S/cur .", "rmdir S/new", "touch S/new/name", "mkdir S/new/name", "ln S/F S/new/name",
    "ln -s x S/cur/name", "mv fresh S/cur/", "cp -a --remove-destination fresh S/F", "chmod 0 S", "chmod 0 S/cur",
    "chown 1 S/cur", "touch S/cur", "setfattr -n user.x -v y S/cur", "setfacl -m u:1:r S/cur", "chattr -i S",
    "chattr -R -i S",
)  # fmt: skip


@pytest.fixture
def locked(appliance, tmp_path):
    """An appliance with one locked snapshot."""
    mail = maildir(tmp_path / "mail", 20)
    appliance.settings("[lock]\ndays = 7\n[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n")
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=mail), "mail")
    appliance("run", "mx1")
    assert "mx1: locked 2" in appliance("lock", "mx1")
    yield appliance
    run("chattr", "-R", "-i", appliance.volume / "mx1", ok=None)


def attempt(unit, way, snapshot):
    """Try a way with the capabilities of a unit, in the directory of a snapshot's host; its exit status and output."""
    file = sorted((snapshot / "cur").iterdir())[0].relative_to(snapshot)
    words = [w.replace("S/F", f"S/{file}").replace("S", snapshot.name, 1) if w[0] == "S" else w for w in way.split()]
    return run(*as_unit(unit), "sh", "-c", f"cd {snapshot.parent} && {shlex.join(words)}", ok=None)


@pytest.mark.parametrize("unit", WRITERS)
def test_rights_of_a_unit_do_not_suffice(locked, unit):
    """All ways that we know are tried, and the snapshot stays as it was, down to its times."""
    host, (snapshot,) = locked.volume / "mx1", locked.good("mx1")
    (host / "fresh").write_text("fresh\n")
    before, names = state(snapshot), sorted(os.listdir(host))
    for way in WAYS:
        code, output = attempt(unit, way, snapshot)
        assert code and "not permitted" in output, f"{way}: {code}: {output}"
        assert sorted(os.listdir(host)) == names, way
    same(before, state(snapshot))


def test_the_ways_work_on_a_snapshot_that_is_not_locked(locked):
    """Without this, the test above could pass because of a misspelt command."""
    host, (snapshot,) = locked.volume / "mx1", locked.good("mx1")
    for way in WAYS:
        copy = host / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        run("cp", "-a", snapshot, copy)
        (host / "fresh").write_text("fresh\n")
        code, output = attempt("backup@.service", way, copy)
        assert code == 0, f"{way}: {output}"


def test_runs_go_on_and_pruning_waits(locked):
    """The next snapshot shares the locked one's files; the older one goes when its time is up."""
    first = locked.good("mx1")[0]
    assert "removing" not in locked("run", "mx1")
    second = locked.good("mx1")[1]
    file = sorted((first / "cur").iterdir())[0].relative_to(first)
    assert (first / file).samefile(second / file)
    assert "0 removed, 2 kept" in locked("prune", "mx1")
    assert f"{first.name} " in locked("list") and "not kept, locked" in locked("list")
    assert "1 snapshots are locked" in locked("prune", "mx1", "--remove", first.name, ok=(1,))
    locked("verify", "--all")
    locked.settings("[lock]\ndays = 0\n[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n")
    assert f"unlocked {first.name}" in locked("lock")
    assert "1 removed, 1 kept" in locked("prune", "mx1")


def test_old_snapshots_are_unlocked(appliance, tmp_path):
    """Age counts by the snapshot's name."""
    appliance.settings("[lock]\ndays = 7\n")
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=maildir(tmp_path / "mail", 20)), "mail")
    appliance("run", "mx1")
    (snapshot,) = appliance.good("mx1")
    now = datetime.datetime.now(datetime.UTC)
    for days, locks in ((6, True), (8, False)):
        name = f"{now - datetime.timedelta(days=days):%Y-%m-%dT%H-%M-%SZ}"
        run("chattr", "-R", "-i", snapshot)
        snapshot = snapshot.rename(snapshot.with_name(name))
        if not locks:
            run("chattr", "-R", "+i", snapshot)
        assert f"{'locked' if locks else 'unlocked'} {name}" in appliance("lock")
        assert ("locked" in appliance("list")) == locks
        assert appliance("lock") == ""


def test_forget_removes_all_or_nothing(locked):
    locked("run", "mx1")
    locked("retire", "mx1", "--no-timers")
    assert "1 snapshots are locked" in locked("forget", "mx1", "--yes", ok=(1,))
    assert len(locked.good("mx1")) == 2


def test_snapshot_that_was_half_locked_is_locked_in_full(locked):
    """The machine went down meanwhile: the directory of the snapshot itself gets its flag last."""
    (snapshot,) = locked.good("mx1")
    run("chattr", "-i", snapshot, snapshot / "cur")
    assert f"locked {snapshot.name}" in locked("lock")
    assert run("lsattr", "-d", snapshot / "cur")[1].split()[0].count("i") == 1
