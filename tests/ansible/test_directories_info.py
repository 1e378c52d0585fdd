# SPDX-License-Identifier: GPL-2.0-only
"""itree_directories_info on an ext4 of this host's kernel, against what os.walk and stat say."""

import os
import re

import pytest
from conftest import fill, run

NAME = "itree_directories_info"


@pytest.fixture
def spool(image, tmp_path):
    """Large and small directories, nested, with a tmpfs and links between them."""
    top = image("-b", "1024").mount(tmp_path / "spool")
    fill(top / "flat", 1500)
    fill(top / "deep" / "er" / "large", 700)
    for n in range(5):
        (top / "deep" / "er" / "large" / f"sub{n}").mkdir()
    fill(top / "deep" / "er" / "large" / "sub3" / "below", 800)
    fill(top / "small", 5)
    # Large once, nearly empty now: ext4 does not give the blocks back, and a scan still reads them.
    for path in list(fill(top / "was", 900).iterdir())[3:]:
        path.unlink()
    (top / "link").symlink_to(top / "flat")
    (top / "other").mkdir()
    run("mount", "-t", "tmpfs", "itree-test", top / "other")
    fill(top / "other" / "not-ext4", 900)
    yield top
    run("umount", top / "other")


def walked(top, blocks, size=1024):
    """The same found the slow way."""
    out, device = {}, os.stat(top).st_dev
    for where, dirs, files in os.walk(top):
        dirs[:] = [d for d in dirs if os.lstat(os.path.join(where, d)).st_dev == device]
        number = len(os.listdir(where))
        if os.stat(where).st_size >= blocks * size:
            out[where] = (os.stat(where).st_size // size, number)
        assert len(files) <= number
    return out


@pytest.mark.parametrize("blocks", (16, 40, 1))
def test_finds_them(collection, spool, blocks):
    answer = collection.module(NAME, {"paths": [str(spool)], "min_blocks": blocks, "count_entries": True})
    want = walked(spool, blocks)
    assert len(want) >= 3
    assert {d["path"]: (d["blocks"], d["entries"]) for d in answer["directories"]} == want
    assert answer["complete"] and answer["total"] == len(want) and not answer["changed"]
    sizes = [d["blocks"] for d in answer["directories"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(not d["has_tree"] for d in answer["directories"])
    # Directories that ext4 lets grow beyond a block have an htree; lost+found is made in one piece by mke2fs.
    can = {p for p, n in want.items() if n[0] > 1 and not p.endswith("lost+found")}
    assert {d["path"] for d in answer["directories"] if d["can_have_tree"]} == can
    if blocks == 16:
        few = collection.module(NAME, {"paths": [str(spool)], "only_without_tree": True})
        assert {d["path"] for d in few["directories"]} == can and few["total"] == len(want)
        assert few["load"]["average"] >= 0 and few["load"]["processors"] == len(os.sched_getaffinity(0))


def test_lists_no_flat_directory(collection, spool, tmp_path):
    """System calls tell: names are read only where there are subdirectories."""
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "-y", "-e", "trace=getdents64", "-o", trace)
    answer = collection.module(NAME, {"paths": [str(spool)]}, before=strace)
    read = set(re.findall(r"getdents64\(\d+<([^>]*)>", trace.read_text()))
    ours = {p for p in read if p.startswith(str(spool))}
    assert ours == {str(spool / d) for d in (".", "deep", "deep/er", "deep/er/large", "deep/er/large/sub3")}
    assert answer["work"]["listed"] == len(ours)
    entries = {d["path"]: d["entries"] for d in answer["directories"]}
    # Known for nothing where it had to be listed anyway.
    assert entries[str(spool / "deep/er/large")] == 705
    assert entries[str(spool / "flat")] is None


def test_not_recursive(collection, spool):
    answer = collection.module(NAME, {"paths": [str(spool / "flat"), str(spool / "deep")], "recursive": False})
    assert [d["path"] for d in answer["directories"]] == [str(spool / "flat")]
    assert answer["work"] == {"directories": 2, "listed": 0, "names": 0}


def test_same_twice(collection, spool):
    """Paths that overlap are not reported twice."""
    paths = [str(spool), str(spool / "deep"), str(spool / "link")]
    answer = collection.module(NAME, {"paths": paths})
    found = [d["path"] for d in answer["directories"]]
    assert sorted(found) == sorted(walked(spool, 16))


def test_bounds(collection, spool):
    answer = collection.module(NAME, {"paths": [str(spool)], "max_names": 3})
    assert (answer["complete"], answer["stopped_by"]) == (False, "max_names")
    assert answer["work"]["names"] <= 4
    assert "max_names reached" in str(answer["warnings"])
    answer = collection.module(NAME, {"paths": [str(spool)], "max_results": 1})
    assert [d["path"] for d in answer["directories"]] == [str(spool / "flat")]
    assert answer["total"] > 1 and answer["complete"]


@pytest.mark.parametrize(
    ("args", "words"),
    (
        ({"paths": []}, "paths is empty"),
        ({"paths": ["relative"]}, "absolute"),
        ({"paths": ["/nowhere/at/all"]}, "No such file"),
        ({"paths": ["/etc/passwd"]}, "not a directory"),
        ({"paths": ["/proc"]}, "only ext4 has itrees"),
        ({"paths": ["/"], "min_blocks": 0}, "at least 1"),
    ),
)
def test_refuses(collection, args, words):
    assert words in collection.module(NAME, args, ok=False)["msg"]


def test_no_htree(collection, image, tmp_path):
    """Of directories that cannot have a tree it says so, and why."""
    top = image("-O", "^dir_index").mount(tmp_path / "old")
    fill(top / "large", 1200)
    (found,) = collection.module(NAME, {"paths": [str(top)]})["directories"]
    assert not found["can_have_tree"] and "htree" in found["why_not"]
    # What convert asks for is what it can convert; the rest is counted.
    answer = collection.module(NAME, {"paths": [str(top)], "only_without_tree": True})
    counted = [answer[k] for k in ("total", "with_tree", "cannot_have_tree")]
    assert answer["directories"] == [] and counted == [1, 0, 1]


def test_not_utf8(collection, image, tmp_path):
    """Through all of Ansible: such a path is told, and not offered for conversion."""
    top = image().mount(tmp_path / "spool")
    where = os.path.join(os.fsencode(top), b"Entw\xfcrfe")
    os.mkdir(where)
    for n in range(1200):
        open(os.path.join(where, b"%060d" % n), "wb").close()
    fill(top / "Entwürfe", 1200)
    play = [{"hosts": "all", "gather_facts": False, "tasks": [
        {"itree.storage.itree_directories_info": {"paths": [str(top)]}, "register": "found"},
        {"ansible.builtin.copy": {"dest": str(tmp_path / "found"), "mode": "0600",
                                  "content": "{{ found.directories | map(attribute='path') | join('\n') }}\n"
                                             "{{ found.directories | selectattr('can_have_tree') | length }}\n"}},
    ]}]  # fmt: skip
    collection.play(play, {"here": {}}).good()
    lines = (tmp_path / "found").read_text().splitlines()
    assert sorted(lines) == sorted([str(top / "Entwürfe"), f"{top}/Entw\\xfcrfe", "1"])
