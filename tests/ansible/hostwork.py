# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of whole machines do on them: files to and fro, listings, digests, plays.

ITREE_MESSAGES: how many messages there are.
"""

import json
import os
import subprocess
import time

import pytest
import umlhost
import vm
from conftest import run

# What every module of these tests has as its pytestmark.
MARKS = [
    pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="machines start slowly without KVM: set ITREE_FULL=1"),
    pytest.mark.timeout(4 * 3600),
]
MESSAGES = int(os.environ.get("ITREE_MESSAGES", "50000"))
SPOOL = "/srv/mail"
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


def until(what, wanted, limit=600):
    end = time.monotonic() + limit
    while what() != wanted:
        assert time.monotonic() < end, f"{what()} is not {wanted} after {limit} s"
        time.sleep(3)


def play(collection, host, variables, *options, book="mail_hosts", group="mail"):
    return collection.play(f"itree.storage.{book}", {"host1": {**host.variables(), **variables}}, *options, group=group,
                           timeout=3 * 3600)  # fmt: skip


def roles(*names):
    return ("-e", json.dumps({"itree_mail_roles": names, "itree_nfs_roles": names}))


def stock_reads(one, after, point):
    """A kernel and an e2fsck that never heard of itrees: those of this host."""
    run("e2fsck", "-f", "-n", one.top / "data.img")
    point.mkdir()
    run("mount", "-t", "ext4", "-o", "loop,ro", one.top / "data.img", point)
    try:
        assert run("sh", "-c", DIGEST.format(point))[1].strip() == after
    finally:
        run("umount", point)


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
