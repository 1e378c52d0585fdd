# SPDX-License-Identifier: GPL-2.0-only
"""When a client was wiped or encrypted, status says so and no older snapshot is removed. Ordinary nights are silent."""

import os
import random
import shutil

import pytest
from conftest import fill, maildir


def every(top):
    return sorted(p for p in top.rglob("*") if p.is_file())


def scrambled(path):
    return bytes(b ^ 0x5A for b in path.read_bytes())


def in_place(top):
    for path in every(top):
        path.write_bytes(scrambled(path))


def in_place_in_pieces(top):
    for path in every(top):
        with open(path, "r+b") as handle:
            handle.write(scrambled(path)[:64])


def renamed(top):
    for path in every(top):
        path.write_bytes(scrambled(path))
        path.rename(f"{path}.locked")


def renamed_only(top):
    for path in every(top):
        path.rename(path.with_name(f"{random.Random(path.name).randrange(1 << 60):x}"))


def copied_and_removed(top):
    for path in every(top):
        path.with_suffix(".enc").write_bytes(scrambled(path))
        path.unlink()


def old_times_kept(top):
    for path in every(top):
        got = path.stat()
        path.write_bytes(scrambled(path) + b"key")
        os.utime(path, ns=(got.st_atime_ns, got.st_mtime_ns))


def one_archive(top):
    (top / "all.bin").write_bytes(b"".join(scrambled(p) for p in every(top)))
    for path in every(top):
        if path.name != "all.bin":
            path.unlink()


def removed(top):
    shutil.rmtree(top)
    top.mkdir()


def files_removed(top):
    for path in every(top):
        path.unlink()


def most_removed(top):
    for path in every(top)[: len(every(top)) * 2 // 3]:
        path.unlink()


def emptied(top):
    for path in every(top):
        path.write_bytes(b"")


def zeros(top):
    for path in every(top):
        path.write_bytes(bytes(path.stat().st_size))


def links(top):
    for path in every(top):
        path.unlink()
        path.symlink_to("/dev/null")


def directories(top):
    for path in every(top):
        path.unlink()
        path.mkdir()


def moved_out(top):
    shutil.move(top / "mail", top / "moved")


def notes_everywhere(top):
    for path in every(top):
        path.write_bytes(scrambled(path))
        path.with_name(path.name + ".README").write_text("pay")


def two_thirds(top):
    for path in every(top)[::3] + every(top)[1::3]:
        path.write_bytes(scrambled(path))


def in_two_nights(top):
    """Half of them before; the test's second night takes the rest."""
    for path in every(top)[::2]:
        path.write_bytes(scrambled(path))
    for path in every(top)[1::8]:
        path.write_bytes(scrambled(path))


def mount_of_nothing(top):
    for path in top.iterdir():
        shutil.rmtree(path)
    (top / "lost+found").mkdir()


def other_owner_and_data(top):
    for path in every(top):
        path.write_bytes(scrambled(path))
        os.chown(path, 1234, 1234)


# Those that are found by a rule of their own; the others are tried with ITREE_FULL=1.
IN_CI = (in_place, renamed, one_archive, most_removed, links, two_thirds, in_two_nights)
WAYS = IN_CI if not os.environ.get("ITREE_FULL") else (
    *IN_CI, in_place_in_pieces, renamed_only, copied_and_removed, old_times_kept, removed, files_removed, emptied,
    zeros, directories, moved_out, notes_everywhere, mount_of_nothing, other_owner_and_data)  # fmt: skip


@pytest.fixture
def mail(appliance, tmp_path):
    """A host with 90 files and two nights, of which one snapshot alone would be kept; the client's directory."""
    top = tmp_path / "client"
    maildir(top / "mail", 90)
    number = appliance.servers.rsync(all=top)
    keep = "[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n"
    appliance.host("mx1", "rsyncd", number, "all", more=keep)
    appliance("run", "mx1")
    fill(top, "new")
    appliance("run", "mx1")
    return top


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_what_was_lost_is_told_and_nothing_is_pruned(appliance, mail, way):
    whole = appliance.good("mx1")[-1]
    way(mail)
    for _ in range(3):
        # The run is good; that nothing is pruned is what it fails with.
        output = appliance("run", "mx1", ok=(1,))
        assert "fall_percent" in output and "itree-backup accept mx1" in output
        assert whole in appliance.good("mx1"), "the last snapshot before it is gone"
        assert "fall_percent" in appliance("status", ok=(1,))
    appliance("accept", "mx1")
    appliance("run", "mx1")
    assert len(appliance.good("mx1")) == 1


@pytest.mark.timeout(900)
def test_ordinary_nights_are_silent(appliance, mail):
    """New mail, read mail, removed mail, logs that turn over, an upgrade of many packages, a copied folder."""
    chance = random.Random(7)
    (mail / "log").mkdir()
    for night in range(60 if os.environ.get("ITREE_FULL") else 15):
        for path in sorted((mail / "mail" / "new").iterdir()):
            path.rename(mail / "mail" / "cur" / f"{path.name},S=2000:2,")
        cur = sorted((mail / "mail" / "cur").iterdir())
        for path in chance.sample(cur, 15):
            path.rename(path.with_name(path.name.split(",S=")[0] + f",S={night}:2,RS"))
        for path in chance.sample(sorted((mail / "mail" / "cur").iterdir()), 5):
            path.unlink()
        for n in range(8):
            (mail / "mail" / "new" / f"{night}.{n}").write_bytes(chance.randbytes(2000))
        for n in range(12, 0, -1):
            if (mail / "log" / f"syslog.{n}").exists():
                (mail / "log" / f"syslog.{n}").rename(mail / "log" / f"syslog.{n + 1}")
        (mail / "log" / "syslog.1").write_bytes(chance.randbytes(5000))
        (mail / "log" / "syslog.14").unlink(missing_ok=True)
        if night % 10 == 4:
            shutil.copytree(mail / "mail", mail / f"copy{night}")
        if night % 10 == 8:
            shutil.rmtree(mail / f"copy{night - 4}")
        appliance("run", "mx1")
        assert "damaged" not in appliance("status")
