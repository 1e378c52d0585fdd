# SPDX-License-Identifier: GPL-2.0-only
"""Whole mail hosts, by ssh: Postfix and Dovecot, there and back.

With ITREE_FULL=1: without KVM each start of a machine in QEMU takes minutes, and so does each module; only there a host
goes from the distribution's kernel to ours and back. `-k uml`: what begins with our kernel, which is then a program of
this host (umlhost.py). More: test_nfs_machines.py, test_kernel_machines.py.
"""

import contextlib
import imaplib
import smtplib

import machine
import machine_packages
import umlhost
from hostwork import MARKS, MESSAGES, SPOOL, built, digest, fill, inodes, play, put_tree, roles, stock_reads, until

pytestmark = MARKS
DELIVERED = 20
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


def mail(host, repo, release):
    """Variables of the mail host."""
    return {
        "itree_repo_url": "file:///srv/itree",
        "itree_repo_key": str(repo[1]),
        "itree_packages_apt": ["e2fsprogs"],
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
    """Feature and trees without a refused connection, a second run without a change; then the same mail is there."""
    watch = imap_watch(one)
    play(collection, one, variables, *roles("feature")).good()
    assert "itree" in one.ssh(f"dumpe2fs -h {one.data} 2>&1")
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


def take_back(collection, one, variables, reboots=False, **more):
    """Roll back: refused where a volume is not named, done, and the second run changes nothing. The digest after it."""
    back = {f"itree_rollback_{k}": variables[f"itree_feature_{k}"] for k in ("volumes", "unmount", "backup_confirmed")}
    back |= {"itree_gate_services": ["dovecot", "postfix"], **more}
    back |= {k: v for k, v in variables.items() if k.startswith("itree_gate")}

    def roll_back(**other):
        return play(collection, one, {**back, **other}, book="roll_back", group="itree")

    played = roll_back(itree_rollback_volumes=[])
    played.bad(f"{one.data} has the itree feature", "Nothing was changed")
    watch = imap_watch(one)
    roll_back().good()
    away = watch.end()
    assert reboots or (away == [] and len(watch.seen) > 10), away
    assert roll_back().good().changed() == {"host1": 0}
    left = one.ssh(f"dumpe2fs -h {one.data} 2>&1; ls /etc/apt/sources.list.d /etc/default/grub.d || true")
    assert "itree" not in left
    assert count(one) == DELIVERED + MESSAGES + 5
    return digest(one)


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
        collection, one, variables, reboots=True, itree_rollback_reboot=True, itree_rollback_timeout=3600,
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
