# SPDX-License-Identifier: GPL-2.0-only
"""Whole NFS servers, by ssh: with apt, with dnf, and with the plug pulled. As test_mail_machines.py."""

import os
import pathlib
import subprocess
import time

import machine_packages
import repositories
import umlhost
from conftest import REPO, VENV, run
from hostwork import (
    KINDS,
    MARKS,
    MESSAGES,
    SPOOL,
    built,
    digest,
    fill,
    inodes,
    own_kernel,
    play,
    put,
    put_tree,
    roles,
    started,
    stock_reads,
    until,
)

pytestmark = MARKS
FEDORA = """
set -eu
rm -f /etc/os-release
printf 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=42\n' >/etc/os-release
echo 'Fedora release 42 (test)' | tee /etc/fedora-release >/etc/redhat-release
mkdir -p /etc/dnf/vars /etc/rpm /etc/yum.repos.d /etc/pki/rpm-gpg /var/lib/rpm
echo 42 >/etc/dnf/vars/releasever
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros
printf '[stock]\nname=stock\nbaseurl=file:///srv/stock\ngpgcheck=0\nmetadata_expire=0\n' >/etc/yum.repos.d/stock.repo
# Fedora's libraries lie there, and its loader looks there.
printf '/usr/lib64\ninclude /etc/ld.so.conf.d/*.conf\n' >/etc/ld.so.conf
dnf -qy install test-base e2fsprogs
"""
RPMS = "rpm -qa --qf '%{NAME}-%{VERSION}\\n' | grep -v gpg-pubkey | sort"


def in_order(one):
    """Local listings come in the order of the inodes; NFS clients get the same names, in hash order."""
    numbers = inodes(one, f"{SPOOL}/share/cur")
    assert len(numbers) == MESSAGES and numbers == sorted(numbers)
    assert sorted(inodes(one, "/client/share/cur")) == numbers


def fedora(one, top, ours):
    """Debian with the names of Fedora: dnf, rpm's database, a distribution's e2fsprogs. Ours lie in /srv/itree."""
    rpms = [next(ours.glob(f"e2fsprogs-itree-{which}.x86_64.rpm")) for which in ("[0-9]*", "libs-*")]
    top.mkdir()
    put_tree(one, repositories.dnf_distribution(top, rpms), "/srv/stock")
    put_tree(one, ours, "/srv/itree")
    one.ssh(FEDORA, timeout=1800)


def test_nfs_host_dnf_uml(collection, host, tmp_path):
    """An NFS server whose packages are RPMs: the site playbook, again, and the way back."""
    ours, key = machine_packages.e2fsprogs_rpms(tmp_path)
    one = host(umlhost.UmlHost)
    one.start()
    one.wait()
    fedora(one, tmp_path / "stock", ours)
    had = one.ssh(RPMS)
    assert "e2fsprogs-1.47.0" in had and "e2fsprogs-itree" not in had
    one.ssh(f"mkdir -p {SPOOL} && mke2fs -q -t ext4 {one.data} && echo '{one.data} {SPOOL} ext4 defaults 0 2' "
            f">>/etc/fstab && mount {SPOOL}")  # fmt: skip
    fill(one, f"{SPOOL}/share", MESSAGES)
    one.ssh(EXPORT)
    before = digest(one)
    variables = {
        "itree_repo_url": "file:///srv/itree",
        "itree_repo_key": str(key),
        "itree_packages_dnf": ["e2fsprogs-itree"],
        "itree_kernel_pattern": f"^{one.release}$|itree",
        "itree_check_paths": [SPOOL],
        **share(one),
    }
    names = roles("repo", "packages", "feature", "convert", "check")

    def site(*options):
        return play(collection, one, variables, *names, *options, book="nfs_hosts", group="nfs")

    site("--check", "--diff").good()
    assert one.ssh(RPMS) == had
    assert site().good().changed()["host1"] > 0
    assert site().good().changed() == {"host1": 0}
    assert "e2fsprogs-itree-libs" in one.ssh(RPMS)
    one.ssh("rpm -V --noconfig e2fsprogs-itree e2fsprogs-itree-libs && e4itree check /srv/mail/share/cur")
    assert digest(one) == before == digest(one, "/client")
    one.ssh("umount /client && mount -t nfs -o vers=4.2 127.0.0.1:/srv/mail /client")
    in_order(one)
    one.ssh("umount /client")

    back = {f"itree_rollback_{k}": variables[f"itree_feature_{k}"] for k in ("volumes", "unmount", "backup_confirmed")}
    back |= {"itree_gate_services": ["nfs-server"], "itree_gate_volumes": [SPOOL], "itree_rollback_kernel": False}

    def roll_back():
        return play(collection, one, back, book="roll_back", group="itree")

    roll_back().good()
    assert roll_back().good().changed() == {"host1": 0}
    assert one.ssh(RPMS) == had
    left = one.ssh(f"dumpe2fs -h {one.data} 2>&1; ls /etc/yum.repos.d /etc/systemd/system")
    assert "itree" not in left
    after = digest(one)
    assert after == before
    one.stop()
    stock_reads(one, after, tmp_path / "mnt")


SERVER = "systemctl show -p InvocationID -p NRestarts nfs-server"
READER = """#!/bin/sh
while test ! -e /run/enough; do
    find /client/share/cur -type f -exec cat {} + >/dev/null 2>>/run/client-errors || exit 1
    echo round >>/run/client-rounds
done
"""


EXPORT = f"""
set -eu
echo '{SPOOL} 127.0.0.1(rw,no_root_squash,fsid=1)' >/etc/exports
systemctl restart nfs-server
exportfs -ra
mkdir -p /client
mount -t nfs -o vers=4.2,hard 127.0.0.1:{SPOOL} /client
"""


def share(one):
    """Variables of a host that exports its volume."""
    return {
        "itree_feature_volumes": [{"device": one.data, "mount": SPOOL, "services": ["nfs-server"]}],
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_convert_paths": [SPOOL],
        "itree_convert_max_load": 1000.0,
        "itree_gate_volumes": [SPOOL],
        "itree_gate_tries": 40,
        "itree_gate_pause": 15,
    }


@KINDS
def test_nfs_host(collection, repos, host, kind):
    """An NFS server with a client that reads throughout: the feature on, trees, off and on again, without a pause."""
    release, repo = repos
    one = own_kernel(host, kind)
    started(one, repo, release)
    fill(one, f"{SPOOL}/share", MESSAGES)
    one.ssh(EXPORT)
    before = digest(one, SPOOL)
    assert digest(one, "/client") == before
    # A client that goes on reading.
    put(one, READER, "/root/reader", "755")
    one.ssh("setsid /root/reader >/dev/null 2>&1 </dev/null &")
    variables = share(one)
    server = one.ssh(SERVER)

    def site(*names, **more):
        return play(collection, one, variables | more, *roles(*names), book="nfs_hosts", group="nfs").good().changed()

    assert site("kernel", "feature", "convert")["host1"] > 0
    assert site("kernel", "feature", "convert") == {"host1": 0}
    assert site("feature", itree_feature_state="absent")["host1"] > 0
    assert "itree" not in one.ssh(f"dumpe2fs -h {one.data} 2>&1 | grep features")
    assert site("kernel", "feature", "convert")["host1"] > 0
    assert one.ssh(SERVER) == server, "the server was started again"
    one.ssh("touch /run/enough")
    until(lambda: one.ssh("pgrep -c -x reader || true").strip(), "0", 1800)
    assert one.ssh("cat /run/client-errors").strip() == ""
    assert int(one.ssh("wc -l </run/client-rounds")) > 0
    assert digest(one, SPOOL) == before == digest(one, "/client")
    one.ssh("umount /client && mount -t nfs -o vers=4.2 127.0.0.1:/srv/mail /client")
    in_order(one)
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
