# SPDX-License-Identifier: GPL-2.0-only
"""The image itself, booted by firmware, boot loader and UKI: provisioned, backing up, cut from its power."""

import json
import os
import pathlib
import random
import time

import pytest
from conftest import APPLIANCE, REPO, run
from machine import IMAGE, Booted, build_image

CUTS = int(os.environ.get("ITREE_CUTS", "20"))
HOSTS = {
    "itree-backup.host.mx1": "[host]\nmethod = rsyncd\naddress = 127.0.0.1\npaths = mail\n",
    "itree-backup.host.mx2": "[host]\naddress = 127.0.0.1\npaths = /var/mailhost\n",
}
# Ours that run something.
SYSTEM = APPLIANCE / "usr" / "lib" / "systemd" / "system"
UNITS = sorted(p.name.replace("@.", "@mx1.") for p in SYSTEM.glob("*.service"))
# A client on the appliance's own loopback: a mail spool and a daemon that serves it.
CLIENT = r"""
mkdir -p /var/mailhost/cur && cd /var/mailhost/cur
python3 - <<'EOF'
import random
chance = random.Random(1)
for n in range(NUMBER):
    with open(f"17{n:07}.M{n}.mx,S=1:2,S", "wb") as out:
        out.write(chance.randbytes(chance.randrange(200, 6000)))
EOF
cat >/etc/rsyncd.conf <<'EOF'
use chroot = no
uid = 0
gid = 0
[mail]
path = /var/mailhost
EOF
systemctl enable --now rsync >/dev/null 2>&1; sync
"""

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="builds and boots an image: set ITREE_FULL=1"),
    pytest.mark.timeout(4 * 3600),
]


@pytest.fixture(scope="module")
def booted(tmp_path_factory):
    build_image(keep=True)
    made = Booted(tmp_path_factory.mktemp("image"), IMAGE, HOSTS)
    try:
        yield made.boot()
    finally:
        made.cut()


def well(machine):
    """Fail unless all units are up; the names of failed ones are told."""
    state = machine("systemctl is-system-running --wait", ok=(0, 1)).strip()
    failed = machine("systemctl --failed --no-legend --plain")
    assert state == "running" and not failed, f"{state}\n{failed}\n" + machine("journalctl -b -p warning | tail -40")


def exposure(machine):
    """What systemd-analyze makes of our units. Asked for all, it leaves out those that run once and end."""
    return machine(f"for unit in {' '.join(UNITS)}; do systemd-analyze security --no-pager $unit | tail -1; done")


def facts(machine):
    """What must be the same after every boot: volume, keys, identity."""
    files = ("/etc/machine-id", "/var/lib/itree-backup/volume", "/etc/itree-backup/ssh/id.pub",
             "/etc/ssh/ssh_host_ed25519_key.pub")  # fmt: skip
    return machine(f"blkid -s UUID -o value /dev/disk/by-partlabel/itree-backup; cat {' '.join(files)}")


def test_first_and_second_boot(booted):
    well(booted)
    header = booted("dumpe2fs -h /dev/disk/by-partlabel/itree-backup 2>/dev/null")
    assert " itree" in next(t for t in header.splitlines() if t.startswith("Filesystem features:"))
    options = booted("findmnt -no OPTIONS /srv/backup").strip().split(",")
    assert {"noatime", "nodev", "nosuid", "noexec"} <= set(options)
    assert booted("systemctl is-enabled backup@mx1.timer").strip() == "enabled"
    assert "was formatted" in booted("journalctl -b -u itree-backup-volume -o cat")
    # Nobody gets in with a password, and nobody has one.
    assert "passwordauthentication no" in booted("sshd -T")
    assert booted("awk -F: '$2 !~ /^[!*]/' /etc/shadow") == ""
    exposed = exposure(booted)
    print(exposed)
    assert exposed.count("exposure level for") == len(UNITS) and "UNSAFE" not in exposed
    first = facts(booted)
    booted.off()
    booted.boot()
    well(booted)
    assert facts(booted) == first


def test_backup(booted):
    """The unit, in its sandbox and slice, makes a good snapshot; no other host's directory is to be seen."""
    booted(CLIENT.replace("NUMBER", "2000"))
    # The group of the unit is gone when it has ended: it says itself what class its writes are in.
    booted("mkdir -p /run/systemd/system/backup@.service.d && printf '%s\\n' [Service] "
           "'ExecStopPost=/bin/sh -c \"cat /sys/fs/cgroup$$(cut -d: -f3- /proc/self/cgroup)/io.prio.class\"' "
           "> /run/systemd/system/backup@.service.d/50-tell.conf && systemctl daemon-reload")  # fmt: skip
    booted("systemctl start backup@mx1")
    assert "idle" in booted("journalctl -b -u backup@mx1 -t sh -o cat").split()
    # Not all is well: mx2 has no backup yet.
    report = json.loads(booted("itree-backup status --json", ok=(1,)))
    assert report["hosts"]["mx1"]["well"] and len(report["hosts"]["mx1"]["snapshots"]) == 1
    booted("diff -r /var/mailhost /srv/backup/mx1/2*Z")
    assert "2000 files right, 0 damaged, 0 without a recorded checksum" in booted("itree-backup verify mx1")
    assert booted("systemctl show -P Slice backup@mx1").strip() == "backup.slice"
    assert "itree_backup_last_run_success" in booted("cat /var/lib/itree-backup/metrics/*.prom")
    well(booted)


def test_backup_over_ssh(booted):
    """As the README tells the admin: the key it says for rrsync alone, the host key compared; and a restore."""
    output = booted("journalctl -b -u itree-backup-setup -o cat")
    line = next(t for t in output.splitlines() if t.startswith('restrict,command="rrsync -ro /" ssh-ed25519 '))
    # A host whose key nobody compared is not talked to.
    assert booted.ssh("systemctl start backup@mx2", ok=None)[0] != 0
    assert "known_hosts" in booted("journalctl -b -u backup@mx2 -o cat")
    booted("systemctl reset-failed; for f in /etc/ssh/ssh_host_*_key.pub; do echo \"127.0.0.1 $(cut -d' ' -f1,2 $f)\"; "
           f"done >> /etc/itree-backup/ssh/known_hosts; echo '{line}' >> /root/.ssh/authorized_keys")  # fmt: skip
    booted("systemctl start backup@mx2")
    booted("diff -r /var/mailhost /srv/backup/mx2/2*Z/var/mailhost")
    booted("mkdir /var/back && itree-backup restore mx2 latest /var/mailhost --to /var/back")
    booted("diff -r /var/mailhost /var/back/var/mailhost && rm -r /var/back")
    # The key opens nothing else.
    assert booted.ssh("ssh -o BatchMode=yes -o UserKnownHostsFile=/etc/itree-backup/ssh/known_hosts "
                      "-i /etc/itree-backup/ssh/id root@127.0.0.1 id", ok=None)[0] != 0  # fmt: skip
    well(booted)


# Fetches an address of the status page with a password, or none: prints the status and the data.
FETCH = r"""
import base64, ssl, sys, urllib.error, urllib.request
request = urllib.request.Request("https://127.0.0.1:8443" + sys.argv[1])
if len(sys.argv) > 2:
    request.add_header("Authorization", "Basic " + base64.b64encode(f"admin:{sys.argv[2]}".encode()).decode())
context = ssl.create_default_context(cafile="/etc/itree-backup/page/cert.pem")
context.check_hostname = False
try:
    answer = urllib.request.urlopen(request, context=context)
except urllib.error.HTTPError as err:
    answer = err
sys.stdout.buffer.write(b"%d\n" % answer.status + answer.read())
"""


def test_client_is_added_seen_and_given_its_files(booted):
    """The first hour: add a host, back it up, look at the page, download a file, restore to the client."""
    booted(CLIENT.replace("NUMBER", "2000"))
    booted("systemctl start itree-backup-console")
    shown = booted("cat /run/issue.d/50-itree-backup.issue")
    assert "ssh host key: SHA256:" in shown and "itree-backup password" in shown
    key = booted("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    add = f"itree-backup add self --address localhost --fingerprint {key} /var/mailhost"
    code, output = booted.ssh(add, ok=(0, 6))
    if code:
        line = next(t for t in output.splitlines() if t.startswith("restrict,"))
        output = booted(f"echo '{line}' >> /root/.ssh/authorized_keys; {add}")
    assert "the client answers" in output
    assert booted("systemctl is-enabled backup@self.timer").strip() == "enabled"
    booted("systemctl start backup@self")
    # There is no page without a password; with one, systemd starts it when it is asked for.
    assert booted("systemctl is-active itree-backup-page.socket", ok=(3,)).strip() == "inactive"
    booted("echo 'open sesame' | itree-backup password")
    booted(f"cat > /run/fetch.py <<'EOF'\n{FETCH}\nEOF")
    assert booted("python3 /run/fetch.py /").startswith("401")
    assert booted("python3 /run/fetch.py / 'open sesames'").startswith("401")
    page = booted("python3 /run/fetch.py / 'open sesame'")
    assert page.startswith("200") and "/host/self" in page
    # systemd says when the next run is, through the sandbox.
    assert page.count("UTC") and "\u2014</td>" not in page.split("/host/self")[1].split("</tr>")[0]
    name = booted("ls /srv/backup/self | grep Z$").strip()
    one = booted("ls /var/mailhost/cur | head -1").strip()
    fetch = f"python3 /run/fetch.py /file/self/{name}/var/mailhost/cur/{one} 'open sesame'"
    booted(f"{fetch} | tail -c +5 | cmp - /var/mailhost/cur/{one}")
    # What the page sees is read only, and no secret of the machine is in it.
    enter = "nsenter -r -m -t $(systemctl show -P MainPID itree-backup-page) --"
    seen = booted(f"{enter} /usr/bin/find /etc /root /home /efi /var -type f 2>/dev/null", ok=(0, 1)).split()
    # /etc/ssl, the loader's cache and the two of the configuration that it reads.
    others = [path for path in seen if not path.startswith(("/etc/ssl/", "/etc/itree-backup/hosts.d/",
                                                            "/var/lib/itree-backup/"))]  # fmt: skip
    assert set(others) <= {"/etc/itree-backup/itree-backup.conf", "/etc/ld.so.cache", "/etc/localtime",
                           "/etc/itree-backup/setup-problems"}, others  # fmt: skip
    # The key of the backups has a copy on the volume.
    booted("systemctl start backup-prepare@self && test -s /srv/backup/.itree-backup-config/now/ssh/id")
    assert booted(f"{enter} /usr/bin/find /srv/backup/.itree-backup-config", ok=(0, 1)).count("\n") == 1
    for place in ("/srv/backup", "/etc/itree-backup", "/usr", "/"):
        assert booted.ssh(f"{enter} /usr/bin/touch {place}/x", ok=None)[0] != 0
    booted("systemctl start itree-backup-console")
    assert "https://" in booted("cat /run/issue.d/50-itree-backup.issue")
    # And back: the client lets another key in, for the time being.
    booted("cp -a /var/mailhost /var/before && rm /var/mailhost/cur/17*1.M*")
    output = booted("itree-backup restore self latest --to self:", ok=(6,))
    line = next(t for t in output.splitlines() if t.startswith("restrict,"))
    booted(f"echo '{line}' >> /root/.ssh/authorized_keys")
    assert "2000 files compared and right" in booted("itree-backup restore self latest --to self:")
    booted("diff -r /var/before /var/mailhost && rm -r /var/before")
    booted("itree-backup retire self")
    well(booted)


def test_failure_is_told(booted):
    booted("systemctl stop rsync")
    assert booted.ssh("systemctl start backup@mx1", ok=None)[0] != 0
    # The unit that tells is started when the other has failed, and takes its time.
    booted("for n in $(seq 100); do journalctl -b -u backup-failure@mx1 -o cat | grep 'not sent: ' && exit; "
           "sleep 1; done; exit 1")  # fmt: skip
    booted("systemctl start rsync; systemctl reset-failed")


def test_foreign_disk(booted, tmp_path):
    """A second disk that is somebody's: the appliance boots, refuses it and says so; the disk is as it was."""
    data = booted.machine.data
    kept = data.rename(data.with_suffix(".kept"))
    try:
        booted.off()
        with open(data, "wb") as handle:
            handle.truncate(256 << 20)
        run("mke2fs", "-q", "-F", "-t", "ext4", data)
        before = run("sha256sum", data)[1]
        booted.boot()
        booted("systemctl is-system-running --wait", ok=(0, 1))
        assert "is not there" in booted("journalctl -b -u itree-backup-volume -o cat")
        assert booted.ssh("systemctl start backup@mx1", ok=None)[0] != 0
        booted.off()
        assert run("sha256sum", data)[1] == before
    finally:
        booted.cut()
        kept.rename(data)
    booted.boot()
    well(booted)


def test_grown_disk(booted):
    """The disk grew, as virtual ones do: partition and file system follow at the next boot."""
    blocks = "stat -f -c %b /srv/backup"
    was = int(booted(blocks))
    booted.off()
    with open(booted.machine.data, "r+b") as handle:
        handle.truncate(2 * handle.seek(0, 2))
    booted.boot()
    well(booted)
    assert int(booted(blocks)) > 1.9 * was


def test_larger_disk(booted):
    """One that is to take the volume's place, beside it: what is mounted is what is noted, not what has the label."""
    new = booted.machine.top / "new.raw"
    with open(new, "wb") as handle:
        handle.truncate(2 << 30)
    booted.off()
    disk = f"if=none,id=new,format=raw,discard=unmap,file={new}"
    booted.more = ("-drive", disk, "-device", "virtio-blk-pci,drive=new")
    booted.boot()
    well(booted)
    mounted = "findmnt -no PARTUUID /srv/backup"
    noted = "cat /var/lib/itree-backup/volume"
    old = booted(noted)
    assert booted(mounted) == old
    assert "was formatted" in booted("itree-backup-volume provision /dev/vdc")
    # Nothing changes below a backup that runs.
    booted("udevadm trigger --settle --subsystem-match=block")
    assert booted(mounted) == old != booted(noted)
    booted("systemctl restart itree-backup-volume && systemctl start srv-backup.mount")
    assert booted(mounted) == booted(noted) != old
    assert booted("findmnt -no SOURCE /srv/backup") == "/dev/vdc1\n"
    booted.off()
    booted.boot()
    well(booted)
    assert booted(mounted) == booted(noted) != old
    # And back.
    booted("itree-backup-volume provision /dev/vdb")
    booted.off()
    booted.more = ()
    booted.boot()
    well(booted)
    assert booted(mounted) == booted(noted) == old


def test_power_cuts(booted):
    """At random moments of a backup; each time the volume mounts, good snapshots are intact, the next run completes."""
    chance = random.Random(2)
    cut_in_run = 0
    for turn in range(CUTS):
        booted(f"cd /var/mailhost/cur && for n in $(seq 300); do head -c 4000 /dev/urandom > {turn}.$n; done; "
               f"ls | head -{20 + turn} | xargs chmod 0640; sync")  # fmt: skip
        booted("systemctl start --no-block backup@mx1")
        time.sleep(chance.uniform(0.5, 12))
        cut_in_run += "activating" in booted.ssh("systemctl is-active backup@mx1", ok=None, timeout=60)[1]
        booted.cut()
        booted.boot()
        assert booted("findmnt -no SOURCE /srv/backup").startswith("/dev/")
        assert booted("itree-backup verify mx1 --all").count(" 0 damaged, 0 without a recorded checksum")
        booted("systemctl start backup@mx1")
        booted("diff -r /var/mailhost $(ls -d /srv/backup/mx1/2*Z | tail -1)")
        assert booted("ls /srv/backup/mx1 | grep -c partial", ok=(1,)).strip() == "0"
    assert cut_in_run >= CUTS // 4, f"only {cut_in_run} of {CUTS} cuts came while a backup ran"
    booted("e4itree check --recursive /srv/backup")
    booted.off()
    # Offline too, with our e2fsck.
    part = booted.top / "part.raw"
    run("dd", f"if={booted.machine.data}", f"of={part}", "bs=1M", "skip=1", "conv=sparse", "status=none")
    sbin = pathlib.Path(REPO / "build" / "e2fsprogs" / "root" / "sbin")
    run(sbin / "e2fsck", "-fn", part)
