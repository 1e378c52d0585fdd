# SPDX-License-Identifier: GPL-2.0-only
"""The configuration survives the system disk: its copy on the volume, and an appliance that takes it over."""

import os
import shutil

import pytest
from conftest import maildir
from itree_backup import config, configcopy


@pytest.fixture
def configured(appliance, tmp_path):
    """A host that is backed up, a page with a password, a key."""
    number = appliance.servers.rsync(mail=maildir(tmp_path / "mail", 5))
    appliance("setup", "--no-timers")
    appliance.host("mx1", "rsyncd", number, "mail")
    (appliance.conf / "ssh" / "known_hosts").write_text("mx9 ssh-ed25519 AAAA\n")
    (appliance.conf / "page").mkdir()
    (appliance.conf / "page" / "password").write_text("a hash\n")
    appliance("setup", "--no-timers")
    return appliance


def new_system_disk(appliance):
    """Only what the image brings is there: the path of the volume, in a test."""
    shutil.rmtree(appliance.conf)
    appliance.conf.mkdir()
    appliance.settings()


def test_new_system_disk_goes_on_with_the_old_hosts(configured):
    appliance = configured
    assert "holds a copy" in appliance("prepare", "mx1")
    assert appliance("prepare", "mx1") == ""
    before = configcopy.contents(appliance.conf)
    new_system_disk(appliance)
    output = appliance("setup", "--no-timers")
    assert "taken over from the backup volume" in output and "hosts: mx1" in output
    assert configcopy.contents(appliance.conf) == before
    for path in appliance.conf.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "itree-backup.conf", path
    assert " is good: " in appliance("run", "mx1")


def test_what_the_admin_brings_counts_more(configured, tmp_path):
    """A credential's host, and a configuration that has a key already."""
    appliance = configured
    appliance("prepare", "mx1")
    new_system_disk(appliance)
    creds = tmp_path / "creds"
    creds.mkdir()
    (creds / "itree-backup.host.mx1").write_text("[host]\npaths = /other\n")
    env = {**os.environ, "CREDENTIALS_DIRECTORY": str(creds)}
    appliance("setup", "--no-timers", env=env)
    assert "/other" in (appliance.conf / "hosts.d" / "mx1.conf").read_text()
    assert (appliance.conf / "ssh" / "known_hosts").read_text() == "mx9 ssh-ed25519 AAAA\n"
    # A host that was retired on an appliance in use does not come back.
    appliance("retire", "mx1", "--no-timers")
    assert "hosts: none yet" in appliance("setup", "--no-timers")


def test_changes_are_copied_before_the_next_backup(configured):
    appliance = configured
    appliance("prepare", "mx1")
    with open(appliance.conf / "hosts.d" / "mx1.conf", "a") as handle:
        handle.write("compress = yes\n")
    assert "holds a copy" in appliance("prepare", "mx1")
    assert "compress" in (appliance.volume / configcopy.NAME / "now" / "hosts.d" / "mx1.conf").read_text()
    assert appliance.volume.joinpath(configcopy.NAME).stat().st_mode & 0o777 == 0o700


def test_volume_that_is_mounted_later(configured):
    """The first set-up makes a key of its own; the next one finds the volume, and the key that the clients know."""
    appliance = configured
    appliance("prepare", "mx1")
    key = (appliance.conf / "ssh" / "id").read_text()
    new_system_disk(appliance)
    marker = appliance.volume / ".itree-backup-volume"
    marker.rename(appliance.volume / "elsewhere")
    appliance("setup", "--no-timers", ok=(0, 1, 2))
    assert (appliance.conf / "ssh" / "id").read_text() not in ("", key)
    (appliance.volume / "elsewhere").rename(marker)
    assert "hosts: mx1" in appliance("setup", "--no-timers")
    assert (appliance.conf / "ssh" / "id").read_text() == key


@pytest.mark.parametrize("step", range(7))
def test_power_cut_leaves_one_whole_copy(configured, step, monkeypatch):
    """Power is cut before each change of the directory. The old copy or the new one is left whole."""
    appliance = configured
    base = config.settings(appliance.conf)
    configcopy.save(base)
    old = configcopy.contents(appliance.conf)
    (appliance.conf / "hosts.d" / "mx2.conf").write_text("[host]\npaths = /srv\n")
    new = configcopy.contents(appliance.conf)
    done = []

    class Cut(Exception):
        pass

    def cut(real):
        def call(*args, **kwargs):
            if len(done) == step:
                raise Cut
            done.append(real)
            return real(*args, **kwargs)

        return call

    for where, name in ((configcopy.shutil, "rmtree"), (configcopy, "write"), (configcopy.Flusher, "flush"),
                        (type(appliance.volume), "rename")):  # fmt: skip
        monkeypatch.setattr(where, name, cut(getattr(where, name)))
    with pytest.raises(Cut):
        configcopy.save(base)
    monkeypatch.undo()
    shutil.rmtree(appliance.conf / "hosts.d")
    configcopy.take_over(base, b"")
    got = configcopy.contents(appliance.conf)
    assert got in (old, new), got.keys() ^ new.keys()
    # And the next one is made as ever.
    (appliance.conf / "hosts.d" / "mx3.conf").write_text("[host]\npaths = /srv\n")
    assert configcopy.save(base)
    place, fresh, before = configcopy.places(base.volume)
    assert (
        configcopy.contents(place) == configcopy.contents(appliance.conf) and not fresh.exists() and not before.exists()
    )
