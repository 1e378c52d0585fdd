# SPDX-License-Identifier: GPL-2.0-only
"""What needs no client: which snapshots are kept, configuration that makes no sense, help and manual."""

import datetime
import re

import pytest
from conftest import APPLIANCE, COMMAND, run
from itree_backup import cli, config, retention, store, sums, transfer, verify, warm
from itree_backup.errors import BackupError

MAN = APPLIANCE / "usr" / "share" / "man"


def names(start, *steps):
    """Names of snapshots: a first time and hours from each to the next."""
    at = datetime.datetime.fromisoformat(start)
    found = [at]
    for hours in steps:
        found.append(found[-1] + datetime.timedelta(hours=hours))
    return [one.strftime(store.FORMAT) for one in found]


def keep(last=0, daily=0, weekly=0, monthly=0):
    return {"last": last, "daily": daily, "weekly": weekly, "monthly": monthly}


def test_kept():
    nightly = names("2025-01-01T02:00:00", *[24] * 399)
    found = retention.kept(nightly, keep(last=3, daily=14, weekly=8, monthly=12))
    assert {n for n in nightly[-14:]} <= found.keys()
    # It is Wednesday, 4 February 2026: the days cover the ends of three of the eight weeks and of two of the months.
    assert len(found) == 14 + 5 + 10
    assert found[nightly[-1]] == ["last", "daily", "weekly", "monthly", "newest"]
    # Pruned night by night is pruned alike.
    have = []
    for name in nightly:
        have = sorted(retention.kept([*have, name], keep(last=3, daily=14, weekly=8, monthly=12)))
    assert have == sorted(found)


def test_kept_is_counted_not_aged():
    """A client that was away for ten years, or a clock that jumped, makes nothing old."""
    away = [*names("2025-01-01T02:00:00", 24, 24), *names("2035-01-01T02:00:00")]
    assert len(retention.kept(away, keep(daily=14))) == 4
    assert len(retention.kept(away, keep(weekly=1))) == 1
    twice = names("2025-01-01T02:00:00", 6, 18, 6)
    assert sorted(retention.kept(twice, keep(daily=2))) == [twice[1], twice[3]]
    assert sorted(retention.kept(twice, keep(last=1))) == [twice[3]]
    assert retention.kept([], keep(daily=1)) == {}


def test_clock():
    now = datetime.datetime.now(datetime.UTC)
    retention.check_clock("h", [(now + datetime.timedelta(minutes=5)).strftime(store.FORMAT)])
    with pytest.raises(BackupError, match="Nothing is pruned"):
        retention.check_clock("h", [(now + datetime.timedelta(hours=1)).strftime(store.FORMAT)])


def write(conf, general="", host="[host]\npaths = /srv"):
    (conf / "hosts.d").mkdir(exist_ok=True)
    (conf / "itree-backup.conf").write_text(general)
    (conf / "hosts.d" / "web.conf").write_text(host)
    return config.host(config.settings(conf), "web")


def test_defaults(tmp_path):
    host = write(tmp_path)
    assert (host.address, host.method, host.user, host.paths) == ("web", "ssh", "root", ["/srv"])
    assert host.keep == keep(3, 14, 8, 12)
    assert write(tmp_path, "[keep]\ndaily = 5", "[keep]\nweekly = 0\n[host]\npaths = /").keep == keep(3, 5, 0, 12)


@pytest.mark.parametrize(
    "general, host, output",
    [
        ("[keep]\ndaly = 5", "", "unknown key 'daly'"),
        ("[kep]\n", "", "unknown section [kep]"),
        ("[keep]\ndaily = many", "", "'many' is not a number from 0"),
        ("[keep]\nlast = 0\ndaily = 0\nweekly = 0\nmonthly = 0", "", "would keep nothing"),
        ("[volume]\ndirectory = backup", "", "not an absolute path"),
        ("[volume]\nmin_free_percent = 101", "", "a number from 0 to 90"),
        ("[notify]\nwebhook = ftp://x", "", "http"),
        ("daily = 5", "", "cannot be read"),
        ("", "[host]\n", "name at least one path"),
        ("", "[host]\npaths = srv", "not an absolute path"),
        ("", "[host]\npaths = /srv/../etc", "'.', '..'"),
        ("", "[host]\npaths = /srv\n  /srv/mail", "within /srv already"),
        ("", "[host]\nmethod = rsyncd\npaths = /srv", "not MODULE"),
        ("", "[host]\nmethod = rsyncd\npaths = a\n  b", "a host file of its own"),
        ("", "[host]\nmethod = ftp\npaths = /srv", "not ssh or rsyncd"),
        ("", "[host]\npaths = /srv\naddress = -oProxyCommand=x", "not a host name"),
        ("", "[host]\npaths = /srv\nuser = a b", "not a user name"),
        ("", "[host]\npaths = /srv\nport = 0", "a number from 1"),
        ("", "[host]\npaths = /srv\ncompress = maybe", "yes or no"),
        ("", "[host]\npaths = /srv\npath = /srv", "unknown key 'path'"),
    ],
)
def test_configuration_refused(tmp_path, general, host, output):
    with pytest.raises(BackupError) as err:
        write(tmp_path, general, host or "[host]\npaths = /srv")
    assert output in str(err.value) and err.value.code == 2


@pytest.mark.parametrize("name", ["", "..", ".x", "-x", "a/b", "a b", "x" * 64, "a\nb"])
def test_host_names_refused(name):
    with pytest.raises(BackupError):
        config.check_name(name)


def test_names_as_rsync_prints_them():
    assert transfer.unescape(rb"a\#012b\#134#012") == b"a\nb\\#012"
    assert transfer.LINE.fullmatch(b"hf+++++++++ " + b" " * 32 + b" 4 a b").groups()[3] == b"a b"


def test_spool_cut_off(tmp_path):
    """What a power cut leaves of the list of sums is used as far as it makes sense."""
    path = tmp_path / "x.sums"
    good = b"0" * 32 + b" dir/name\n"
    path.write_bytes(good + b"-" * 32 + b" copied\n" + b"\0" * 40 + b"\n" + good[:20] + b"\n" + good[:-3])
    assert list(transfer.read_spool(path)) == [(bytes(16), b"dir/name"), (None, b"copied")]
    assert list(transfer.read_spool(tmp_path / "none")) == []


def test_sums_on_a_full_disk(tmp_path):
    """No space for the sums is no space, not damage; a record is that of one generation."""
    one = sums.Sums(tmp_path / "sums")
    one.put(7, 1, bytes(16), 5)
    assert one.get(7, 1) == (bytes(16), 5, 0) and one.get(7, 2) is None
    one.forget(7)
    assert one.get(7, 1) is None
    one.db.execute("pragma max_page_count = 2")
    with pytest.raises(BackupError) as err:
        for ino in range(10000):
            one.put(ino, 1, bytes(16), 0)
    assert err.value.code == 4 and "make room" in str(err.value)


def test_tree_stays_inside(tmp_path):
    """What a client sent cannot lead out of its snapshot."""
    (tmp_path / "top" / "dir").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "top" / "way").symlink_to(tmp_path)
    (tmp_path / "top" / "file").symlink_to(tmp_path / "secret")
    tree = store.Tree(tmp_path / "top")
    for path in (b"way/secret", b"../secret", b"dir/../../secret", b"file"):
        with pytest.raises(OSError):
            tree.open(path)
    assert verify.identity(tree, b"way/secret") is None
    tree.close()


def commands():
    top = cli.parser()
    return next(a for a in top._actions if a.choices).choices


def test_help_and_manual():
    """Every command and option is in --help and in the manual, which is well formed."""
    text = (MAN / "man8" / "itree-backup.8").read_text().replace("\\-", "-")
    assert set(re.findall(r"^    (\w+) ", run(COMMAND, "--help")[1], re.M)) == set(commands())
    for name, sub in commands().items():
        output = run(COMMAND, name, "--help")[1]
        assert f"usage: itree-backup {name}" in output
        assert re.search(rf"^\.(B|BR|BI) .*\b{name}\b", text, re.M), f"{name} is not in the manual"
        for option in re.findall(r"--[a-z-]+", " ".join(o for a in sub._actions for o in a.option_strings)):
            assert option == "--help" or option in text, f"{option} is not in the manual"
    for page in sorted(MAN.glob("man*/*")):
        output = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page, env={"PATH": "/usr/bin:/bin"})[1]
        assert "warning" not in output, output[:500]


def test_manual_has_every_key():
    text = (MAN / "man5" / "itree-backup.conf.5").read_text().replace("\\-", "-")
    for known in (config.GLOBAL, config.PER_HOST):
        for section, keys in known.items():
            for key in {f"[{section}]", *keys}:
                assert re.search(rf"^\.(SS|B|BR|BI) .*{re.escape(key)}", text, re.M), f"{key} is not in the manual"


def test_warm(tmp_path, monkeypatch):
    """Entries of large directories are looked at, below small ones too, within a bound; errors are nothing to it."""
    large = tmp_path / "small" / b"caf\xe9".decode(errors="surrogateescape") / "large"
    large.mkdir(parents=True)
    (tmp_path / "small" / "file").touch()
    (tmp_path / "small" / "loop").symlink_to(tmp_path)
    for n in range(30):
        (large / f"message {n}").touch()
    (large / "sub").mkdir()
    (large / "sub" / "file").touch()
    # How long a directory is depends on the file system: those of 30 entries are to count as large here.
    sizes = {p: p.stat().st_size for p in (large, large / "sub", tmp_path / "small")}
    if sizes[large] <= max(sizes[large / "sub"], sizes[tmp_path / "small"]):
        for n in range(400):
            (large / f"one more message, to make the directory longer than the others are, {n}").touch()
    files = sum(1 for p in large.iterdir() if p.is_file())
    monkeypatch.setattr(warm, "LARGE", large.stat().st_size - 1)
    assert warm.warm(tmp_path, "mx") == files
    assert warm.warm(tmp_path, "mx", memory=20 * warm.ENTRY) == 20
    assert warm.warm(tmp_path, "mx", memory=0) == 0
    assert warm.warm(tmp_path / "nothing", "mx") == 0
    assert 0 < warm.available() < 1 << 50 and warm.available("/nothing") == 0
    monkeypatch.setattr(warm, "LARGE", large.stat().st_size)
    assert warm.warm(tmp_path, "mx") == 0
