# SPDX-License-Identifier: GPL-2.0-only
"""The role backup: a backup server on a host, from the package to the status page's password."""

import configparser
import os

import pytest
from conftest import REPO, run


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    top = tmp_path_factory.mktemp("deb")
    run(REPO / "packaging" / "deb" / "build", "deb", "itree-backup", "--out", top, env={"ITREE_RELEASE": "0.1"})
    (path,) = (top / "DEBS").glob("*/itree-backup_*.deb")
    return path


@pytest.fixture
def server(collection, sandbox, tmp_path):
    """Runs the role in a copy of this host; volume: where its backup volume is."""
    volume = tmp_path / "volume"
    volume.mkdir()

    def role(*options, **different):
        variables = {
            "itree_backup_directory": str(volume),
            "itree_backup_settings": {"notify": {"mail_to": "root"}, "volume": {"at_once": 2}},
            # Nothing runs systemd here.
            "itree_backup_timers": False,
            **different,
        }
        return collection.role("backup", *options, before=sandbox.before, **variables)

    role.volume = volume
    yield role
    run("umount", volume, ok=None)


def test_without_its_volume_nothing_is_done(server, sandbox):
    server().bad("Nothing is mounted on", "Nothing was changed")
    assert sandbox.changes() == {} and os.listdir(server.volume) == []


def test_host_becomes_a_backup_server(server, sandbox, package):
    """Check mode changes nothing; the volume is marked, the key made, the page has its password; then all is done."""
    run("mount", "-t", "tmpfs", "itree-test", server.volume)
    sandbox.run("dpkg", "--install", "--force-depends", package)
    before = sandbox.changes()
    assert server("--check", "--diff").good().changed()["here"] > 0
    assert sandbox.changes() == before and os.listdir(server.volume) == []
    done = server(itree_backup_page_password="open: 'sesame' # and more").good()
    assert done.changed()["here"] > 0 and "sesame" not in done.text
    assert (server.volume / ".itree-backup-volume").exists()
    conf = configparser.ConfigParser(interpolation=None)
    conf.read_string(sandbox.run("cat", "/etc/itree-backup/itree-backup.conf"))
    assert dict(conf["volume"]) == {"directory": str(server.volume), "at_once": "2"}
    assert conf["notify"]["mail_to"] == "root"
    assert sandbox.run("cat", "/etc/itree-backup/ssh/id.pub").startswith("ssh-ed25519 ")
    assert sandbox.run("stat", "--format", "%a", "/etc/itree-backup/page/password").strip() == "600"
    # The command takes what the role wrote.
    assert "no hosts" in sandbox.run("itree-backup", "status", ok=(0, 1))
    again = server(itree_backup_page_password="another").good()
    assert again.changed() == {"here": 0}
