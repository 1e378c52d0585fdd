# SPDX-License-Identifier: GPL-2.0-only
"""Adding a client, giving files back to it, and retiring it."""

import os
import pty
import re
import shutil
import stat
import subprocess

import pytest
from conftest import fill, maildir, run, same, state


@pytest.fixture
def client(appliance, tmp_path):
    """A client's directory and its sshd's port. It lets no key in yet, and the appliance knows no host key."""
    top = tmp_path / "client"
    maildir(top / "mail", 30)
    fill(top, "etc")
    number = appliance.servers.ssh(appliance.conf)
    (appliance.conf / "ssh" / "known_hosts").unlink()
    (appliance.conf / "ssh" / "id.pub").write_text("")
    appliance.settings()
    return top, number


def fingerprint(appliance):
    """The host key's fingerprint, as the admin reads it on the client."""
    return re.search(r"SHA256:\S+", run("ssh-keygen", "-l", "-f", appliance.servers.top / "host_key.pub")[1])[0]


def add(appliance, number, *more, ok=(0,), name="mx1", **kwargs):
    return appliance("add", name, "--address", "127.0.0.1", "--port", number, "--no-timers", *more, ok=ok, **kwargs)


def let_in(appliance, output):
    """Do on the client what `add` or `restore` asks for."""
    line = next(line for line in output.splitlines() if line.startswith("restrict,"))
    with open(appliance.conf / "ssh" / "id.pub", "a") as handle:
        handle.write(line + "\n")
    return line


def added(appliance, client):
    top, number = client
    key = ("--fingerprint", fingerprint(appliance))
    output = add(appliance, number, top / "mail", top / "etc", *key, ok=(6,))
    let_in(appliance, output)
    return add(appliance, number, top / "mail", top / "etc", *key)


def test_add_and_first_backup(appliance, client):
    """Refused first, with the line that the client lacks; then added; then backed up, through rrsync."""
    top, number = client
    output = add(appliance, number, top / "mail", "--fingerprint", fingerprint(appliance), ok=(6,))
    assert "host key SHA256:" in output and "Run the same command again once that line is there" in output
    assert not list((appliance.conf / "hosts.d").iterdir())
    assert 'command="rrsync -ro /"' in let_in(appliance, output)
    no_index = ("--exclude", "dovecot.index*")
    output = add(appliance, number, top / "mail", *no_index, "--fingerprint", fingerprint(appliance))
    assert f"the client answers, and has {top}/mail" in output and "accepted" not in output
    assert stat.S_IMODE((appliance.conf / "hosts.d" / "mx1.conf").stat().st_mode) == 0o600
    assert " is good: " in appliance("run", "mx1")
    same(state(top / "mail"), state(appliance.good("mx1")[0] / str(top).strip("/") / "mail"))
    assert "there is a host 'mx1' already" in add(appliance, number, top / "mail", ok=(2,))


@pytest.mark.parametrize("case", ["fingerprint", "no terminal", "changed", "another address", "known"])
def test_host_key_that_is_not_confirmed(appliance, client, case):
    top, number = client
    known = appliance.conf / "ssh" / "known_hosts"
    if case == "fingerprint":
        output = add(appliance, number, top / "mail", "--fingerprint", "SHA256:" + "A" * 43, ok=(6,))
        assert "no host key of the client has the fingerprint" in output
    elif case == "no terminal":
        output = add(appliance, number, top / "mail", ok=(6,))
        assert fingerprint(appliance) in output and "--fingerprint" in output
    elif case == "known":
        known.write_text(f"[127.0.0.1]:{number} {(appliance.servers.top / 'host_key.pub').read_text()}")
        output = add(appliance, number, top / "mail", "--fingerprint", "SHA256:" + "A" * 43, ok=(6,))
        assert f"has {fingerprint(appliance)} for it" in output and not list((appliance.conf / "hosts.d").iterdir())
        return
    elif case == "changed":
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", appliance.top / "other")
        line = f"[127.0.0.1]:{number} {(appliance.top / 'other.pub').read_text()}"
        known.write_text(line)
        output = add(appliance, number, top / "mail", "--fingerprint", fingerprint(appliance), ok=(6,))
        assert "host key has changed" in output and "ssh-keygen -R" in output
        assert known.read_text() == line
        return
    else:
        appliance.servers.kill("ssh")
        output = add(appliance, number, top / "mail", ok=(5,))
        assert "cannot get the host key" in output
    assert not known.exists() and not list((appliance.conf / "hosts.d").iterdir())


def test_admin_at_a_terminal(appliance, client):
    """Asked for the host key, then given a second chance once the client lets us in."""
    top, number = client
    master, slave = pty.openpty()
    argv = [*map(str, appliance.argv("add", "mx1", top / "mail", "--address", "127.0.0.1", "--port", number,
                                     "--no-timers"))]  # fmt: skip
    with subprocess.Popen(argv, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as proc:
        os.close(slave)
        os.write(master, b"yes\n")
        lines = []
        for line in proc.stdout:
            lines.append(line)
            if line.startswith("restrict,"):
                let_in(appliance, line)
                os.write(master, b"\n")
    os.close(master)
    output = "".join(lines)
    assert proc.returncode == 0, output
    assert fingerprint(appliance) in output and "the client answers" in output
    assert (appliance.conf / "hosts.d" / "mx1.conf").exists()


@pytest.mark.parametrize("path, code, output", [
    ("nothing", 2, "cannot list"),
    ("link", 2, "is a symbolic link on the client"),
    ("with # sign", 2, "may be a name or a comment"),
    ("data[1]", 0, "the client answers"),
    ("b*", 0, "the client answers"),
])  # fmt: skip
def test_paths_are_tried(appliance, client, path, code, output):
    top, number = client
    fill(top, "data[1]", "data1", "b*", "bb")
    (top / "link").symlink_to("mail")
    key = ("--fingerprint", fingerprint(appliance))
    let_in(appliance, add(appliance, number, top / "mail", *key, ok=(6,)))
    assert output in add(appliance, number, top / path, *key, ok=(code,))
    assert (appliance.conf / "hosts.d" / "mx1.conf").exists() == (code == 0)
    if code == 0:
        appliance("run", "mx1")
        assert os.listdir(appliance.good("mx1")[0] / str(top).strip("/")) == [path]


def test_rsync_daemon(appliance, tmp_path):
    top = maildir(tmp_path / "mail", 10)
    number = appliance.servers.rsync(mail=top)
    assert "Unknown module" in add(appliance, number, "nail", "--method", "rsyncd", ok=(6,))
    add(appliance, number, "mail", "--method", "rsyncd")
    appliance("run", "mx1")
    same(state(top), state(appliance.good("mx1")[0]))


def test_files_go_back_to_the_client(appliance, client):
    """The key of the backups may only read; another one writes, once its line is there."""
    top, _ = client
    added(appliance, client)
    (top / "etc" / "private").mkdir(mode=0o711)
    (top / "etc" / "private" / "key").write_text("secret")
    before = state(top)
    appliance("run", "mx1")
    mode = stat.S_IMODE(os.stat("/").st_mode)
    shutil.rmtree(top / "mail")
    shutil.rmtree(top / "etc" / "private")
    output = appliance("restore", "mx1", "latest", "--to", "mx1:", ok=(6,))
    assert not (top / "mail").exists()
    assert 'command="rrsync -wo /"' in let_in(appliance, output)
    output = appliance("restore", "mx1", "latest", "--to", "mx1:")
    assert "32 files compared and right" in output
    same(before, state(top))
    # The snapshot's own top directory is not the client's.
    assert stat.S_IMODE(os.stat("/").st_mode) == mode
    # Files that are there stay, unless they are to be replaced.
    (top / "etc" / "file").write_text("newer than the backup\n")
    output = appliance("restore", "mx1", "latest", top / "etc", "--to", "mx1:")
    assert "1 were there already" in output and (top / "etc" / "file").read_text() == "newer than the backup\n"
    appliance("restore", "mx1", "latest", top / "etc", "--to", "mx1:", "--overwrite")
    same(before, state(top))
    # Elsewhere on it.
    (top / "out").mkdir()
    appliance("restore", "mx1", "latest", top / "mail", "--to", f"mx1:{top}/out")
    same(state(top / "mail"), state(top / "out" / str(top).strip("/") / "mail"))


def test_rot_is_noticed_on_the_way_back(appliance, client):
    """A file that rotted on the client, with its size and time, and one that rotted in the snapshot."""
    top, _ = client
    let_in(appliance, added(appliance, client) and appliance("setup", "--no-timers"))
    appliance("run", "mx1")
    let_in(appliance, appliance("restore", "mx1", "latest", "--to", "mx1:", ok=(6,)))
    victim = top / "etc" / "file"
    got = victim.stat()
    right = victim.read_text()
    victim.write_text(right.replace("of", "if"))
    os.utime(victim, ns=(got.st_atime_ns, got.st_mtime_ns))
    assert "etc/file: is not what the snapshot has" in appliance("restore", "mx1", "latest", "--to", "mx1:", ok=(7,))
    appliance("restore", "mx1", "latest", "--to", "mx1:", "--overwrite")
    assert victim.read_text() == right
    kept = appliance.good("mx1")[0] / str(victim).strip("/")
    kept.write_text(right.replace("of", "uf"))
    os.utime(kept, ns=(got.st_atime_ns, got.st_mtime_ns))
    output = appliance("restore", "mx1", "latest", "--to", "mx1:", "--overwrite", ok=(7,))
    assert "etc/file: is not what the client once sent" in output


def test_everything_into_a_directory_leaves_its_mode(appliance, client, tmp_path):
    top, _ = client
    added(appliance, client)
    appliance("run", "mx1")
    out = tmp_path / "out"
    out.mkdir(mode=0o755)
    out.chmod(0o755)
    appliance("restore", "mx1", "latest", "--to", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    same(state(top / "mail"), state(out / str(top).strip("/") / "mail"))


@pytest.mark.parametrize("dest, output", [
    ("nobody:", "'nobody' is not a configured host"),
    ("mx1:relative", "is not an absolute path"),
])  # fmt: skip
def test_destination_that_is_none(appliance, client, dest, output):
    added(appliance, client)
    appliance("run", "mx1")
    assert output in appliance("restore", "mx1", "latest", "--to", dest, ok=(2,))


def test_retired_and_forgotten(appliance, client):
    added(appliance, client)
    appliance("run", "mx1")
    assert "'itree-backup retire mx1' comes first" in appliance("forget", "mx1", "--yes", ok=(2,))
    appliance("retire", "mx1", "--no-timers")
    assert "retired" in appliance("status")
    assert "would remove 1 snapshots" in appliance("forget", "mx1", ok=(2,))
    assert appliance.good("mx1")
    appliance("forget", "mx1", "--yes")
    assert (
        not (appliance.volume / "mx1").exists() and not (appliance.top / "metrics" / "itree_backup_mx1.prom").exists()
    )
    assert "mx1" not in appliance("status")


def test_snapshot_of_a_retired_host_is_removed_by_name(appliance, client):
    added(appliance, client)
    appliance("run", "mx1")
    appliance("run", "mx1")
    appliance("retire", "mx1", "--no-timers")
    old = appliance.good("mx1")[0]
    appliance("prune", "mx1", "--remove", old.name)
    assert len(appliance.good("mx1")) == 1
