# SPDX-License-Identifier: GPL-2.0-only
"""Whole machines, by ssh: mail hosts there and back, an NFS server, a power cut.

With ITREE_FULL=1: without KVM each start of a machine in QEMU takes minutes, and so does each module; only there a host
goes from the distribution's kernel to ours and back. `-k uml`: what begins with our kernel, which is then a program of
this host (umlhost.py).
ITREE_MESSAGES: how many messages there are.
"""

import contextlib
import imaplib
import json
import os
import pathlib
import smtplib
import subprocess
import time

import debian_image
import machine
import machine_packages
import pytest
import umlhost
import vm
from conftest import REPO, VENV, run

FULL = os.environ.get("ITREE_FULL")
pytestmark = [
    pytest.mark.skipif(not FULL, reason="machines start slowly without KVM: set ITREE_FULL=1"),
    pytest.mark.timeout(4 * 3600),
]
MESSAGES = int(os.environ.get("ITREE_MESSAGES", "50000"))
DELIVERED = 20
SPOOL = "/srv/mail"
PEOPLE = ("anna", "berta")
PREPARE = """
set -eu
apt-get -q update
mke2fs -q -t ext4 @DATA@
echo '@DATA@ @SPOOL@ ext4 noatime 0 2' >>/etc/fstab
mkdir -p @SPOOL@
mount @SPOOL@
for name in @PEOPLE@; do
    useradd --no-create-home --home-dir @SPOOL@/$name $name
    echo $name:secret | chpasswd
    install -d -o $name -g $name -m 700 @SPOOL@/$name
done
chmod 755 @SPOOL@
postconf -e mail_spool_directory=@SPOOL@/ mailbox_command= inet_interfaces=all mynetworks=0.0.0.0/0 \
    mydestination=itree-test,localhost smtputf8_enable=no inet_protocols=ipv4
cat >/etc/dovecot/conf.d/99-itree-test.conf <<'END'
mail_location = maildir:@SPOOL@/%u
disable_plaintext_auth = no
ssl = no
listen = *
END
systemctl restart postfix dovecot
"""
FILL = """
import os, random, sys
top, number = sys.argv[1], int(sys.argv[2])
chance = random.Random(1)
owner = os.stat(top)
for n in range(number):
    text = b"From: a@b\\nSubject: %d\\n\\n" % n + chance.randbytes(chance.randrange(200, 3000)).hex().encode() + b"\\n"
    path = f"{top}/cur/17000{n:05}.M{chance.randrange(10**6)}P{n}.itree-test,S={len(text)}:2,S"
    with open(path, "wb") as handle:
        handle.write(text)
    os.chown(path, owner.st_uid, owner.st_gid)
"""
# Messages alone: Dovecot's own files change as it pleases, and so does the flag in a name.
DIGEST = "cd {} && find . -type f -path '*/cur/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum"
ORDER = """
import json, os, sys
print(json.dumps([e.inode() for e in os.scandir(sys.argv[1])]))
"""


FLAG = """
import array, fcntl, os, sys
found = 0
for entry in os.scandir(sys.argv[1]):
    if not entry.is_dir():
        continue
    fd = os.open(entry.path, os.O_RDONLY)
    flags = array.array("i", [0])
    fcntl.ioctl(fd, 0x80086601, flags, True)
    found += bool(flags[0] & 0x08000000)
    os.close(fd)
print(found)
"""


@pytest.fixture
def host(tmp_path):
    """Makes one machine; it is switched off at the end, come what may."""
    with contextlib.ExitStack() as stack:

        def make(kind=machine.Machine, **kwargs):
            made = kind(debian_image.image(), tmp_path / "machine", **kwargs)
            stack.callback(made.close)
            return made

        yield make


def put(host, text, path, mode="644"):
    """Write a file in the machine."""
    res = subprocess.run(
        ["ssh", "-F", "none", "-i", host.key, "-p", str(host.ports[22]), "-o", "StrictHostKeyChecking=no", "-o",
         "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"root@{host.address}",
         f"install -m {mode} /dev/stdin {path}"],
        input=text if isinstance(text, bytes) else text.encode(), capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert res.returncode == 0, res.stderr


def put_tree(host, directory, where):
    put(host, subprocess.run(["tar", "-C", directory, "-c", "."], capture_output=True, check=True).stdout, "/tmp/x.tar")
    host.ssh(f"mkdir -p {where} && tar -C {where} -xf /tmp/x.tar && rm /tmp/x.tar")


def fill(host, directory, number):
    host.ssh(f"mkdir -p {directory}/cur && chown --reference={directory} {directory}/cur")
    put(host, FILL, "/root/fill.py")
    host.ssh(f"python3 /root/fill.py {directory} {number}; sync", timeout=3600)


def digest(host, directory=SPOOL):
    return host.ssh(DIGEST.format(directory), timeout=3600).strip()


def inodes(host, directory):
    """The inode numbers of a directory as getdents gives them."""
    put(host, ORDER, "/root/order.py")
    return json.loads(host.ssh(f"python3 /root/order.py {directory}", timeout=1800))


def built(host, directory=SPOOL):
    """How many directories in a directory have a tree."""
    put(host, FLAG, "/root/flag.py")
    return int(host.ssh(f"python3 /root/flag.py {directory}"))


def deliver(host, number, to="anna"):
    """Send messages by SMTP."""
    with smtplib.SMTP(host.address, host.ports[25], timeout=300) as smtp:
        for n in range(number):
            smtp.sendmail("root@itree-test", [f"{to}@itree-test"], f"Subject: delivered {n}\r\n\r\ntext {n}\r\n")


def count(host, who="anna"):
    """How many messages an IMAP client sees."""
    imap = imaplib.IMAP4(host.address, host.ports[143], timeout=600)
    try:
        imap.login(who, "secret")
        kind, answer = imap.select("INBOX", readonly=True)
        assert kind == "OK", answer
        return int(answer[0])
    finally:
        with contextlib.suppress(OSError, imaplib.IMAP4.error):
            imap.logout()


def until(what, wanted, limit=600):
    end = time.monotonic() + limit
    while what() != wanted:
        assert time.monotonic() < end, f"{what()} is not {wanted} after {limit} s"
        time.sleep(3)


def mail(host, repo, release):
    """Variables of the mail host."""
    return {
        "itree_repo_url": "file:///srv/itree",
        "itree_repo_key": str(repo[1]),
        "itree_packages_apt": ["e2fsprogs", "libext2fs2"],
        "itree_kernel_reboot": True,
        # The test kernel's release has no itree in it, the broken one's has.
        "itree_kernel_pattern": f"^{release}$|itree",
        "itree_kernel_panic": 5,
        "itree_kernel_guard": 3000,
        "itree_kernel_timeout": 3600,
        "itree_feature_volumes": [{"device": host.data, "mount": SPOOL, "services": ["dovecot", "postfix"]}],
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_convert_paths": [SPOOL],
        "itree_convert_max_load": 1000.0,
        "itree_check_paths": [SPOOL],
        "itree_gate_volumes": [SPOOL],
        "itree_gate_tries": 40,
        "itree_gate_pause": 15,
    }


def play(collection, host, variables, *options, book="mail_hosts", group="mail"):
    return collection.play(f"itree.storage.{book}", {"host1": {**host.variables(), **variables}}, *options, group=group,
                           timeout=3 * 3600)  # fmt: skip


def roles(*names):
    return ("-e", json.dumps({"itree_mail_roles": names, "itree_nfs_roles": names}))


def stock_versions(host):
    return host.ssh("dpkg-query -W -f '${Package} ${Version}\n' e2fsprogs libext2fs2 logsave 'linux-image-*'")


def filled(one):
    """A mail host with messages by SMTP and many more; the digest of all."""
    prepare = PREPARE.replace("@DATA@", one.data).replace("@SPOOL@", SPOOL).replace("@PEOPLE@", " ".join(PEOPLE))
    one.ssh(prepare, timeout=1800)
    deliver(one, DELIVERED)
    until(lambda: count(one), DELIVERED)
    fill(one, f"{SPOOL}/anna", MESSAGES)
    until(lambda: count(one), DELIVERED + MESSAGES, 1800)
    return digest(one)


def imap_watch(one):
    return machine.Watch(one.address, one.ports[143], b"* OK")


def convert(collection, one, variables, before):
    """The feature in one window, the conversion in none, a second run without a change; then the same mail is there."""
    watch = imap_watch(one)
    play(collection, one, variables, *roles("feature")).good()
    away = watch.end()
    assert len(away) == 1 and watch.seen[-1][1], away
    watch = imap_watch(one)
    played = play(collection, one, variables).good()
    assert played.changed()["host1"] > 0
    assert play(collection, one, variables).good().changed() == {"host1": 0}
    assert watch.end() == [] and len(watch.seen) > 10, watch.seen

    assert digest(one) == before
    numbers = inodes(one, f"{SPOOL}/anna/cur")
    assert len(numbers) >= MESSAGES and numbers == sorted(numbers)
    assert built(one, f"{SPOOL}/anna") == 1
    one.ssh(f"e4itree check {SPOOL}/anna/cur")
    deliver(one, 5)
    until(lambda: count(one), DELIVERED + MESSAGES + 5)


def take_back(collection, one, variables, **more):
    """Roll back: refused where a volume is not named, done, and the second run changes nothing. The digest after it."""
    back = {f"itree_rollback_{k}": variables[f"itree_feature_{k}"] for k in ("volumes", "unmount", "backup_confirmed")}
    back |= {"itree_gate_services": ["dovecot", "postfix"], **more}
    back |= {k: v for k, v in variables.items() if k.startswith("itree_gate")}

    def roll_back(**other):
        return play(collection, one, {**back, **other}, book="roll_back", group="itree")

    played = roll_back(itree_rollback_volumes=[])
    played.bad(f"{one.data} has the itree feature", "Nothing was changed")
    roll_back().good()
    assert roll_back().good().changed() == {"host1": 0}
    left = one.ssh(f"dumpe2fs -h {one.data} 2>&1; ls /etc/apt/sources.list.d /etc/default/grub.d || true")
    assert "itree" not in left
    assert count(one) == DELIVERED + MESSAGES + 5
    return digest(one)


def stock_reads(one, after, point):
    """A kernel and an e2fsck that never heard of itrees: those of this host."""
    run("e2fsck", "-f", "-n", one.top / "data.img")
    point.mkdir()
    run("mount", "-t", "ext4", "-o", "loop,ro", one.top / "data.img", point)
    try:
        assert run("sh", "-c", DIGEST.format(point))[1].strip() == after
    finally:
        run("umount", point)


def test_mail_host(collection, repos, host, tmp_path):
    """The distribution's kernel and packages; a kernel that fails; the roll-out; again; and all the way back."""
    release, repo = repos
    one = host()
    one.start()
    one.wait()
    one.ssh("update-grub 2>/dev/null", timeout=1800)
    before, stock = filled(one), one.ssh("uname -r").strip()
    versions = stock_versions(one)
    variables = mail(one, repo["broken"], release)

    # A kernel that panics: tried once, and the host is back, untouched but for the package.
    put_tree(one, repo["broken"][0], "/srv/itree")
    played = play(collection, one, {**variables, "itree_kernel_reboot": False}, *roles("repo", "kernel"))
    played.bad("does not know itrees", "itree_kernel_reboot: true", "Nothing was changed")
    assert machine_packages.BROKEN not in one.ssh("ls /boot")
    played = play(collection, one, variables, *roles("repo", "kernel"))
    played.bad(f"was to boot {machine_packages.BROKEN} and runs {stock}", f"runs {stock} again, its default")
    assert "Kernel panic" in one.console.read_text(errors="replace")
    assert one.ssh("uname -r").strip() == stock
    assert "itree-kernel-guard" not in one.ssh("ls /etc/systemd/system")
    assert digest(one) == before and count(one) == DELIVERED + MESSAGES
    broken = machine_packages.FINE.format(machine_packages.BROKEN)
    one.ssh(f"apt-get -qy purge linux-image-itree {broken} && rm -r /srv/itree")

    # Check mode, then packages and kernel.
    put_tree(one, repo["good"][0], "/srv/itree")
    variables = mail(one, repo["good"], release)
    play(collection, one, variables, "--check", "--diff").good()
    assert stock_versions(one) == versions and one.ssh("uname -r").strip() == stock
    play(collection, one, variables, *roles("repo", "packages", "kernel")).good()
    assert one.ssh("uname -r").strip() == release
    assert "itree-kernel-guard" not in one.ssh("ls /etc/systemd/system")
    until(lambda: count(one), DELIVERED + MESSAGES)

    convert(collection, one, variables, before)
    after = take_back(
        collection, one, variables, itree_rollback_reboot=True, itree_rollback_timeout=3600,
        itree_rollback_kernel_pattern=variables["itree_kernel_pattern"],
    )  # fmt: skip
    assert one.ssh("uname -r").strip() == stock
    assert stock_versions(one) == versions
    one.stop()
    stock_reads(one, after, tmp_path / "mnt")


def test_mail_volume_uml(collection, repos, host, tmp_path):
    """A mail host that runs our kernel already: packages, feature, trees; again; back to the stock packages."""
    release, repo = repos
    one = host(umlhost.UmlHost)
    one.start()
    one.wait()
    before, versions = filled(one), stock_versions(one)
    put_tree(one, repo["good"][0], "/srv/itree")
    variables = mail(one, repo["good"], release)
    play(collection, one, variables, "--check", "--diff").good()
    assert stock_versions(one) == versions and digest(one) == before
    play(collection, one, variables, *roles("repo", "packages", "kernel")).good()
    assert stock_versions(one) != versions
    assert one.ssh("uname -r").strip() == one.release

    convert(collection, one, variables, before)
    after = take_back(collection, one, variables, itree_rollback_kernel=False)
    assert stock_versions(one) == versions
    one.stop()
    stock_reads(one, after, tmp_path / "mnt")


def own_kernel(host, kind):
    """A machine that needs no boot loader to come to our kernel."""
    return host(umlhost.UmlHost) if kind == "uml" else host(kernel=vm.DEFAULT_KERNEL)


KINDS = pytest.mark.parametrize("kind", ["uml", "qemu"])


def started(host, repo, release):
    """The machine with our kernel and e2fsprogs; an empty volume without the feature."""
    host.start()
    host.wait()
    put_tree(host, repo["good"][0], "/srv/itree")
    # e2fsprogs depends on the library before it is unpacked.
    host.ssh("dpkg -i /srv/itree/libext2fs2_*.deb && dpkg -i /srv/itree/e2fsprogs_*.deb")
    assert host.ssh("uname -r").strip() == (host.release or release)
    host.ssh(f"mkdir -p {SPOOL} && mke2fs -q -t ext4 {host.data} && echo '{host.data} {SPOOL} ext4 defaults 0 2' "
             f">>/etc/fstab && mount {SPOOL}")  # fmt: skip


READER = """#!/bin/sh
while test ! -e /run/enough; do
    find /client/share/cur -type f -exec cat {} + >/dev/null 2>>/run/client-errors || exit 1
    echo round >>/run/client-rounds
done
"""


@KINDS
def test_nfs_host(collection, repos, host, kind):
    """An NFS server with a client that has its export mounted throughout."""
    release, repo = repos
    one = own_kernel(host, kind)
    started(one, repo, release)
    fill(one, f"{SPOOL}/share", MESSAGES)
    one.ssh(f"echo '{SPOOL} 127.0.0.1(rw,no_root_squash,fsid=1)' >/etc/exports && systemctl restart nfs-server && "
            f"exportfs -ra && mkdir -p /client && mount -t nfs -o vers=4.2,hard 127.0.0.1:{SPOOL} /client")  # fmt: skip
    before = digest(one, SPOOL)
    assert digest(one, "/client") == before
    # A client that goes on reading, through the window too.
    put(one, READER, "/root/reader", "755")
    one.ssh("setsid /root/reader >/dev/null 2>&1 </dev/null &")
    variables = {
        "itree_feature_volumes": [{"device": one.data, "mount": SPOOL, "services": ["nfs-server"]}],
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_convert_paths": [SPOOL],
        "itree_convert_max_load": 1000.0,
        "itree_gate_volumes": [SPOOL],
        "itree_gate_tries": 40,
        "itree_gate_pause": 15,
    }
    names = roles("kernel", "feature", "convert")
    played = play(collection, one, variables, *names, book="nfs_hosts", group="nfs").good()
    assert played.changed()["host1"] > 0
    assert play(collection, one, variables, *names, book="nfs_hosts", group="nfs").good().changed() == {"host1": 0}
    one.ssh("touch /run/enough")
    until(lambda: one.ssh("pgrep -c -x reader || true").strip(), "0", 1800)
    assert one.ssh("cat /run/client-errors").strip() == ""
    assert int(one.ssh("wc -l </run/client-rounds")) > 0
    assert digest(one, SPOOL) == before == digest(one, "/client")
    one.ssh("umount /client && mount -t nfs -o vers=4.2 127.0.0.1:/srv/mail /client")
    numbers = inodes(one, "/client/share/cur")
    assert len(numbers) == MESSAGES and numbers == sorted(numbers)
    one.ssh("umount /client")
    one.stop()
    run(REPO / "build/e2fsprogs/root/sbin/e2fsck", "-f", "-n", one.top / "data.img")


DIRECTORIES, EACH = 60, 900
MANY = """
import os, sys
for d in range(int(sys.argv[2])):
    os.makedirs(f"{sys.argv[1]}/d{d:02}")
    for n in range(int(sys.argv[3])):
        with open(f"{sys.argv[1]}/d{d:02}/{n:060}", "w") as handle:
            handle.write(str(n))
"""


@KINDS
def test_power_cut(collection, repos, host, kind):
    """The plug is pulled in mid-conversion; the host comes back consistent, and the next run finishes."""
    release, repo = repos
    one = own_kernel(host, kind)
    started(one, repo, release)
    put(one, MANY, "/root/many.py")
    one.ssh(f"python3 /root/many.py {SPOOL} {DIRECTORIES} {EACH}; sync", timeout=3600)
    content = f"cd {SPOOL} && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
    before = one.ssh(content, timeout=3600)
    variables = {
        "itree_feature_volumes": [{"device": one.data, "mount": SPOOL}],
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_convert_paths": [SPOOL],
        "itree_convert_batch": 5,
        "itree_convert_max_load": 1000.0,
        "itree_gate_volumes": [SPOOL],
        "itree_nfs_services": [],
        "itree_nfs_ports": [],
    }
    everything = roles("kernel", "feature", "convert")
    play(collection, one, variables, *roles("kernel", "feature"), book="nfs_hosts", group="nfs").good()
    # As play() does it, and not waited for.
    env = {**os.environ, **collection.env, "LC_ALL": "C.UTF-8"}
    argv = [VENV / "ansible-playbook", "-i", collection.top / "inventory.json", "itree.storage.nfs_hosts", *everything]
    with open(one.top / "cut.log", "wb") as log:
        going = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                 cwd=collection.top)  # fmt: skip
        try:
            end = time.monotonic() + 1800
            while built(one) < 3:
                assert going.poll() is None and time.monotonic() < end, pathlib.Path(log.name).read_text()
            # So that some trees are there for good: what the journal has not committed yet may be gone.
            one.ssh(f"sync -f {SPOOL}")
            one.power_cut()
            code = going.wait(1800)
        finally:
            if going.poll() is None:
                going.kill()
                going.wait()
    assert code != 0, pathlib.Path(log.name).read_text()
    one.start()
    one.wait()
    done = built(one)
    assert 0 < done < DIRECTORIES, f"{done} of {DIRECTORIES} directories had a tree when the plug was pulled"
    assert one.ssh(content, timeout=3600) == before
    play(collection, one, variables, *everything, book="nfs_hosts", group="nfs").good()
    assert built(one) == DIRECTORIES
    assert one.ssh(content, timeout=3600) == before
    one.ssh(f"e4itree check -r {SPOOL}")
    assert play(collection, one, variables, *everything, book="nfs_hosts", group="nfs").good().changed() == {"host1": 0}
    one.stop()
    run(REPO / "build/e2fsprogs/root/sbin/e2fsck", "-f", "-n", one.top / "data.img")
