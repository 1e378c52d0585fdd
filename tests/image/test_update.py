# SPDX-License-Identifier: GPL-2.0-only
"""The image's versions: updated from a signed directory or address, fallen back from, set back, cut from the power."""

import os
import random
import re
import shutil
import subprocess
import time

import pkg
import pytest
import treebuild as tb
from conftest import REPO, run
from machine import IMAGE, SLOW, Booted, build_image

BUILD = tb.load_script(REPO / "image" / "build")
CUTS = int(os.environ.get("ITREE_CUTS", "20"))
HOST = {"itree-backup.host.mx1": "[host]\nmethod = rsyncd\naddress = 127.0.0.1\npaths = mail\n"}
V1, V2, V3 = "0.1", "0.2", "0.3"

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="builds and boots images: set ITREE_FULL=1"),
    pytest.mark.timeout(4 * 3600),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Images of two versions from the same packages: (image of the first, update to the second)."""
    top = tmp_path_factory.mktemp("built")
    for version in (V1, V2):
        build_image(ITREE_RELEASE=version)
        if version == V1:
            run("cp", "--sparse=always", IMAGE, top / "v1.raw")
    shutil.copytree(BUILD.OUT / "update", top / "update")
    IMAGE.unlink()  # that of V2 is not the checkout's
    return top / "v1.raw", top / "update"


@pytest.fixture(scope="module")
def key():
    with pkg.Key(None, REPO / "build" / "packages") as made:
        yield made


def flip(path, at):
    """Change one byte of a file."""
    with open(path, "r+b") as handle:
        handle.seek(at)
        (byte,) = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte ^ 1]))


def panicking(update, where, key):
    """An update to a third version whose kernel panics: it is to start a program that ends."""
    where.mkdir()
    kernel = (update / f"itree-backup_{V2}.efi").read_bytes()
    old, new = b"systemd.show_status=yes", b"rdinit=/bin/false"
    assert kernel.count(old) == 1
    (where / f"itree-backup_{V3}.efi").write_bytes(kernel.replace(old, new.ljust(len(old))))
    for number, kind in enumerate(("root", "root-verity")):
        path = where / f"itree-backup_{V3}_{number + 1:032x}.{kind}.raw"
        path.write_bytes(os.urandom(1 << 20))
        run("xz", path)
    BUILD.sign(where, key)


@pytest.fixture(scope="module")
def updates(built, key, tmp_path_factory):
    """A disk with directories of updates: good, and each bad in its own way."""
    top = tmp_path_factory.mktemp("updates")
    good = top / "good"
    shutil.copytree(built[1], good)
    root = next(p.name for p in good.iterdir() if p.name.endswith(".root.raw.xz"))
    kernel = f"itree-backup_{V2}.efi"
    for name in ("flipped", "flipped-kernel", "unsigned", "stranger", "later"):
        shutil.copytree(good, top / name, copy_function=os.link)
    for name, file in (("flipped", root), ("flipped-kernel", kernel), ("later", kernel)):
        path = top / name / file
        path.unlink()
        shutil.copy(good / file, path)
        flip(path, path.stat().st_size // 2)
    (top / "unsigned" / "SHA256SUMS.gpg").unlink()
    for name in ("stranger", "later"):
        for file in ("SHA256SUMS", "SHA256SUMS.gpg"):
            (top / name / file).unlink()
    # Sums that agree with a changed kernel, below the signature of those before.
    BUILD.sign(top / "later", key)
    shutil.copy(good / "SHA256SUMS.gpg", top / "later")
    with pkg.Key(None, tmp_path_factory.mktemp("stranger")) as other:
        BUILD.sign(top / "stranger", other)
    panicking(good, top / "panics", key)
    disk = tmp_path_factory.mktemp("disk") / "updates.img"
    run("mke2fs", "-q", "-t", "ext4", "-d", top, disk, "3G")
    return disk


@pytest.fixture(scope="module")
def start(built, updates, tmp_path_factory):
    """Make a machine of the first version, with the disk of updates; none of them is left running."""
    made = []

    def one():
        machine = Booted(tmp_path_factory.mktemp("machine"), built[0], HOST)
        machine.more = ("-drive", f"if=none,id=updates,format=raw,readonly=on,file={updates}",
                        "-device", "virtio-blk-pci,drive=updates,serial=updates")  # fmt: skip
        made.append(machine)
        return machine.boot()

    try:
        yield one
    finally:
        for machine in made:
            machine.cut()


@pytest.fixture(scope="module")
def booted(start):
    return start()


def mounted(machine):
    machine("mountpoint -q /mnt || mount -o ro /dev/disk/by-id/virtio-updates /mnt")
    return machine


def versions(machine):
    """{version: words of itree-appliance status}."""
    return dict(line.split("  ", 1) for line in machine("itree-appliance status").splitlines())


def proved(machine):
    """Wait until the version that runs counts as good."""
    end = time.monotonic() + SLOW
    while "not proved" in (output := machine("itree-appliance status").splitlines()[0]):
        assert time.monotonic() < end, output + machine(
            "systemctl status --no-pager 'systemd-bless*' 'itree-appl*'", ok=None
        )
        time.sleep(2)


def facts(machine):
    """What an update leaves as it is: identity, keys, hosts, a setting of the admin's, the volume."""
    files = ("/etc/machine-id", "/etc/itree-backup/ssh/id.pub", "/etc/ssh/ssh_host_ed25519_key.pub",
             "/etc/itree-backup/hosts.d/mx1.conf", "/etc/motd", "/var/lib/itree-backup/volume")  # fmt: skip
    return machine(f"sha256sum {' '.join(files)}; cat /srv/backup/kept")


@pytest.mark.parametrize("name", ["flipped", "flipped-kernel", "unsigned", "stranger", "later"])
def test_bad_update_is_refused(booted, name):
    mounted(booted)
    code, output = booted.ssh(f"itree-appliance update --from /mnt/{name}", ok=None)
    assert code == 1 and "itree-appliance: " in output, output
    assert versions(booted) == {V1: "runs now"}
    assert booted("ls /efi/EFI/Linux") == f"itree-backup_{V1}.efi\n"
    assert "ro" in booted("findmnt -no OPTIONS /efi").strip().split(",")


def test_update_keeps_what_was_set_up(booted):
    mounted(booted)
    booted("echo 'our own words' > /etc/motd; date > /srv/backup/kept; sync")
    before = facts(booted)
    assert booted("itree-appliance update --from /mnt/good --check").startswith(f"file:///mnt/good has {V2}; {V1} runs")
    assert f"{V2} is installed" in booted("itree-appliance update --from /mnt/good")
    assert versions(booted) == {V1: "runs now", V2: "not proved yet, 3 tries left"}
    booted.off()
    booted.boot()
    proved(booted)
    assert versions(booted) == {V2: "runs now", V1: "installed"}
    assert facts(booted) == before
    state = booted("systemctl is-system-running --wait", ok=(0, 1)).strip()
    assert state == "running", booted("systemctl --failed --no-legend --plain")
    mounted(booted)
    assert booted.ssh("itree-appliance update --from /mnt/good --check", ok=None)[0] == 3


def test_update_from_an_address(booted):
    mounted(booted)
    booted("systemd-run --unit=web -p WorkingDirectory=/mnt python3 -m http.server --bind 127.0.0.1 8000")
    booted("printf '[update]\\nfrom = http://127.0.0.1:8000/panics\\n' > /etc/itree-appliance.conf; "
           "until echo >/dev/tcp/127.0.0.1/8000; do sleep 1; done")  # fmt: skip
    assert f"has {V3}" in booted("itree-appliance update --check")
    assert booted.ssh("itree-appliance update --check --from http://127.0.0.1:8000/stranger", ok=None)[0] == 1
    booted("systemctl stop web")


def test_version_that_panics_is_left_by_itself(booted):
    mounted(booted)
    before = facts(booted)
    booted("itree-appliance update --from /mnt/panics")
    assert versions(booted)[V3] == "not proved yet, 3 tries left"
    booted.off()
    panics = 0
    while panics <= 3:
        try:
            booted.boot()
            break
        except AssertionError:  # the machine is started with -no-reboot
            assert "Kernel panic" in booted.tail(), booted.tail()
            panics += 1
    assert panics == 3
    assert versions(booted) == {V2: "runs now", V3: "does not boot: given up"}
    booted("systemctl start itree-appliance-check")
    assert f"version {V3} of the appliance does not boot" in booted("itree-backup status", ok=(0, 1))
    mounted(booted)
    assert "was given up" in booted("itree-appliance update --from /mnt/panics")
    assert versions(booted) == {V2: "runs now", V3: "does not boot: given up"}
    assert facts(booted) == before


def test_changed_byte_of_usr_is_noticed(booted):
    """A block of the root that was changed on the disk cannot be read; the rest can."""
    path = "/usr/share/doc/bash/changelog.Debian.gz"
    data = bytes.fromhex(booted(f"od -An -v -tx1 {path} | tr -d ' \\n'"))
    booted.off()
    disk = booted.machine.root
    with open(disk, "rb") as handle:
        places, offset, mark = [], 0, data[100:200]
        while chunk := handle.read(64 << 20):
            at = chunk.find(mark)
            if at >= 0:
                places.append(offset + at)
            offset += len(chunk)
    assert places, f"{path} is not on the disk as it is"
    for at in places:
        flip(disk, at)
    try:
        booted.boot()
        code, output = booted.ssh(f"cat {path} >/dev/null", ok=None)
        assert code == 1 and "Input/output error" in output
        assert "is corrupted" in booted("journalctl -b -k -o cat | grep verity")
        booted.off()
    finally:
        for at in places:
            flip(disk, at)
    booted.boot()
    booted(f"cat {path} >/dev/null")


def test_reset(booted):
    """Hosts and identity are those of a new machine; what the first partition has takes effect; backups stay."""
    identity = booted("cat /etc/machine-id")
    kept = booted("cat /srv/backup/kept")
    assert booted.ssh("itree-appliance reset", ok=None)[0] == 2
    booted("itree-appliance reset --yes")
    booted.off()
    booted.boot()
    assert booted("cat /etc/machine-id") != identity
    assert "our own words" not in booted("cat /etc/motd")
    assert booted("cat /srv/backup/kept") == kept
    assert booted("ls /etc/itree-backup/hosts.d") == "mx1.conf\n"
    booted.off()
    identity = booted.boot()("cat /etc/machine-id")
    booted.off()
    assert booted.boot()("cat /etc/machine-id") == identity


def test_power_cuts(start):
    """At random moments of an update: each boot brings the old version or the new one; the next update goes through."""
    chance = random.Random(5)
    machine, done, took = start(), 0, 60.0
    for turn in range(CUTS):
        mounted(machine)
        begun = time.monotonic()
        machine("systemd-run --unit=update --collect itree-appliance update --from /mnt/good")
        time.sleep(chance.uniform(0, took))
        machine.cut()
        machine.boot()
        found = versions(machine)
        assert found.get(V1, "").startswith("runs now") or found[V2].startswith("runs now"), found
        if found.get(V2, "").startswith("runs now"):
            proved(machine)
            machine.cut()
            machine, done = start(), done + 1
        elif turn == 0:
            # How long it takes here, whole.
            mounted(machine)
            begun = time.monotonic()
            machine("itree-appliance update --from /mnt/good")
            took = time.monotonic() - begun
            machine.cut()
            machine.boot()
            assert versions(machine)[V2].startswith("runs now")
            machine.cut()
            machine = start()
    print(f"{CUTS} cuts, {done} of them behind the end of the update")
    mounted(machine)
    machine("itree-appliance update --from /mnt/good")
    machine.off()
    machine.boot()
    assert versions(machine)[V2].startswith("runs now")


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """A key of the owner's with its certificate, in one file, and the certificate alone."""
    top = tmp_path_factory.mktemp("owner")
    key, cert, both = (top / n for n in ("key.pem", "cert.pem", "both.pem"))
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=itree TEST owner",
        "-keyout", key, "-out", cert)  # fmt: skip
    both.touch(mode=0o600)
    both.write_text(key.read_text() + cert.read_text())
    return both, cert


def test_secure_boot(owner, tmp_path):
    """Signed with the owner's key it boots where that key is enrolled; with a kernel that was changed it does not."""
    both, cert = owner
    build_image("--efi-key", both, ITREE_RELEASE=V1)
    machine = Booted(tmp_path, IMAGE, HOST, certificate=cert)
    IMAGE.unlink()
    try:
        machine.boot()
        assert "Secure Boot: enabled" in machine("bootctl status --no-pager")
        machine.off()
        run("mcopy", "-n", "-i", f"{machine.machine.root}@@1M", f"::/EFI/Linux/itree-backup_{V1}.efi", tmp_path / "uki")
        flip(tmp_path / "uki", (tmp_path / "uki").stat().st_size // 2)
        run("mcopy", "-o", "-i", f"{machine.machine.root}@@1M", tmp_path / "uki", f"::/EFI/Linux/itree-backup_{V1}.efi")
        argv = machine.machine.argv("1G", f"file:{machine.console}", more=())
        proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        try:
            end, output = time.monotonic() + SLOW, ""
            while time.monotonic() < end and not re.search("denied|violation|linux version", output):
                time.sleep(2)
                output = machine.tail().lower()
            assert re.search("access denied|security violation", output), output
        finally:
            proc.kill()
            proc.wait()
    finally:
        machine.cut()
