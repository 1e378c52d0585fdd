# SPDX-License-Identifier: GPL-2.0-only
"""Commands that the client runs before and after its backup."""

import os
import re
import signal
import subprocess
import time

import pytest
from conftest import fill

LOG = "log"


@pytest.fixture
def db1(appliance, tmp_path):
    """A host with hooks that note how they were called, and a function that writes its file and lets the keys in."""
    top = tmp_path / "client"
    fill(top, "data")
    number = appliance.servers.ssh(appliance.conf)
    for name, body in (("before", f"echo state > {top}/data/dump"), ("after", f"rm -f {top}/data/dump")):
        path = top / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {top}/{LOG}\n{body}\n')
        path.chmod(0o755)
    key = (appliance.conf / "ssh" / "id.pub").read_text()

    def write(more=""):
        more += f"before = {top}/before all\nafter = {top}/after all\n"
        appliance.host("db1", "ssh", number, top / "data", more=more)
        output = appliance("setup", "--no-timers")
        lines = [line for line in output.splitlines() if line.startswith('restrict,command="case')]
        (appliance.conf / "ssh" / "id.pub").write_text("\n".join([key, *lines]) + "\n")
        return top

    return write


def log(top):
    path = top / LOG
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_dump_is_made_before_and_removed_after(appliance, db1):
    top = db1()
    assert "before: the client runs" in appliance("run", "db1")
    assert log(top) == ["before all", "after all ok"]
    (snapshot,) = appliance.good("db1")
    assert (snapshot / str(top).strip("/") / "data" / "dump").read_text() == "state\n"
    assert not (top / "data" / "dump").exists()


def test_key_of_hooks_runs_nothing_else(appliance, db1):
    """Neither a shell, nor other arguments, nor a second command."""
    top = db1()
    keys = appliance.conf / "ssh"
    number = re.search(r"^port = (\d+)$", (appliance.conf / "hosts.d" / "db1.conf").read_text(), re.M)[1]
    argv = ["ssh", "-F", "none", "-o", f"UserKnownHostsFile={keys}/known_hosts", "-o", "BatchMode=yes", "-o",
            "IdentitiesOnly=yes", "-i", keys / "hook", "-p", number, "root@127.0.0.1"]  # fmt: skip
    proof = top / "proof"
    tries = [f"touch {proof}", f"{top}/before all; touch {proof}", f"{top}/after all $(touch {proof})",
             f"{top}/after all ok; touch {proof}", f"{top}/before", f"{top}/after all"]  # fmt: skip
    for words in ([], *([one] for one in tries)):
        subprocess.run([*argv, *words], stdin=subprocess.DEVNULL, check=False)
    assert not proof.exists()
    assert {line.rpartition(" ")[0] for line in log(top)} <= {"after all"}


def test_failing_before_fails_the_backup(appliance, db1):
    top = db1()
    (top / "before").write_text("#!/bin/sh\necho the database is down >&2\nexit 3\n")
    output = appliance("run", "db1", ok=(1,))
    assert "before all' ended with 3 on the client: the database is down" in output and "Nothing was fetched" in output
    assert not appliance.good("db1") and not appliance.partial("db1")
    assert log(top) == ["after all failed"]
    assert appliance.status("db1")["state"] == "failed"
    assert "the database is down" in appliance("status", ok=(1,))


def test_after_gets_the_outcome_of_a_failure(appliance, db1):
    top = db1()
    (top / "data").rename(top / "moved")
    (top / "before").write_text("#!/bin/sh\n")
    appliance("run", "db1", ok=(1,))
    assert log(top) == ["after all failed"]


def test_failing_after_is_reported_and_the_snapshot_counts(appliance, db1):
    top = db1()
    (top / "after").write_text("#!/bin/sh\necho lvremove failed\nexit 5\n")
    output = appliance("run", "db1", ok=(1,))
    assert "the snapshot is good, but: " in output and "ended with 5 on the client: lvremove failed" in output
    assert len(appliance.good("db1")) == 1
    assert "lvremove failed" in appliance("status", ok=(1,))
    (top / "after").write_text("#!/bin/sh\n")
    appliance("run", "db1")
    appliance("status")


@pytest.mark.parametrize("setting", ["before", "after"])
def test_time_is_limited(appliance, db1, setting):
    top = db1(more="hook_timeout = 8\n")
    (top / setting).write_text("#!/bin/sh\nexec sleep 1000\n")
    output = appliance("run", "db1", ok=(5,) if setting == "before" else (1,))
    assert f"{setting}" in output and "did not end within 8 s ([host] hook_timeout)" in output
    assert len(appliance.good("db1")) == (setting == "after")
    assert log(top) == (["after all client-gone"] if setting == "before" else ["before all"])


def test_after_runs_when_the_run_is_stopped(appliance, db1):
    top = db1()
    (top / "before").write_text(f"#!/bin/sh\ntouch {top}/begun\nexec sleep 1000\n")
    env = {**os.environ, "STATE_DIRECTORY": f"{appliance.top}/state"}
    proc = subprocess.Popen([str(a) for a in appliance.argv("run", "db1")], env=env)
    while not (top / "begun").exists():
        assert proc.poll() is None
        time.sleep(0.05)
    proc.send_signal(signal.SIGTERM)
    assert proc.wait(60) == 8
    assert log(top) == ["after all interrupted"]


def test_client_that_does_not_know_the_key(appliance, db1):
    """The message has the line that the client lacks."""
    db1()
    known = (appliance.conf / "ssh" / "id.pub").read_text().splitlines()
    (appliance.conf / "ssh" / "id.pub").write_text(known[0] + "\n")
    output = appliance("run", "db1", ok=(6,))
    assert "the client does not let us run it" in output and known[-1] in output
    (appliance.conf / "ssh" / "hook").unlink()
    assert "run 'itree-backup setup'" in appliance("run", "db1", ok=(2,))


@pytest.mark.parametrize("value", ["dump", "/bin/dump; true", "/bin/dump 'all'", "/bin/dump $HOME", "/bin/dump  two"])
def test_command_that_a_shell_would_interpret_is_refused(appliance, value):
    appliance.host("db1", "ssh", 22, "/data", more=f"before = {value}\n")
    assert f"[host] before: '{value}' is not the absolute path" in appliance("run", "db1", ok=(2,))


def test_daemon_runs_no_hooks(appliance):
    appliance.host("db1", "rsyncd", 873, "data", more="after = /bin/true\n")
    assert "pre-xfer exec" in appliance("run", "db1", ok=(2,))
