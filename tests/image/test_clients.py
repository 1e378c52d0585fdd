# SPDX-License-Identifier: GPL-2.0-only
"""Ordinary clients and ordinary events that once broke the appliance; each test is named after one."""

import configparser
import filecmp
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys

import pytest
from conftest import APPLIANCE, fill, maildir, restrict, run, same, state

# Returns each second name of a directory twice, as a listing may that is changed while it is read.
TWICE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <string.h>

static struct dirent *last;

struct dirent *readdir(DIR *dir)
{
	static struct dirent *(*next)(DIR *);
	struct dirent *entry = last;

	if (!next)
		next = dlsym(RTLD_NEXT, "readdir");
	last = NULL;
	if (entry)
		return entry;
	entry = next(dir);
	if (entry && strstr(entry->d_name, "twice"))
		last = entry;
	return entry;
}

/* The same where off_t has 64 bits anyway. */
struct dirent64 *readdir64(DIR *dir)
{
	return (struct dirent64 *)readdir(dir);
}
"""


@pytest.fixture(params=["ssh", "rrsync", "rsyncd"])
def client(request, appliance, tmp_path):
    """A directory of a client, and how the appliance names a path in it: by ssh, restricted by rrsync, by a daemon."""
    top = tmp_path / "client"
    top.mkdir()
    method = "rsyncd" if request.param == "rsyncd" else "ssh"
    number = appliance.servers.rsync(all=top) if method == "rsyncd" else appliance.servers.ssh(appliance.conf)
    if request.param == "rrsync":
        restrict(appliance, "rrsync -ro /")

    def host(name, *paths, more=""):
        named = [f"all/{p}" if method == "rsyncd" else f"{top}/{p}" for p in paths]
        appliance.host(name, method, number, *named, more=more)
        # Where the snapshots have it.
        return pathlib.Path("" if method == "rsyncd" else str(top).strip("/"))

    return top, host


def serve_with(source, appliance, top, monkeypatch):
    """Serve a directory as the host mx1 by an rsyncd with a library preloaded; source is its text in C."""
    library = top.with_name("preloaded.so")
    library.with_suffix(".c").write_text(source)
    run("gcc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c"))
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        number = appliance.servers.rsync(all=top)
    appliance.host("mx1", "rsyncd", number, "all")


def test_paths_below_one_parent_that_are_not_listed_together(appliance, client):
    top, host = client
    fill(top, "etc/a", "srv/b", "etc/c")
    below = host("mx1", "etc/a", "srv/b", "etc/c")
    assert " is good: " in appliance("run", "mx1")
    for name in ("etc", "srv"):
        same(state(top / name), state(appliance.good("mx1")[0] / below / name))


def test_listing_that_gives_a_name_twice(appliance, tmp_path, monkeypatch):
    top = tmp_path / "client"
    fill(top, "a", "twice", "z", "z/twice-too")
    serve_with(TWICE, appliance, top, monkeypatch)
    assert " is good: " in appliance("run", "mx1")
    same(state(top), state(appliance.good("mx1")[0]))


def test_sparse_file_larger_than_the_volume(appliance, client, tmp_path):
    """Holes stay holes in the backup, restored, and in a tar stream."""
    top, host = client
    fill(top, "data")
    with open(top / "data" / "image", "wb") as handle:
        handle.truncate(300 << 20)
        handle.seek(100 << 20)
        handle.write(b"in the middle")
    below = host("vm", "data")
    assert " is good: " in appliance("run", "vm", timeout=120)
    kept = appliance.good("vm")[0] / below / "data" / "image"
    assert kept.stat().st_size == 300 << 20 and kept.stat().st_blocks < 1000
    same(state(top / "data"), state(kept.parent))
    out = tmp_path / "out"
    out.mkdir()
    appliance("restore", "vm", "latest", "--to", out)
    assert (out / below / "data" / "image").stat().st_blocks < 1000
    stream = subprocess.run([*appliance.argv("export", "vm", "latest")], stdin=subprocess.DEVNULL, capture_output=True,
                            check=True).stdout  # fmt: skip
    assert len(stream) < 1 << 20
    shutil.rmtree(out)
    out.mkdir()
    subprocess.run(["tar", "-x", "-C", out], input=stream, check=True)
    same(state(top / "data"), state(out / below / "data"))


def test_paths_are_no_patterns(appliance, client):
    top, host = client
    fill(top, "data[1]", "data1", "w*", "who", "q?", "qu")
    below = host("mx1", "data[1]", "w*", "q?")
    appliance("run", "mx1")
    assert sorted(os.listdir(appliance.good("mx1")[0] / below)) == ["data[1]", "q?", "w*"]


@pytest.mark.parametrize("line", ["#recycle", "#*#", "*.bak  # old", "; x", "# a comment"])
def test_what_may_be_a_comment_in_a_list_is_refused(appliance, tmp_path, line):
    """Nothing that the file has is dropped in silence."""
    number = appliance.servers.rsync(mail=maildir(tmp_path / "mail", 5))
    appliance.host("mx1", "rsyncd", number, "mail", more=f"exclude =\n    *.tmp\n    {line}\n    *.old\n")
    output = appliance("run", "mx1", ok=(2,))
    assert f"line 10: '{line}' may be a name or a comment" in output
    # The same as a comment, and as a name.
    more = f"exclude =\n    *.tmp\n#{line}\n    [#]recycle\n"
    appliance.host("mx1", "rsyncd", number, "mail", more=more)
    fill(tmp_path / "mail", "#recycle")
    appliance("run", "mx1")
    assert not (appliance.good("mx1")[0] / "#recycle").exists()


def test_restore_of_what_is_no_file(appliance, client, tmp_path, monkeypatch):
    top, host = client
    fill(top, "data")
    (top / "data" / "link").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(top)  # the name of a socket must be short
        sock.bind("data/socket")
    below = host("mx1", "data")
    appliance("run", "mx1")
    out = tmp_path / "out"
    out.mkdir()
    names = ("link", "socket")
    output = appliance("restore", "mx1", "latest", *[f"{below}/data/{n}" for n in names], "--to", out)
    assert "0 files compared and right" in output
    assert sorted(os.listdir(out / below / "data")) == list(names)


def rot(path):
    """Other contents, the same size and time."""
    was = path.stat()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.fixture
def backed(appliance, tmp_path):
    """An appliance with one good snapshot of some mail."""
    mail = maildir(tmp_path / "mail", 20)
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=mail), "mail")
    appliance("run", "mx1")
    return appliance, mail


def test_overwrite_repairs_a_file_that_rotted(backed, tmp_path):
    appliance, mail = backed
    out = tmp_path / "out"
    out.mkdir()
    appliance("restore", "mx1", "latest", "--to", out)
    files = sorted((out / "cur").iterdir())
    rot(files[3])
    os.utime(files[4])
    files[5].chmod(0o600 if files[5].stat().st_mode & 0o7 else 0o644)
    inodes = [f.stat().st_ino for f in files]
    assert "20 files compared and right" in appliance("restore", "mx1", "latest", "--overwrite", "--to", out)
    same(state(mail), state(out))
    # Files with the right data were not written again.
    assert [n for n, f in enumerate(files) if f.stat().st_ino != inodes[n]] == [3]


def test_restore_onto_the_volume_by_another_name(backed, tmp_path):
    appliance, _ = backed
    snapshot = appliance.good("mx1")[0]
    was = state(snapshot)
    (snapshot.parent / "new").mkdir()
    (tmp_path / "link").symlink_to(snapshot)
    (tmp_path / "bound").mkdir()
    run("mount", "--bind", appliance.volume, tmp_path / "bound")
    try:
        for dest in (tmp_path / "link", appliance.volume / ".." / "volume" / "mx1" / "new", tmp_path / "bound" / "mx1"):
            assert "is on the backup volume" in appliance("restore", "mx1", "latest", "--to", dest, ok=(2,))
    finally:
        run("umount", tmp_path / "bound")
    same(was, state(snapshot))


def test_damage_is_told_until_the_snapshot_is_gone(backed):
    appliance, mail = backed
    victim = sorted((mail / "cur").iterdir())[3]
    rot(sorted((appliance.good("mx1")[0] / "cur").iterdir())[3])
    victim.write_text("another\n")
    appliance("run", "mx1")
    assert appliance("verify", "--all", ok=(7,)).count(victim.name) == 1
    appliance("verify")
    assert "1 damaged files" in appliance("status", ok=(1,))
    appliance("run", "mx1")
    assert "1 damaged files" in appliance("status", ok=(1,))
    appliance("prune", "mx1", "--remove", appliance.good("mx1")[0].name)
    assert "damaged" not in appliance("status")


def test_files_verified_in_the_future_are_read_again(backed):
    """The clock was ten years ahead once."""
    appliance, _ = backed
    with sqlite3.connect(appliance.volume / "mx1" / ".itree-backup" / "sums.sqlite") as db:
        db.execute("update sums set checked = checked + 315000000")
    db.close()
    rot(sorted((appliance.good("mx1")[0] / "cur").iterdir())[3])
    assert "19 files right, 1 damaged" in appliance("verify", ok=(7,))


@pytest.mark.parametrize("event", ["linked", "cut"])
def test_export_while_a_run_links_the_file(backed, tmp_path, event):
    """Linked into the next snapshot the file is what it was; one that becomes shorter is no whole stream."""
    appliance, mail = backed
    (mail / "large").write_bytes(os.urandom(8 << 20))
    appliance("run", "mx1")
    kept = appliance.good("mx1")[-1] / "large"
    with subprocess.Popen(appliance.argv("export", "mx1", "latest"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, bufsize=0) as proc:  # fmt: skip
        begin = b""
        while b"large" not in begin:
            begin += proc.stdout.read(1 << 16)
        if event == "linked":
            os.link(kept, appliance.volume / "mx1" / "link")
        else:
            os.truncate(kept, 6 << 20)
        output, errors = proc.communicate()
    if event == "cut":
        assert proc.returncode == 1 and b"the stream is incomplete" in errors
        return
    assert proc.returncode == 0, errors
    subprocess.run(["tar", "-x", "-C", tmp_path, "./large"], input=begin + output, check=True)
    assert filecmp.cmp(mail / "large", tmp_path / "large", shallow=False)


@pytest.mark.parametrize(("command", "line", "advice"), [
    ("PATH=/nowhere; rsync --server", "rsync: command not found|rsync: not found", "Install rsync on the client"),
    # The words of rsync 3.1.2.
    ("echo 'rsync: on remote machine: --checksum-choice=md5: unknown option' >&2; exit 1", "unknown option",
     "takes 3.2.0 or later"),
    ("rrsync -wo /", "rrsync", "authorized_keys restricts"),
])  # fmt: skip
def test_client_that_refuses_says_why(appliance, tmp_path, command, line, advice):
    appliance.host("mx1", "ssh", appliance.servers.ssh(appliance.conf), maildir(tmp_path / "mail", 3))
    restrict(appliance, command)
    output = appliance("run", "mx1", ok=(6,))
    assert any(word in output.split("the client answered: ")[1] for word in line.split("|")) and advice in output


# A client whose files named bad-sector cannot be read, and which finds files named cut-short shorter than they were
# when it reads them for the first time.
READ = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

ssize_t read(int fd, void *buf, size_t size)
{
	static ssize_t (*next)(int, void *, size_t);
	static int cut;
	char link[64], name[4096];
	ssize_t length;

	if (!next)
		next = dlsym(RTLD_NEXT, "read");
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, name, sizeof(name) - 1);
	name[length < 0 ? 0 : length] = 0;
	if (strstr(name, "bad-sector")) {
		errno = EIO;
		return -1;
	}
	if (strstr(name, "cut-short") && !cut++)
		return 0;
	return next(fd, buf, size);
}
"""


@pytest.fixture
def night(appliance, tmp_path, monkeypatch):
    """Serves a client's directory by an rsyncd whose reads are as above; (directory, appliance)."""
    top = tmp_path / "client"
    fill(top, "etc", "srv")
    serve_with(READ, appliance, top, monkeypatch)
    return top, appliance


def test_one_file_that_cannot_be_read_is_a_gap(night):
    """The night is not lost: what can be had is kept, listed, told as wrong, never called good, and goes in time."""
    top, appliance = night
    appliance("run", "mx1")
    good = appliance.good("mx1")[0]
    (top / "etc" / "new").write_text("new\n")
    (top / "srv" / "bad-sector").write_text("x" * 5000)
    output = appliance("run", "mx1", ok=(9,))
    assert "could not give 1 of its files" in output and "srv/bad-sector: " in output
    (gaps,) = appliance.with_gaps("mx1")
    assert appliance.good("mx1") == [good] and not appliance.partial("mx1")
    assert (gaps / "etc" / "new").read_text() == "new\n" and not (gaps / "srv" / "bad-sector").exists()
    status = appliance.status("mx1")
    assert (status["state"], status["last_good"], status["gaps"]) == ("gaps", good.name, 1)
    assert "1 with gaps" in appliance("status", ok=(1,))
    assert f"{gaps.name} " in appliance("list", "mx1") and "1 gaps" in appliance("list", "mx1")
    assert "etc" in appliance("list", "mx1", gaps.name[:19] + "Z.gaps")
    assert f"{gaps.name}: 3 files right, 0 damaged" in appliance("verify", "mx1", "--all")
    metrics = (appliance.top / "metrics" / "itree_backup_mx1.prom").read_text()
    assert 'itree_backup_gaps{host="mx1"} 1' in metrics and 'last_run_success{host="mx1"} 0' in metrics

    # What the night brought is not fetched again, and the next good snapshot stands by itself.
    (top / "srv" / "bad-sector").unlink()
    assert "0 new files" in appliance("run", "mx1")
    new = appliance.good("mx1")[-1]
    same(state(top), state(new))
    assert (new / "etc" / "new").stat().st_ino == (gaps / "etc" / "new").stat().st_ino
    assert "is good" not in output and "with gaps" in appliance("status")
    appliance("prune", "mx1", "--remove", gaps.name)
    assert not appliance.with_gaps("mx1") and "gaps" not in appliance("status")
    same(state(top), state(new))


def test_snapshots_with_gaps_take_no_good_ones_place(night):
    top, appliance = night
    appliance("run", "mx1")
    good = appliance.good("mx1")
    (appliance.conf / "hosts.d" / "mx1.conf").write_text(
        (appliance.conf / "hosts.d" / "mx1.conf").read_text() + "[keep]\nlast = 2\ndaily = 0\nweekly = 0\nmonthly = 0\n"
    )
    (top / "srv" / "bad-sector").write_text("x" * 5000)
    for _ in range(3):
        appliance("run", "mx1", ok=(9,))
    assert appliance.good("mx1") == good and len(appliance.with_gaps("mx1")) == 2


def test_file_that_is_cut_short_while_it_is_sent_is_sent_again(night):
    top, appliance = night
    (top / "srv" / "cut-short").write_text("a line of a log\n" * 5000)
    assert " is good: " in appliance("run", "mx1")
    same(state(top), state(appliance.good("mx1")[0]))


def test_path_that_is_not_there_is_no_gap(appliance, client):
    """Where a whole path is missing nothing is published: it may be a disk that is not mounted."""
    top, host = client
    fill(top, "etc")
    host("mx1", "etc", "srv")
    assert "could not be read" in appliance("run", "mx1", ok=(1,))
    assert not appliance.good("mx1") and not appliance.with_gaps("mx1")


def test_path_that_is_a_symbolic_link_is_refused(appliance, client):
    top, host = client
    fill(top, "real", "etc")
    (top / "mail").symlink_to("real")
    host("mx1", "etc", "mail")
    assert "mail is a symbolic link on the client" in appliance("run", "mx1", ok=(6,))
    assert not appliance.good("mx1")


def test_many_names_that_go_at_once_hold_the_old_snapshots(appliance, tmp_path):
    """A disk is not mounted one night, or the client was wiped: the snapshot is made, and no other goes for it."""
    mail = maildir(tmp_path / "mail", 100)
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(mail=mail), "mail",
                   more="[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n")  # fmt: skip
    appliance("run", "mx1")
    full = appliance.good("mx1")
    (mail / "cur").rename(mail.with_name("away"))
    (mail / "cur").mkdir()
    for _ in range(2):
        output = appliance("run", "mx1", ok=(1,))
        assert "had 104 names in" in output and "has 4 now" in output and "itree-backup accept mx1" in output
    assert appliance.good("mx1")[:1] == full and len(appliance.good("mx1")) == 3
    assert "accept mx1" in appliance("status", ok=(1,))
    # More has gone: the message says how much, and what it is compared with.
    shutil.rmtree(mail / "tmp")
    output = appliance("run", "mx1", ok=(1,))
    assert f"had 104 names in {full[0].name} and has 3 now" in output
    assert "has 3 now" in appliance("status", ok=(1,))
    (mail / "tmp").mkdir()
    # The disk is back.
    (mail / "cur").rmdir()
    mail.with_name("away").rename(mail / "cur")
    appliance("run", "mx1")
    assert len(appliance.good("mx1")) == 1 and "accept" not in appliance("status")
    # This time it is meant.
    for path in list((mail / "cur").iterdir())[:80]:
        path.unlink()
    appliance("run", "mx1", ok=(1,))
    assert "accepted: the client had 104 names" in appliance("accept", "mx1")
    assert "accept" not in appliance("status")
    appliance("run", "mx1")
    assert len(appliance.good("mx1")) == 1 and "nothing is held" in appliance("accept", "mx1")


@pytest.mark.parametrize("size", [3 << 20, 100 << 10])
def test_many_bytes_that_go_at_once_hold_the_old_snapshots(appliance, tmp_path, size):
    """A database that was truncated: as many names, next to no bytes. A small file that becomes empty is no alarm."""
    top = tmp_path / "client"
    fill(top, "db")
    (top / "db" / "table").write_bytes(os.urandom(size))
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(all=top), "all")
    appliance("run", "mx1")
    (top / "db" / "table").write_bytes(b"")
    if size < 1 << 20:
        appliance("run", "mx1")
        return
    assert f"the client had {size + 6} bytes in" in appliance("run", "mx1", ok=(1,))
    (top / "db" / "table").write_bytes(os.urandom(size))
    appliance("run", "mx1")


@pytest.mark.parametrize(("links", "nights"), [(33_001, 2), (22_000, 4)])
def test_file_with_so_many_names_that_they_run_out(make_appliance, tmp_path, links, nights):
    """Each night adds its names to the inode that all snapshots share, until ext4 has no more: another is begun."""
    appliance = make_appliance(size=64, inodes=8192)
    top = tmp_path / "client"
    fill(top, "farm")
    first = top / "farm" / "file"
    for n in range(1, links):
        os.link(first, top / "farm" / f"{n:05}")
    number = appliance.servers.rsync(all=top)
    appliance.host("mx1", "rsyncd", number, "all")
    for night in range(nights):
        output = appliance("run", "mx1", timeout=600)
        assert " is good: " in output
        new = appliance.good("mx1")[-1] / "farm"
        names = list(os.scandir(new))
        assert len(names) == links
        inodes = {n.inode() for n in names}
        assert len(inodes) == 1 and all((new / n.name).read_text() == "of farm\n" for n in names[::5000])
        if night + 1 == -(-65_000 // links) and links * (night + 1) > 65_000:
            assert "starting again with copies of such files" in output and " 1 files copied" in output
    assert "0 damaged, 0 without a recorded checksum" in appliance("verify", "mx1")


def test_messages_that_are_renamed_during_the_run(appliance, client):
    """A message that somebody reads has another name when its turn comes: it is looked for again."""
    top, host = client
    (top / "mail" / "cur").mkdir(parents=True)
    for n in range(300):
        (top / "mail" / "cur" / f"{n:05}.mx1:2,").write_bytes(os.urandom(4000))
    below = host("mx1", "mail", more="bandwidth = 300\n")
    with subprocess.Popen(appliance.argv("run", "mx1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as proc:  # fmt: skip
        while not any((p / below / "mail/cur/00010.mx1:2,").exists() for p in appliance.partial("mx1")):
            assert proc.poll() is None, proc.stdout.read()
        for n in range(200, 300):
            path = top / "mail" / "cur" / f"{n:05}.mx1:2,"
            path.rename(f"{path}S")
        # New since the list was made: no part of this snapshot, not even by its name.
        fill(top / "mail" / "cur", "new-folder")
        output = proc.communicate()[0]
    assert proc.returncode == 0, output
    assert " names vanished while they were read: looking again in 1 directories" in output
    kept = appliance.good("mx1")[0] / below / "mail" / "cur"
    same({k: v for k, v in state(top / "mail" / "cur").items() if b"new-folder" not in k}, state(kept))
    assert "300 files right, 0 damaged, 0 without a recorded checksum" in appliance("verify", "mx1")


def test_folder_that_is_renamed_during_the_run(appliance, client):
    top, host = client
    for folder in range(30):
        (top / "mail" / f"{folder:03}" / "cur").mkdir(parents=True)
        for n in range(10):
            (top / "mail" / f"{folder:03}" / "cur" / f"{n:05}.mx1:2,S").write_bytes(os.urandom(4000))
    below = host("mx1", "mail", more="bandwidth = 300\n")
    with subprocess.Popen(appliance.argv("run", "mx1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as proc:  # fmt: skip
        while not any((p / below / "mail/001/cur/00001.mx1:2,S").exists() for p in appliance.partial("mx1")):
            assert proc.poll() is None, proc.stdout.read()
        (top / "mail" / "029").rename(top / "mail" / "Archive")
        output = proc.communicate()[0]
    assert proc.returncode == 0 and "looking again" in output, output
    kept = appliance.good("mx1")[0] / below / "mail"
    for name, what in state(top / "mail").items():
        assert state(kept).get(name) == what or name == b".", name


def test_attributes_that_cannot_be_stored_are_left_out(appliance, client):
    """What the unit may not set: one night it is refused, after that not asked for; each night it is told."""
    top, host = client
    fill(top, "data", "more")
    os.setxattr(top / "data" / "file", "security.NTACL", b"acl")
    os.setxattr(top / "more" / "file", "user.note", b"kept")
    below = host("mx1", "data", "more")
    # As the unit runs.
    argv = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", *appliance.argv("run", "mx1")]
    for _ in range(2):
        output = run(*argv)[1]
        assert " is good: " in output and "cannot be stored here are left out: security.NTACL" in output
    one, two = (p / below for p in appliance.good("mx1"))
    assert (one / "data" / "file").stat().st_ino == (two / "data" / "file").stat().st_ino
    assert os.listxattr(two / "data" / "file") == [] and os.getxattr(two / "more" / "file", "user.note") == b"kept"


def test_refused_attribute_of_a_user_is_left_out_of_that_file_alone():
    """EPERM for user.note of one file says nothing of user.note of another."""
    program = ("import sys; sys.path.insert(0, sys.argv[1])\n"
               "from itree_backup.transfer import Outcome\n"
               "found = Outcome()\n"
               "for name in ('user.note', 'security.ima'):\n"
               "    line = f'rsync: [receiver] rsync_xal_set: lsetxattr(\"/d/.file.Abc123\",\"{name}\") failed: '\n"
               "    assert found.take(line + 'Operation not permitted (1)')\n"
               "print(found.refused, found.lost)\n")  # fmt: skip
    output = run(sys.executable, "-B", "-c", program, APPLIANCE / "usr" / "lib" / "itree-backup")[1]
    assert output == "{'security.ima'} {('/d/file', 'user.note'): 'Operation not permitted'}\n"


def test_attribute_too_large_for_the_volume_is_named(appliance, client, tmp_path):
    top, host = client
    image, large = tmp_path / "large.img", top / "large"
    large.mkdir()
    with open(image, "wb") as handle:
        handle.truncate(32 << 20)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "ea_inode", image)
    run("mount", "-o", "loop", image, large)
    try:
        fill(large, "data")
        os.setxattr(large / "data" / "file", "user.thumbnail", b"x" * 20000)
        below = host("mx1", "large/data")
        output = appliance("run", "mx1")
        assert " is good: " in output and "filled up" not in output
        assert "an attribute is left out: " in output and "large/data/file: user.thumbnail: " in output
        assert (appliance.good("mx1")[0] / below / "large" / "data" / "file").read_text() == "of data\n"
    finally:
        run("umount", large)


class SetUp:
    """`itree-backup setup` over files as the EFI system partition brings them."""

    def __init__(self, top):
        self.conf, self.esp, self.root = top / "etc", top / "esp", top / "root"
        for path in (self.esp, self.root):
            path.mkdir()
        settings = configparser.ConfigParser()
        settings.read(APPLIANCE / "usr" / "lib" / "itree-backup" / "itree-backup.conf")
        settings["volume"]["directory"] = str(top / "volume")
        with open(self.esp / "itree-backup.conf", "w") as handle:
            settings.write(handle)
        self.good = (self.esp / "itree-backup.conf").read_bytes()
        (self.esp / "ssh.authorized_keys.root").write_text("ssh-ed25519 AAAA admin\n")

    def __call__(self, ok=(0,)):
        # Only the place of the partition and of root's keys is another than on the appliance.
        program = (f"import sys, pathlib; sys.path.insert(0, {str(APPLIANCE / 'usr/lib/itree-backup')!r})\n"
                   "from itree_backup import cli, setup\n"
                   f"setup.ESP, setup.ROOT_HOME = pathlib.Path({str(self.esp)!r}), pathlib.Path({str(self.root)!r})\n"
                   # In place of systemctl.
                   "setup.timers = lambda names: print('timers:', *names)\n"
                   f"sys.argv = ['itree-backup', '--config', {str(self.conf)!r}, 'setup']\n"
                   "sys.exit(cli.main())\n")  # fmt: skip
        return run(sys.executable, "-B", "-c", program, ok=ok, env={"CREDENTIALS_DIRECTORY": None})[1]


@pytest.fixture
def set_up(tmp_path):
    if os.geteuid():
        pytest.skip("the command wants to be root")
    return SetUp(tmp_path)


BAD = {
    "itree-backup.host.my host": b"[host]\npaths = /srv\n",
    "itree-backup.host.latin": "[host]\npaths = /srv/gr\u00fcn\n".encode("latin-1"),
    "host.txt": b"[host]\npaths = /srv\n",
    "itree-backup.conf.txt": b"[volume]\n",
}


def test_bad_files_of_the_first_boot_keep_no_good_one_out(set_up):
    for name, data in BAD.items():
        (set_up.esp / name).write_bytes(data)
    # An editor that writes UTF-16 with its mark, and ends lines as on its own system.
    (set_up.esp / "itree-backup.host.nfs1").write_bytes("[host]\r\npaths = /srv/nfs\r\n".encode("utf-16"))
    (set_up.esp / "itree-backup.host.mx1").write_bytes(b"[host]\npaths = /srv/mail\n")
    output = set_up(ok=(2,))
    assert all(f"/{name}: " in output for name in BAD), output
    assert "ssh-ed25519 AAAA admin" in (set_up.root / ".ssh" / "authorized_keys").read_text()
    assert "hosts: mx1, nfs1" in output and "for authorized_keys of the clients" in output
    assert (set_up.conf / "hosts.d" / "nfs1.conf").read_text() == "[host]\npaths = /srv/nfs\n"
    problems = (set_up.conf / "setup-problems").read_text()
    assert all(f"/{name}: " in problems for name in BAD)
    for name in BAD:
        (set_up.esp / name).unlink()
    set_up()
    assert not (set_up.conf / "setup-problems").exists()


def test_corrected_configuration_counts(set_up):
    (set_up.esp / "itree-backup.conf").write_bytes(b"[volume]\ndirectoy = /srv/backup\n")
    output = set_up(ok=(2,))
    assert "unknown key 'directoy'" in output and (set_up.root / ".ssh" / "authorized_keys").exists()
    (set_up.esp / "itree-backup.conf").write_bytes(set_up.good)
    set_up()


@pytest.mark.parametrize("left", [b"", b"\0" * 400])
def test_key_that_a_power_cut_left_empty_is_made_again(set_up, left):
    set_up()
    key = set_up.conf / "ssh" / "id"
    good = key.read_bytes()
    key.write_bytes(left)
    set_up()
    assert key.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY") and key.read_bytes() != good
    assert key.stat().st_mode & 0o777 == 0o600
    # One that somebody gave and that cannot be read is not thrown away.
    key.write_bytes(b"not a key\n")
    assert "ssh-keygen" in set_up(ok=(2,)) and key.read_bytes() == b"not a key\n"


def test_one_wrong_host_file_stops_no_other_host(backed):
    appliance, _ = backed
    (appliance.conf / "hosts.d" / "bad.conf").write_text("[host]\npath = /srv\n")
    output = appliance("list", ok=(2,))
    assert "mx1 " in output and "bad.conf: [host]: unknown key 'path'" in output
    output = appliance("setup", "--no-timers", ok=(2,))
    assert "hosts: bad, mx1" in output and "bad.conf: [host]: unknown key 'path'" in output
    assert "bad.conf: [host]: unknown key 'path'" in appliance("status", ok=(1,))
    (appliance.conf / "hosts.d" / "bad.conf").unlink()
    appliance("setup", "--no-timers")
    assert "bad.conf" not in appliance("status")


def test_timers_of_the_others_when_one_file_is_wrong(set_up):
    """All get theirs: the run of the wrong one fails, and tells why."""
    (set_up.esp / "itree-backup.host.bad").write_text("[host]\npath = /srv\n")
    (set_up.esp / "itree-backup.host.mx1").write_text("[host]\npaths = /srv/mail\n")
    assert "timers: bad mx1\n" in set_up(ok=(2,))
