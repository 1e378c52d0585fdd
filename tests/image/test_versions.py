# SPDX-License-Identifier: GPL-2.0-only
"""The image's own parts, without booting it: the command for its versions, its partitions, its units."""

import configparser
import contextlib
import json
import os
import re
import subprocess

import pytest
import treebuild as tb
from conftest import APPLIANCE, REPO, run, units_root
from itree_backup import setup

EXTRA = REPO / "image" / "mkosi.extra"
UNITS = EXTRA / "usr" / "lib" / "systemd" / "system"
BUILD = tb.load_script(REPO / "image" / "build")
# As pkg.Version makes it for a checkout with changes: the longest.
VERSION = "0.202611280024.g0123456789.changed"


@pytest.fixture
def command(tmp_path, monkeypatch):
    made = tb.load_script(EXTRA / "usr" / "sbin" / "itree-appliance")
    monkeypatch.setattr(made, "CONF", tmp_path / "itree-appliance.conf")
    monkeypatch.setattr(made, "DEFINITIONS", tmp_path / "definitions")
    monkeypatch.setattr(made, "TRANSFERS", EXTRA / "usr" / "lib" / "itree-appliance" / "sysupdate.d")
    monkeypatch.setattr(made, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(made, "running", lambda: "0.2")
    made.KERNELS.mkdir()
    # What check-boot calls.
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "itree-backup").write_text("#!/bin/sh\necho '{}'\n")
    (tmp_path / "itree-backup").chmod(0o755)
    return made


def partition(path):
    """The settings of a definition of systemd-repart."""
    conf = configparser.ConfigParser(interpolation=None, strict=False)
    conf.optionxform = str
    conf.read(path)
    return conf["Partition"]


def test_source_is_the_argument_or_the_configuration(command, tmp_path):
    command.CONF.write_text("[update]\nfrom = https://example.org/a%20b\n")
    assert command.source(None) == "https://example.org/a%20b"
    assert command.source("http://example.org/other") == "http://example.org/other"
    directory = tmp_path / "with a blank"
    directory.mkdir()
    assert command.source(str(directory)).endswith("/with%20a%20blank")


@pytest.mark.parametrize(
    ("conf", "given", "says"),
    [
        ("", None, "no source of updates"),
        ("[update]\nform = https://example.org\n", None, "no source of updates"),
        ("no section\n", None, "itree-appliance.conf"),
        ("", "/nowhere", "is no directory"),
        ("", "ftp://example.org/", "neither a directory nor"),
        ("", "update", "neither a directory nor"),
    ],
)
def test_source_that_cannot_be_one_is_wrong_usage(command, conf, given, says):
    command.CONF.write_text(conf)
    with pytest.raises(command.ApplianceError, match=re.escape(says)) as caught:
        command.source(given)
    assert caught.value.code == command.USAGE


def test_definitions_have_the_source_and_nothing_is_left_of_others(command):
    command.DEFINITIONS.mkdir()
    (command.DEFINITIONS / "old.transfer").touch()
    command.define("file:///a%20b")
    made = sorted(command.DEFINITIONS.iterdir())
    assert [p.name for p in made] == ["10-root-verity.transfer", "11-root.transfer", "20-kernel.transfer"]
    for path in made:
        # systemd would take a single % for a specifier.
        assert "Path=file:///a%%20b\n" in path.read_text() and "@SOURCE@" not in path.read_text()


def test_status_tells_what_each_version_is(command, capsys):
    for name in ("itree-backup_0.2.efi", "itree-backup_0.1.efi", "itree-backup_0.3+3.efi", "itree-backup_0.4+0-3.efi",
                 "other.efi"):  # fmt: skip
        (command.KERNELS / name).touch()
    assert command.status(type("args", (), {"json": False})) == command.DONE
    assert capsys.readouterr().out.splitlines() == [
        "0.2  runs now",
        "0.1  installed",
        "0.3  not proved yet, 3 tries left",
        "0.4  does not boot: given up",
    ]
    command.status(type("args", (), {"json": True}))
    assert json.loads(capsys.readouterr().out)["installed"][0] == {"version": "0.2", "tries": None, "runs": True}


def test_version_that_was_given_up_is_told_by_status(command, monkeypatch, tmp_path, capsys):
    """check-boot notes it where itree-backup looks for trouble, and takes the note back when there is none."""
    monkeypatch.setattr(command, "TROUBLE", tmp_path / "state" / "version-trouble")
    monkeypatch.setattr(command, "UNITS", ())
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    (command.KERNELS / "itree-backup_0.3+0-3.efi").touch()
    assert command.check_boot(None) == command.DONE
    (output,) = setup.problems(tmp_path)
    assert "version 0.3 of the appliance does not boot" in output and "0.2 runs" in output
    (command.KERNELS / "itree-backup_0.3+0-3.efi").unlink()
    # The last try of the version that runs is not over.
    (command.KERNELS / "itree-backup_0.2+0-3.efi").touch()
    command.check_boot(None)
    assert setup.problems(tmp_path) == []
    command.status(type("args", (), {"json": False}))
    assert capsys.readouterr().out == "0.2  runs now, not proved yet, 0 tries left\n"


def test_version_on_trial_that_does_not_work_is_left(command, monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr(command, "TROUBLE", tmp_path / "version-trouble")
    monkeypatch.setattr(command, "UNITS", ("no-such-unit-of-ours.service",))
    monkeypatch.setattr(command, "EFI", tmp_path)
    monkeypatch.setattr(command, "call", lambda *argv: called.append(argv))
    with pytest.raises(command.ApplianceError, match="0.2 does not work: no-such-unit"):
        command.check_boot(None)
    assert not called, "a version that has proved itself stays"
    (tmp_path / f"LoaderBootCountPath-{command.LOADER}").touch()
    with pytest.raises(command.ApplianceError):
        command.check_boot(None)
    assert called == [("systemctl", "reboot")]


class Source:
    """Stands in for systemd-sysupdate and its source: the version on offer, the calls, what the ESP holds meanwhile."""

    def __init__(self, command, monkeypatch):
        self.command, self.offers, self.calls, self.newest = command, None, [], []
        monkeypatch.setattr(command, "sysupdate", self)
        monkeypatch.setattr(command, "writable", contextlib.nullcontext)

    def __call__(self, *words, **_):
        self.calls.append(words)
        # As systemd-sysupdate does it: versions that are no newer than an installed kernel's are not offered.
        kernels = [p.stem.removeprefix("itree-backup_").partition("+")[0] for p in self.command.KERNELS.glob("*.efi")]
        new = self.offers and all(self.offers > kernel for kernel in kernels)
        if words[0] == "update":
            (self.command.KERNELS / f"itree-backup_{words[1]}+3.efi").touch()
            return subprocess.CompletedProcess(words, 0)
        if self.offers is False:
            return subprocess.CompletedProcess(words, 1, "", "no such host")
        output = json.dumps({"available": self.offers if new else None}) + "\n"
        return subprocess.CompletedProcess(words, 0 if new else 1, output, "")

    def update(self, **given):
        args = {"source": "https://example.org/", "check": False, "again": False, "reboot": False, **given}
        return self.command.update(type("args", (), args))


@pytest.fixture
def offered(command, monkeypatch):
    (command.KERNELS / "itree-backup_0.2.efi").touch()
    return Source(command, monkeypatch)


def test_source_is_asked_once_whether_it_has_a_newer_version(command, offered, capsys):
    assert offered.update(check=True) == command.NOTHING
    assert "0.2 is the newest" in capsys.readouterr().out
    offered.offers = "0.3"
    assert offered.update(check=True) == command.DONE
    assert "has 0.3; 0.2 runs" in capsys.readouterr().out
    assert len(offered.calls) == 2
    assert offered.update() == command.DONE
    assert offered.calls[2:] == [("--json=short", "check-new"), ("update", "0.3")]
    offered.offers = False
    with pytest.raises(command.ApplianceError, match="could not be read:\nno such host"):
        offered.update()


def test_version_that_was_given_up_keeps_no_other_out(command, offered, capsys):
    """It is not installed again by itself, and does not count as the newest installed one."""
    (command.KERNELS / "itree-backup_0.4+0-3.efi").touch()
    offered.offers = "0.4"
    assert offered.update(check=True) == command.NOTHING
    assert "has 0.4, which did not boot here" in capsys.readouterr().out
    assert offered.update() == command.DONE and offered.calls[-1][-1] == "check-new"
    assert dict(command.installed()) == {"0.2": None, "0.4": 0}
    assert offered.update(again=True) == command.DONE and offered.calls[-1] == ("update", "0.4")
    assert dict(command.installed()) == {"0.2": None, "0.4": 3}
    (command.KERNELS / "itree-backup_0.4+3.efi").rename(command.KERNELS / "itree-backup_0.4+0-3.efi")
    offered.offers = "0.3"
    assert offered.update() == command.DONE and offered.calls[-1] == ("update", "0.3")
    assert dict(command.installed()) == {"0.2": None, "0.3": 3}


def test_reset_wants_a_yes(command):
    with pytest.raises(command.ApplianceError, match="forgets all"):
        command.reset(type("args", (), {"yes": False, "reboot": False}))


@pytest.mark.skipif(os.geteuid(), reason="the command wants root")
@pytest.mark.parametrize("argv", [["--help"], ["update", "--help"], ["reset", "--help"]])
def test_help(argv):
    assert "usage: itree-appliance" in run(EXTRA / "usr" / "sbin" / "itree-appliance", *argv)[1]


def test_both_places_take_the_same_versions():
    """What the image is made with, what each boot looks for, and the empty place for the next version agree."""
    made, boot = REPO / "image" / "mkosi.repart", EXTRA / "usr" / "lib" / "repart.d"
    for first, second in (("10-root", "20-root"), ("11-root-verity", "21-root-verity")):
        all_three = [partition(where / f"{name}.conf") for where, name in
                     ((made, first), (boot, first), (boot, second))]  # fmt: skip
        assert len({(p["Type"], p["SizeMinBytes"], p["SizeMaxBytes"]) for p in all_three}) == 1
        assert all_three[2]["Label"] == "_empty"
    assert [p.name for p in sorted(boot.iterdir())][:3] == [p.name for p in sorted(made.iterdir())]


def test_updates_have_the_names_that_are_looked_for(tmp_path, monkeypatch):
    """The build's names and labels are those of the transfers, also for the longest version."""
    monkeypatch.setattr(BUILD, "OUT", tmp_path)
    one, other = "c65ba39cc9e872b181a89da82e49b924", "3c482ed6fcfce830143d3e8ae0d2aa3f"
    (tmp_path / f"itree-backup.root-x86-64.{one}.raw").write_bytes(b"root")
    (tmp_path / f"itree-backup.root-x86-64-verity.{other}.raw").write_bytes(b"hashes")
    (tmp_path / "itree-backup.efi").write_bytes(b"kernel")
    with BUILD.pkg.Key(None, tmp_path) as key:
        where = BUILD.update(VERSION, key)
        key.gpg("--verify", where / "SHA256SUMS.gpg", where / "SHA256SUMS")
    names = {p.name for p in where.iterdir()} - {"SHA256SUMS", "SHA256SUMS.gpg"}
    assert {line.split("  ")[1] for line in (where / "SHA256SUMS").read_text().splitlines()} == names
    transfers = EXTRA / "usr" / "lib" / "itree-appliance" / "sysupdate.d"
    labels = {partition(p).get("Label", "") for p in (REPO / "image" / "mkosi.repart").iterdir()}
    for path in transfers.iterdir():
        source, target = re.findall(r"^MatchPattern=(.*)$", path.read_text(), re.M)
        pattern = re.escape(source).replace("@v", re.escape(VERSION)).replace("@u", "[0-9a-f]{32}")
        assert [n for n in names if re.fullmatch(pattern, n)], (source, names)
        if "Type=partition" in path.read_text():
            assert target.replace("@v", "%A") in labels
            assert len(target.replace("@v", VERSION)) <= BUILD.LABEL, "GPT has no room for a longer label"


def test_systemd_takes_the_units(tmp_path):
    units_root(tmp_path, APPLIANCE, EXTRA)
    names = [p.name for p in UNITS.iterdir() if p.is_file()]
    output = run("systemd-analyze", f"--root={tmp_path}", "--man=no", "verify", *names, ok=None)[1]
    lines = [t for t in output.splitlines()
            if ("itree" in t or "efi" in t or "bless" in t) and "is not executable: No such file" not in t]  # fmt: skip
    assert not lines, "\n".join(lines)
