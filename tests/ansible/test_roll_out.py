# SPDX-License-Identifier: GPL-2.0-only
"""The playbooks over several hosts: order, gates, and what is left untouched when one fails.

The hosts are this machine, each with a directory tree of its own on a real ext4. The module that finds large
directories is the real one; this kernel has no itrees, so a stand-in for e4itree takes the calls and writes them down.
"""

import pytest
from conftest import fill, full

HOSTS = ["mail1", "mail2", "mail3"]


class Fleet:
    """Three hosts with a spool each, and the log of all that was asked of them."""

    def __init__(self, collection, standin, top, stop):
        self.collection, self.standin, self.top, self.stop = collection, standin, top, stop
        for name in HOSTS:
            fill(top / name / "inbox", 600)
            fill(top / name / "archive", 700)
            self.well(name)

    def well(self, name, well=True):
        file = self.top / name / "well"
        file.touch() if well else file.unlink()

    def variables(self, name):
        log = self.standin.top / "log"
        gate = f'echo "gate $0" >>{log}; test -e {self.top}/$0/well'
        return {
            "itree_mail_roles": ["convert"],
            "itree_mail_services": [],
            "itree_mail_ports": [],
            "itree_kernel_required": False,
            "itree_gate_commands": [["/bin/sh", "-c", gate, name]],
            "itree_gate_tries": 1,
            "itree_gate_pause": 0,
            "itree_convert_paths": [str(self.top / name)],
            "itree_convert_e4itree": str(self.standin.path),
            "itree_convert_stop_file": str(self.stop),
            # Tests run beside others.
            "itree_convert_max_load": 1000.0,
        }

    def play(self, *options, **different):
        hosts = {name: {**self.variables(name), **different.get(name, {})} for name in HOSTS}
        return self.collection.play("itree.storage.mail_hosts", hosts, *options, group="mail")

    def calls(self):
        """As short words: `gate mail1`, `build mail1/inbox`, in the order they came."""
        return [c.replace(f"{self.top}/", "") for c in self.standin.calls()]


@pytest.fixture
def fleet(collection, standin, image, tmp_path):
    top = image("-b", "1024").mount(tmp_path / "spool")
    return Fleet(collection, standin, top, tmp_path / "stop")


def all_of(name, dry=""):
    return [f"gate {name}", f"build {dry}{name}/archive", f"build {dry}{name}/inbox", f"gate {name}"]


def test_sick_host(fleet):
    """The first host is done; of the next two one is not well, and neither is touched. When it is, the rest follows."""
    serial = ("-e", '{"itree_mail_serial": [1, 2]}')
    fleet.well("mail3", False)
    played = fleet.play(*serial).bad()
    calls = fleet.calls()
    assert calls[:4] == all_of("mail1")
    assert sorted(calls[4:]) == ["gate mail2", "gate mail3"]
    assert played.hosts["mail3"]["failed"] == 1
    assert played.changed()["mail1"] > 0 and played.changed()["mail2"] == played.changed()["mail3"] == 0
    fleet.well("mail3")
    played = fleet.play(*serial, "--limit", "mail1,mail2").good()
    assert played.changed()["mail1"] == 0 and played.changed()["mail2"] > 0
    # What the stand-in built has no flag, so mail1 is asked again, and has nothing to do.
    assert fleet.calls() == all_of("mail1") + all_of("mail2")


@full
def test_all_well(fleet):
    """One host, then one at a time (a tenth of three); then nothing is left to do."""
    played = fleet.play().good()
    assert fleet.calls() == [c for name in HOSTS for c in all_of(name)]
    assert all(n > 0 for n in played.changed().values())
    assert fleet.play().good().changed() == dict.fromkeys(HOSTS, 0)


@full
def test_check_mode(fleet):
    """e4itree is asked what it would do, and nothing else; the gates are asked."""
    played = fleet.play("--check", "--diff").good()
    assert fleet.calls() == [c for name in HOSTS for c in all_of(name, "dry ")]
    assert all(n > 0 for n in played.changed().values())
    assert "inbox: a tree" in played.text and "inbox: no tree" in played.text


@full
def test_sick_after(fleet):
    """A host that the work has made sick stops it, too."""
    fleet.standin.hook(f"rm -f {fleet.top}/mail1/well")
    fleet.play().bad()
    assert fleet.calls() == all_of("mail1")


@full
def test_failed_directory(fleet):
    """A directory that fails stops it after its batch of directories; no later one, no later host."""
    full = (1, {"result": "failed", "errno": 28, "error": "No space left on device"}, "No space left on device")
    fleet.standin.answer(fleet.top / "mail1" / "archive", full)
    one = {"itree_convert_batch": 1}
    fleet.play(mail1=one).bad("archive: No space left on device")
    assert fleet.calls() == ["gate mail1", "build mail1/archive"]


def test_bad_argument(fleet):
    """An argument of the last host is wrong: the first is not even asked how it is."""
    played = fleet.play(mail3={"itree_convert_batch": "many"}).bad("itree_convert_batch")
    assert fleet.calls() == []
    assert set(played.changed().values()) == {0}


@full
def test_stop_file(fleet):
    """Created in the middle: what was begun is finished, nothing more is begun, the gate is asked; then all goes on."""
    fleet.standin.hook(f'case "$1" in *mail2/archive) touch {fleet.stop};; esac')
    played = fleet.play().good()
    assert fleet.calls() == [*all_of("mail1"), "gate mail2", "build mail2/archive", "gate mail2",
                             "gate mail3", "gate mail3"]  # fmt: skip
    assert f"{fleet.stop} exists" in " ".join(played.text.split())
    fleet.stop.unlink()
    fleet.play().good()
    built = {c.split(" ")[-1] for c in fleet.calls() if c.startswith("build")}
    assert {"mail2/inbox", "mail3/archive", "mail3/inbox"} <= built


@full
def test_little_space(fleet):
    played = fleet.play(mail1={"itree_convert_min_free_percent": 99})
    played.bad("Stopped before batch 1")
    assert fleet.calls() == ["gate mail1"]


@full
def test_tags(fleet):
    """One step alone, still between its gates."""
    roles = {"itree_mail_roles": ["kernel", "convert"]}
    fleet.play("--tags", "kernel", **dict.fromkeys(HOSTS, roles)).good()
    assert fleet.calls() == [c for name in HOSTS for c in [f"gate {name}"] * 2]


def test_gate(collection, fleet):
    """A volume that is read-only or not mounted does not pass; one that is well does."""
    gate = {"itree_gate_volumes": [str(fleet.top)], "itree_gate_tries": 1, "itree_gate_pause": 0}
    collection.role("gate", **gate).good()
    inside = {**gate, "itree_gate_volumes": [str(fleet.top / "mail1")]}
    collection.role("gate", **inside).bad("nothing is mounted there")
    collection.role("gate", **gate, itree_gate_ports=[1]).bad("Nothing answers on 127.0.0.1 port 1")
