# SPDX-License-Identifier: GPL-2.0-only
"""packaging/sources/fetch: what it takes, what it refuses, what it says."""

import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import threading
import time

import pytest
import sources

REPO = pathlib.Path(__file__).resolve().parents[2]
GOOD = b"the pristine source\n"
SHA = hashlib.sha256(GOOD).hexdigest()
FILE = "thing_1.0.orig.tar.gz"


class FakeMirror:
    """A mirror that hands out given bytes, or nothing."""

    def __init__(self, dest, data=None):
        self.dest, self.data, self.asked = dest, data, 0

    def download(self, source):
        self.asked += 1
        if self.data is None:
            raise sources.SourceError("it offers nothing")
        self.dest.mkdir(parents=True, exist_ok=True)
        path = self.dest / source.file
        path.write_bytes(self.data)
        return path


@pytest.fixture
def thing():
    return sources.Source("thing", "1.0", SHA, FILE)


@pytest.fixture
def dirs(tmp_path):
    given, dest = tmp_path / "given", tmp_path / "dest"
    given.mkdir()
    return given, dest


def test_the_lock_itself_reads():
    lock = sources.read_lock()
    kernels = {n: lock.pop(n) for n in list(lock) if n.startswith("linux")}
    assert set(lock) == {"e2fsprogs", "tar", "rsync", "mkosi", "coreutils"}
    assert kernels["linux"].version == "6.12"
    assert all(s.sha256 is None and s.file == f"linux-source-{s.version}" for s in kernels.values())
    assert all(s.sha256 for s in lock.values())


@pytest.mark.parametrize(
    "line, message",
    [
        ("thing 1.0 " + SHA, "line 2: expected 'name version sha256 file'"),
        ("thing 1.0 " + SHA[:-1] + " f", "line 2: .*is not a SHA-256"),
        ("thing 1.0 " + SHA.upper() + " f", "line 2: .*is not a SHA-256"),
        ("thing 1.0 " + SHA + " ../f", "line 2: .*plain file name"),
        (f"thing 1.0 {SHA} f\nthing 1.1 {SHA} g", "line 3: thing is listed twice"),
    ],
)
def test_lock_errors_name_the_line(tmp_path, line, message):
    lock = tmp_path / "sources.lock"
    lock.write_text(f"# a comment\n{line}\n")
    with pytest.raises(sources.SourceError, match=message):
        sources.read_lock(lock)


def test_missing_lock_is_named(tmp_path):
    with pytest.raises(sources.SourceError, match="nowhere.lock"):
        sources.read_lock(tmp_path / "nowhere.lock")


def test_given_directory_comes_first(thing, dirs):
    given, dest = dirs
    (given / FILE).write_bytes(GOOD)
    mirror = FakeMirror(dest, b"never asked")
    path = sources.fetch(thing, dest, given, mirror)
    assert path == dest / FILE and path.read_bytes() == GOOD and mirror.asked == 0


def test_corrupt_file_in_given_directory_is_refused(thing, dirs):
    given, dest = dirs
    (given / FILE).write_bytes(b"something else")
    mirror = FakeMirror(dest, GOOD)
    with pytest.raises(sources.SourceError) as err:
        sources.fetch(thing, dest, given, mirror)
    assert str(given / FILE) in str(err.value) and SHA in str(err.value) and "emove" in str(err.value)
    assert mirror.asked == 0 and not (dest / FILE).exists() and (given / FILE).exists()


def test_directory_without_the_file_falls_through_to_the_mirror(thing, dirs):
    given, dest = dirs
    mirror = FakeMirror(dest, GOOD)
    assert sources.fetch(thing, dest, given, mirror).read_bytes() == GOOD and mirror.asked == 1
    assert sources.fetch(thing, dest, None, mirror).read_bytes() == GOOD and mirror.asked == 1


def test_missing_directory_is_named(thing, dirs):
    with pytest.raises(sources.SourceError, match="no such directory"):
        sources.fetch(thing, dirs[1], dirs[0] / "none", FakeMirror(dirs[1]))


def test_missing_file_is_named_with_what_to_do(thing, dirs):
    given, dest = dirs
    with pytest.raises(sources.SourceError) as err:
        sources.fetch(thing, dest, given, FakeMirror(dest))
    for part in (FILE, SHA, "--dir", "it offers nothing", str(given)):
        assert part in str(err.value)


def test_corrupt_download_is_refused_and_removed(thing, dirs):
    _, dest = dirs
    with pytest.raises(sources.SourceError) as err:
        sources.fetch(thing, dest, None, FakeMirror(dest, GOOD[:-1]))
    for part in (FILE, SHA, "damaged", "--dir"):
        assert part in str(err.value)
    assert not (dest / FILE).exists()


def test_damaged_cached_file_is_fetched_again(thing, dirs, capsys):
    _, dest = dirs
    dest.mkdir()
    (dest / FILE).write_bytes(b"torn")
    assert sources.fetch(thing, dest, None, FakeMirror(dest, GOOD)).read_bytes() == GOOD
    assert "Fetching it again" in capsys.readouterr().err


def test_newest_point_release_of_the_kernel_is_taken(dirs):
    given, dest = dirs
    linux = sources.read_lock()["linux"]
    for release in ("6.12.9-1", "6.12.117-1~deb12u1", "6.12.41-1"):
        tree = given / release / "DEBIAN"
        tree.mkdir(parents=True)
        text = f"Package: linux-source-6.12\nVersion: {release}\nArchitecture: all\nMaintainer: x\nDescription: x\n"
        (tree / "control").write_text(text)
        deb = given / f"linux-source-6.12_{release}_all.deb"
        subprocess.run(["dpkg-deb", "--build", given / release, deb], check=True, capture_output=True)
    assert "6.12.117" in sources.fetch(linux, dest, given, FakeMirror(dest)).name


def test_torn_kernel_package_is_refused(dirs):
    given, dest = dirs
    (given / "linux-source-6.12_6.12.1-1_all.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(sources.SourceError, match="damaged"):
        sources.fetch(sources.read_lock()["linux"], dest, given, FakeMirror(dest))


def test_host_mirror_is_read_from_both_formats(tmp_path):
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(
        "Types: deb\nURIs: http://one.invalid/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n\n"
        "Types: deb\nURIs: http://one.invalid/security\nSuites: bookworm-security\nComponents: main\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.invalid/debian\nSuites: bookworm\nComponents: main\n"
    )
    (tmp_path / "sources.list").write_text(
        "# deb http://no.invalid/debian bookworm main\n"
        "deb cdrom:[x]/ bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://two.invalid/debian bookworm main contrib\n"
        "deb http://other.invalid/apt cloud main\n"
    )
    got = sources.host_stanzas(tmp_path, "bookworm")
    assert [uris for uris, _, _ in got] == [["http://one.invalid/debian"], ["http://two.invalid/debian"]]
    assert [signed.strip() for _, _, signed in got] == ["/usr/share/keyrings/k.gpg", "/k.gpg"]


def fetch_cli(*args, **env):
    return subprocess.run(
        [REPO / "packaging" / "sources" / "fetch", *args],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_reports_unknown_names_and_lock_errors(tmp_path):
    res = fetch_cli("--dest", tmp_path, "emacs")
    assert res.returncode == 2 and "emacs is not in" in res.stderr and "e2fsprogs" in res.stderr
    (tmp_path / "lock").write_text("one two\n")
    res = fetch_cli("--lock", tmp_path / "lock", "--dest", tmp_path, "one")
    assert res.returncode == 1 and "line 1" in res.stderr and "Traceback" not in res.stderr


def test_command_takes_the_directory_from_the_environment(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / FILE).write_bytes(GOOD)
    (tmp_path / "lock").write_text(f"thing 1.0 {SHA} {FILE}\n")
    res = fetch_cli(
        "--lock", tmp_path / "lock", "--dest", tmp_path / "dest", "thing", ITREE_SOURCES=str(tmp_path / "given")
    )
    assert res.returncode == 0 and res.stdout.strip() == str(tmp_path / "dest" / FILE)


def test_mirror_of_this_machine_gives_a_pinned_source(tmp_path):
    """The whole way: private APT directory, Sources index, download, check."""
    res = fetch_cli("--dest", tmp_path, "tar", ITREE_SOURCES="")
    assert res.returncode == 0, res.stderr
    assert pathlib.Path(res.stdout.strip()).name == sources.read_lock()["tar"].file


class ListedMirror(sources.Mirror):
    """A mirror whose APT is a table {suite: {version: file}}; what it serves has the address of its version."""

    def __init__(self, dest, offers):
        super().__init__(dest)
        self.offers, self.suites, self.asked = offers, [], []

    def call(self, argv, cwd=None):
        words = [a for a in argv[1:] if not a.startswith("-")]
        if argv[-1] == "update":
            text = (self.dir / "sources.d" / "itree.sources").read_text()
            self.suites = [t.split()[1] for t in text.splitlines() if t.startswith("Suites:")]
            missing = [s for s in self.suites if s not in self.offers]
            if missing:
                raise sources.SourceError(f"no such suite: {missing[0]}")
            self.asked.append(self.suites[-1])
            return ""
        have = {v: f for s in self.suites for v, f in self.offers[s].items()}
        if "madison" in words:
            return "".join(f" thing | {v} | <mirror> {self.suites[0]}/main Sources\n" for v in have)
        if "source" in words:
            version = argv[-1].split("=")[1]
            return f"'mirror:{version}' {have[version]} 20 SHA256:0\n"
        assert "download-file" in words, argv
        pathlib.Path(argv[-1]).write_bytes(GOOD if argv[-2] == "mirror:1.0-1" else b"another\n")
        return ""


@pytest.fixture
def apt(monkeypatch):
    monkeypatch.setattr(sources, "host_stanzas", lambda: [(["http://mirror.invalid"], ["x"], None)])
    monkeypatch.setattr(sources, "LATER", ("later", "last"))


@pytest.mark.parametrize(
    "offers, asked",
    [
        ({sources.SUITE: {"1.0-1": FILE, "1.1-1": "thing_1.1.orig.tar.gz"}}, [sources.SUITE]),
        ({sources.SUITE: {"0.9-1": "thing_0.9.orig.tar.gz"}, "later": {"1.0-1": FILE}}, [sources.SUITE, "later"]),
        ({sources.SUITE: {}, "later": {}, "last": {"1.0-1": FILE}}, [sources.SUITE, "later", "last"]),
        ({sources.SUITE: {}, "last": {"1.0-1": FILE}}, [sources.SUITE, "last"]),
    ],
)
def test_suites_are_asked_in_turn(thing, dirs, apt, offers, asked):
    """Whichever version of the suite is the newest; a mirror need not have the later ones."""
    mirror = ListedMirror(dirs[1], offers)
    assert sources.fetch(thing, dirs[1], None, mirror).read_bytes() == GOOD
    assert mirror.asked == asked


def test_what_no_suite_has_is_said(thing, dirs, apt):
    mirror = ListedMirror(dirs[1], {sources.SUITE: {"0.9-1": "thing_0.9.orig.tar.gz"}, "later": {}})
    with pytest.raises(sources.SourceError, match="it offers thing_0.9.orig.tar.gz for thing"):
        sources.fetch(thing, dirs[1], None, mirror)


class KernelMirror(sources.Mirror):
    """A mirror whose APT has one kernel package in each suite of a table {suite: [versions]}; the host has none."""

    def __init__(self, dest, offers):
        super().__init__(dest)
        self.offers, self.lists = offers, []

    def call(self, argv, cwd=None):
        if argv[-1] == "update":
            text = (self.dir / "sources.d" / "itree.sources").read_text()
            self.lists = [t.split()[1] for t in text.splitlines() if t.startswith("Suites:")]
            if missing := [s for s in self.lists if s not in self.offers]:
                raise sources.SourceError(f"no such suite: {missing[0]}")
            return ""
        private = "Dir::Etc::sourcelist=/dev/null" in argv
        have = [v for s in self.lists * private for v in self.offers.get(s, [])]
        if "madison" in argv:
            return "".join(f" {argv[-1]} | {v} | <mirror> Packages\n" for v in have)
        name, _, version = argv[-1].partition("=")
        if version not in have:
            raise sources.SourceError(f"no {argv[-1]}")
        (pathlib.Path(cwd) / f"{name}_{version}_all.deb").write_bytes(b"kernel")
        return ""


@pytest.mark.parametrize(
    ("offers", "taken"),
    [
        ({sources.SUITE: ["9.9.1-1"], "first": ["9.9.2-1"]}, "9.9.1-1"),
        ({sources.SUITE: [], "first": [], "second": ["9.9.4-1~bpo1", "9.9.3-1"], "third": ["9.9.5-1"]}, "9.9.4-1~bpo1"),
        ({sources.SUITE: [], "third": ["9.9~rc7-1"]}, "9.9~rc7-1"),
    ],
)
def test_a_newer_kernel_comes_from_the_first_suite_that_has_it(dirs, apt, monkeypatch, offers, taken):
    """A mirror need not have all of the suites."""
    monkeypatch.setattr(sources, "KERNELS", ("first", "second", "third"))
    source = sources.Source("linux-9.9", "9.9", None, "linux-source-9.9")
    path = KernelMirror(dirs[1], offers).download(source)
    assert path.name == f"linux-source-9.9_{taken}_all.deb"


def test_a_kernel_that_no_suite_has_is_named_with_them(dirs, apt, monkeypatch):
    monkeypatch.setattr(sources, "KERNELS", ("first", "second"))
    source = sources.Source("linux-9.9", "9.9", None, "linux-source-9.9")
    with pytest.raises(sources.SourceError, match="no linux-source-9.9 in .*, first, second; first: no such suite"):
        KernelMirror(dirs[1], {sources.SUITE: [], "second": []}).download(source)


def test_those_that_fetch_at_once_take_turns(thing, dirs):
    """Each has a private APT directory in the same place: apt-get fails when another one holds its lists."""
    _, dest = dirs
    busy, seen = threading.Event(), []

    class Slow(FakeMirror):
        def download(self, source):
            seen.append(busy.is_set())
            busy.set()
            time.sleep(0.3)
            path = super().download(source)
            busy.clear()
            return path

    mirrors = [Slow(dest, GOOD), Slow(dest, GOOD)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda m: sources.fetch(thing, dest, mirror=m), mirrors))
    assert paths == [dest / FILE] * 2
    assert seen == [False] and sum(m.asked for m in mirrors) == 1
