# SPDX-License-Identifier: GPL-2.0-only
"""The units: systemd understands them, they are locked in as far as they can be, and what they name exists."""

import configparser
import os
import re

import pytest
from conftest import APPLIANCE, COMMAND, run, units_root
from itree_backup import volume

UNITS = APPLIANCE / "usr" / "lib" / "systemd" / "system"
# What each may reach in systemd's own scale, 10 being wide open: a bound, so that nothing gets looser unnoticed.
EXPOSURE = {
    "backup@.service": 3.0,
    "backup-prepare@.service": 2.0,
    "backup-lock@.service": 2.0,
    "backup-failure@.service": 3.2,
    "backup-alarm.service": 3.2,
    "backup-notify.service": 3.2,
    "backup-watch.service": 2.4,
    "backup-verify.service": 2.0,
    "itree-check.service": 3.2,
    "itree-pack.service": 3.2,
    "itree-arrange.service": 3.4,
    "itree-backup-page.service": 2.0,
    "itree-backup-console.service": 2.6,
    "itree-backup-volume.service": 5.6,
    "itree-backup-grow.service": 3.2,
    # It runs systemctl and writes /etc.
    "itree-backup-setup.service": 8.6,
}


def services():
    return sorted(p.name for p in UNITS.glob("*.service"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root with our files and systemd's units, for systemd-analyze."""
    return units_root(tmp_path_factory.mktemp("root"), APPLIANCE)


def test_systemd_takes_them(root):
    """systemd-analyze verify has nothing to say of ours; instances stand for templates."""
    names = [p.name.replace("@.", "@mx1.") for p in sorted(UNITS.iterdir()) if p.is_file()]
    code, output = run("systemd-analyze", f"--root={root}", "--man=no", "verify", *names, ok=None)
    ours = tuple(p.name.split("@")[0].split(".")[0] for p in UNITS.iterdir())
    # Programs of packages that the image has and this root has not.
    expected = re.compile(r"is not executable: No such file")
    lines = [t for t in output.splitlines() if any(n in t for n in ours) and not expected.search(t)]
    assert not lines, "\n".join(lines)


def test_they_start_together(root):
    """As at boot: systemd breaks a cycle of orders by leaving out a unit, and says so in the log alone."""
    names = [p.name.replace("@.", "@mx1.") for p in sorted(UNITS.iterdir()) if p.is_file() and "Install" in section(p)]
    target = root / "etc" / "systemd" / "system" / "ours.target"
    target.parent.mkdir(parents=True)
    target.write_text(f"[Unit]\nWants={' '.join(names)}\nWants=multi-user.target\n")
    output = run("systemd-analyze", f"--root={root}", "--man=no", "verify", "ours.target", ok=None)[1]
    assert "cycle" not in output, output


@pytest.mark.parametrize("name", services())
def test_security(root, name):
    """systemd-analyze security, read from the files: below the bound of each."""
    overall = run("systemd-analyze", f"--root={root}", "--offline=yes", "--no-pager", "security",
                  name.replace("@.", "@mx1."), ok=None)[1]  # fmt: skip
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", overall)
    assert match, overall
    assert float(match[1]) <= EXPOSURE[name], overall


def section(path):
    """A unit file as {section: {key: [values]}}."""
    found, here = {}, None
    for line in path.read_text().splitlines():
        if line.startswith("["):
            here = found.setdefault(line.strip("[]"), {})
        elif "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            here.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", services())
def test_commands_exist(name):
    """What a unit starts is there, with arguments that it takes."""
    unit = section(UNITS / name)
    for line in unit["Service"]["ExecStart"] + unit["Service"].get("ExecStartPre", []):
        program, *args = line.lstrip("+-").split()
        # Of other packages.
        if program in ("/usr/sbin/e4itree", "/usr/lib/systemd/systemd-growfs", "/usr/bin/gunicorn"):
            continue
        path = APPLIANCE / program.lstrip("/")
        assert os.access(path, os.X_OK), path
        code, output = run(path, *[a.replace("%i", "mx1") for a in args], "--help", ok=None)
        assert code == 0 and "usage:" in output
    handlers = unit["Unit"].get("OnFailure", [])
    assert all((UNITS / t.replace("%i", "")).exists() for t in handlers)
    # Who fails is told of, but for those that tell.
    telling = ("backup-failure@.service", "backup-alarm.service", "backup-notify.service")
    if name not in telling and not name.startswith("itree-backup-"):
        assert handlers


def test_nothing_backs_up_beside_the_volume():
    """Whatever writes snapshots needs the mount; the mount needs the fsck and the look at the disk."""
    on_volume = ("backup@", "backup-verify", "itree-check", "itree-pack", "itree-arrange", "backup-watch")
    for name in on_volume:
        assert section(UNITS / f"{name}.service")["Unit"]["RequiresMountsFor"] == ["/srv/backup"]
    unit = section(UNITS / "srv-backup.mount")
    assert "itree-backup-volume.service" in unit["Unit"]["Requires"] + unit["Unit"]["After"]
    fsck = [v for v in unit["Unit"]["Requires"] if v.startswith("systemd-fsck@")]
    assert fsck and fsck[0] in unit["Unit"]["After"]
    # One name for what is checked and what is mounted.
    name = run("systemd-escape", "--path", unit["Mount"]["What"][0])[1].strip()
    assert fsck == [f"systemd-fsck@{name}.service"]
    assert {"noatime", "nodev", "nosuid", "errors=remount-ro"} <= set(unit["Mount"]["Options"][0].split(","))


def test_the_chosen_partition_is_mounted():
    """The service notes it where the udev rule looks, which gives the name that is mounted to it alone."""
    rule = (UNITS.parents[1] / "udev" / "rules.d" / "61-itree-backup-volume.rules").read_text().splitlines()[-1]
    assert f'TEST=="{volume.RUN}/$env{{ID_PART_ENTRY_UUID}}"' in rule and 'ENV{ID_PART_ENTRY_UUID}=="?*"' in rule
    assert f'SYMLINK+="{volume.LINK.relative_to("/dev")}"' in rule
    assert section(UNITS / "srv-backup.mount")["Mount"]["What"] == [str(volume.LINK)]
    service = section(UNITS / "itree-backup-volume.service")["Service"]
    assert [f"/run/{d}" for d in service["RuntimeDirectory"]] == [str(volume.RUN)]


def test_a_run_sees_the_volume():
    """Its /srv is a tmpfs: what is bound into it must be there, and is made by a unit that sees the volume itself."""
    unit = section(UNITS / "backup@.service")
    assert unit["Service"]["BindPaths"] == ["/srv/backup/%i"]
    assert unit["Service"]["BindReadOnlyPaths"] == ["/srv/backup/.itree-backup-volume"]
    assert unit["Service"]["ExecStartPre"] == ["+/usr/lib/itree-backup/write-behind-idle"]
    assert unit["Unit"]["Requires"] == ["backup-prepare@%i.service"]
    assert "backup-prepare@%i.service" in unit["Unit"]["After"][0].split()
    assert "TemporaryFileSystem" not in section(UNITS / "backup-prepare@.service")["Service"]


def test_the_page_has_a_root_of_its_own():
    """It may read all files, so it must not see them. systemd ignores TemporaryFileSystem=/ without a word."""
    for path in UNITS.glob("*.service"):
        words = " ".join(section(path)["Service"].get("TemporaryFileSystem", [])).split()
        assert "/" not in [word.partition(":")[0] for word in words], path.name
    service = section(UNITS / "itree-backup-page.service")["Service"]
    made = (UNITS.parents[1] / "tmpfiles.d" / "itree-backup.conf").read_text().splitlines()[-1].split()
    # Root's, so that the page cannot write even there.
    assert made == ["d", service["RootDirectory"][0], "0755", "root", "root"]
    user = (UNITS.parents[1] / "sysusers.d" / "itree-backup.conf").read_text().splitlines()[-1].split()[1]
    assert service["User"] == [user]
    shown = " ".join(service["BindReadOnlyPaths"])
    assert "BindPaths" not in service and "ssh" not in shown and "/etc/itree-backup " not in f"{shown} "


def test_whatever_reads_the_volume_is_in_the_idle_class():
    """Runs, verification and checks are in the slice, and wait for other readers of the disk."""
    units = {p.name: section(p)["Service"] for p in UNITS.glob("*.service")}
    inside = {name for name, service in units.items() if service.get("Slice") == ["backup.slice"]}
    assert inside >= {"backup@.service", "backup-verify.service", "itree-check.service"}
    assert {name for name, service in units.items() if service.get("IOSchedulingClass") == ["idle"]} >= inside
    rules = (UNITS.parents[1] / "udev" / "rules.d" / "60-itree-backup.rules").read_text()
    assert 'ATTR{queue/scheduler}="mq-deadline"' in rules


def test_one_unit_alone_unlocks_snapshots():
    """It starts after each run, whatever its outcome."""
    for path in UNITS.glob("*.service"):
        (bound,) = section(path)["Service"].get("CapabilityBoundingSet", [""])
        assert bound, f"{path.name} has all capabilities"
        unlocks = ("CAP_LINUX_IMMUTABLE" in bound) != bound.startswith("~")
        assert unlocks == (path.name == "backup-lock@.service"), path.name
    unit = section(UNITS / "backup@.service")["Unit"]
    assert "backup-lock@%i.service" in unit["OnSuccess"] and "backup-lock@%i.service" in unit["OnFailure"]


def test_timers():
    for path in UNITS.glob("*.timer"):
        for when in section(path)["Timer"].get("OnCalendar", []):
            run("systemd-analyze", "calendar", when)
    preset = (UNITS.parent / "system-preset" / "80-itree-backup.preset").read_text()
    off = ("itree-arrange.timer",)
    for path in UNITS.iterdir():
        if path.is_file() and "Install" in section(path) and "@" not in path.name:
            assert f"{'disable' if path.name in off else 'enable'} {path.name}\n" in preset


def test_setup(tmp_path):
    """Credentials become configuration; a key is made once; what is wrong in them is told."""
    conf, creds = tmp_path / "etc", tmp_path / "creds"
    creds.mkdir()
    settings = configparser.ConfigParser()
    settings.read(APPLIANCE / "usr" / "lib" / "itree-backup" / "itree-backup.conf")
    settings["volume"]["directory"] = str(tmp_path / "volume")
    with open(creds / "itree-backup.conf", "w") as handle:
        settings.write(handle)
    (creds / "itree-backup.host.mx1").write_text("[host]\npaths = /srv/mail")
    (creds / "itree-backup.known-hosts").write_text("mx1 ssh-ed25519 AAAA")
    (creds / "something.else").write_text("x")
    env = {"CREDENTIALS_DIRECTORY": str(creds)}
    argv = (COMMAND, "--config", conf, "setup", "--no-timers")
    output = run(*argv, env=env)[1]
    assert "hosts: mx1" in output and "something.else: not one of ours" in output and "is not mounted" in output
    key = (conf / "ssh" / "id").read_text()
    assert (conf / "ssh" / "id").stat().st_mode & 0o777 == 0o600
    assert (conf / "ssh" / "id.pub").read_text().strip() in output
    # An admin's own file stays; the key does not change; a credential that is gone takes nothing with it.
    (conf / "hosts.d" / "own.conf").write_text("[host]\npaths = /srv")
    assert "hosts: mx1, own" in run(*argv)[1]
    assert (conf / "ssh" / "id").read_text() == key
    (creds / "itree-backup.host.bad").write_text("[host]\npath = /srv")
    assert "unknown key 'path'" in run(*argv, env=env, ok=(2,))[1]
    (creds / "itree-backup.host...").write_text("[host]\n")
    assert "cannot be the name of a host" in run(*argv, env=env, ok=(2,))[1]
