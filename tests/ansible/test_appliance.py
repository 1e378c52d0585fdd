# SPDX-License-Identifier: GPL-2.0-only
"""The role appliance: this machine is appliance and client, with an sshd on a loopback port."""

import pathlib
import socket
import subprocess
import time

import pytest
from conftest import REPO, full, run
from itree_backup import config

APPLIANCE = REPO / "image" / "appliance"
USER = "itree-test-client"


class Pair:
    """An appliance's configuration, and a client whose user lets it in."""

    def __init__(self, sandbox, top):
        self.sandbox, self.top, self.conf, self.home = sandbox, top, top / "conf", top / "home"
        self.keys = self.home / ".ssh" / "authorized_keys"
        self.home.mkdir(mode=0o700)
        (top / "served").mkdir()
        (top / "served" / "mailbox").touch()
        # root by another name: the home of root is not the tests' business.
        line = f"{USER}:x:0:0::{self.home}:/bin/sh\n"
        sandbox.put("/etc/passwd", pathlib.Path("/etc/passwd").read_text() + line)
        command = APPLIANCE / "usr/bin/itree-backup"
        run(command, "--config", self.conf, "setup", "--no-timers", cwd=top, ok=(0, 1))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", top / "host_key")
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        (top / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {top}/host_key\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n"
        )
        self.log = open(top / "sshd.log", "wb")  # noqa: SIM115
        self.sshd = subprocess.Popen([*sandbox.before, "/usr/sbin/sshd", "-D", "-e", "-f", top / "sshd_config"],
                                     stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)  # fmt: skip
        for _ in range(200):
            assert self.sshd.poll() is None, (top / "sshd.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail("no sshd on its port")

    def close(self):
        self.sshd.terminate()
        self.sshd.wait()
        self.log.close()

    def role(self, collection, *options, **different):
        variables = {
            "itree_appliance_server": "here",
            "itree_appliance_client": "mx1",
            "itree_appliance_address": "127.0.0.1",
            "itree_appliance_port": self.port,
            "itree_appliance_user": USER,
            "itree_appliance_paths": [str(self.top / "served"), "/etc/a b"],
            "itree_appliance_exclude": ["*.tmp"],
            "itree_appliance_keep": {"daily": 7},
            "itree_appliance_from": ["127.0.0.1"],
            "itree_appliance_host_key": f"{self.top}/host_key.pub",
            "itree_appliance_config": str(self.conf),
            # Nothing runs systemd here.
            "itree_appliance_timer": False,
            **different,
        }
        return collection.role("appliance", *options, before=self.sandbox.before, **variables)

    def state(self):
        paths = [self.keys, self.conf / "ssh" / "known_hosts", self.conf / "hosts.d" / "mx1.conf"]
        return [p.read_text() if p.exists() else None for p in paths]

    def host(self):
        """What itree-backup reads from the host's file."""
        return config.host(config.settings(self.conf), "mx1")


@pytest.fixture
def pair(sandbox, tmp_path):
    made = Pair(sandbox, tmp_path)
    yield made
    made.close()


def test_enrol(collection, pair):
    """The appliance lists the client's files with what the role put in place; then there is nothing left to do."""
    done = pair.role(collection).good()
    assert done.changed()["here"] > 0
    keys, known, _conf = pair.state()
    public = (pair.conf / "ssh" / "id.pub").read_text().split()[1]
    assert keys.count(public) == 1 and keys.startswith('restrict,from="127.0.0.1",command="rrsync -ro /" ssh-ed25519 ')
    assert (pair.top / "host_key.pub").read_text().split()[1] in known
    host = pair.host()
    assert (host.port, host.user, host.paths) == (pair.port, USER, [str(pair.top / "served"), "/etc/a b"])
    assert host.exclude == ["*.tmp"] and host.keep["daily"] == 7 and host.keep["last"] == 3
    before = pair.state()
    assert pair.role(collection).good().changed() == {"here": 0}
    assert pair.state() == before


@full
def test_check_mode_and_back(collection, pair):
    before = pair.state()
    assert pair.role(collection, "--check", "--diff").good().changed()["here"] > 0
    assert pair.state() == before
    pair.keys.parent.mkdir(mode=0o700)
    pair.keys.write_text("ssh-ed25519 AAAA somebody else's\n")
    pair.role(collection).good()
    # Other rights for the same key: the line is replaced.
    pair.role(collection, itree_appliance_from=[]).good()
    lines = pair.keys.read_text().splitlines()
    assert lines[1].startswith("restrict,command=") and len(lines) == 2
    pair.role(collection, itree_appliance_state="absent").good()
    assert pair.keys.read_text() == "ssh-ed25519 AAAA somebody else's\n"
    assert "127.0.0.1" not in (pair.conf / "ssh" / "known_hosts").read_text()
    assert not (pair.conf / "hosts.d" / "mx1.conf").exists()
    assert pair.role(collection, itree_appliance_state="absent").good().changed() == {"here": 0}


@full
def test_refused(collection, pair):
    """Another machine answers at that address: the appliance does not talk to it, and says so."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", pair.top / "other")
    played = pair.role(collection, itree_appliance_host_key=str(pair.top / "other.pub"))
    played.bad("could not list", "Host key verification failed", "the timer was not switched on")
    (pair.conf / "ssh" / "id.pub").unlink()
    pair.role(collection).bad("run `itree-backup setup` there first")
