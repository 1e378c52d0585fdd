# SPDX-License-Identifier: GPL-2.0-only
"""fill, walk, image cache and tables on the host's own file system."""

import hashlib
import json
import os
import re
import subprocess
import time

import pytest

import lab


@pytest.fixture(scope="module")
def tools():
    return lab.compile_tools()


def call(program, *args):
    return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=120, check=False)


def fill(tools, *args):
    done = call(tools / "fill", "-q", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_names_are_16_digits_of_the_hash(tools, tmp_path):
    result = fill(tools, "-n", 500, "-s", 10, tmp_path / "d")
    assert (result["live"], result["created"], result["deleted"]) == (500, 500, 0)
    wanted = {f"{serial * 0x9E3779B97F4A7C15 % 2**64:016x}.msg" for serial in range(500)}
    assert set(os.listdir(tmp_path / "d")) == wanted
    assert {entry.stat().st_size for entry in os.scandir(tmp_path / "d")} == {10}


def test_aged_deletes_three_in_ten_steps(tools, tmp_path):
    result = fill(tools, "-n", 4000, "-s", 0, "-a", 30, tmp_path / "d")
    assert len(os.listdir(tmp_path / "d")) == result["live"] == result["created"] - result["deleted"] == 4000
    steps = result["created"] + result["deleted"]
    assert result["deleted"] / steps == pytest.approx(0.3, abs=0.02)


def test_the_seed_decides(tools, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fill(tools, "-n", 200, "-s", 0, "-a", 30, "-S", seed, tmp_path / name)
    a, b, c = (set(os.listdir(tmp_path / name)) for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("length", [2, 5, 15, 16, 19, 20, 21, 255])
def test_name_lengths(tools, tmp_path, length):
    fill(tools, "-n", 200, "-s", 0, "-l", length, tmp_path / "d")
    names = os.listdir(tmp_path / "d")
    assert len(names) == 200
    assert {len(name) for name in names} == {length}


def test_too_few_names_is_an_error(tools, tmp_path):
    done = call(tools / "fill", "-q", "-n", 17, "-l", 1, tmp_path / "d")
    assert done.returncode == 1
    assert "File exists" in done.stderr


@pytest.mark.parametrize("args", [["-n", "x"], ["-n", "-1"], ["-a", "50"], ["-l", "256"], ["-l", "0"], []])
def test_bad_arguments(tools, args):
    assert call(tools / "fill", *args).returncode == 2


def test_walk_tells_what_is_there(tools, tmp_path):
    fill(tools, "-n", 300, "-s", 5000, tmp_path / "d")
    (tmp_path / "d" / "sub").mkdir()
    (tmp_path / "d" / "link").symlink_to("nowhere")
    done = call(tools / "walk", "-r", "-o", tmp_path / "seq", tmp_path / "d")
    result = json.loads(done.stdout)
    assert result["entries"] == 302
    assert result["bytes"] == 300 * 5000
    sequence = [int(line) for line in (tmp_path / "seq").read_text().split()]
    order = [entry.inode() for entry in os.scandir(tmp_path / "d")]
    assert sequence == order
    back = sum(1 for a, b in zip(order, order[1:], strict=False) if b < a)
    assert result["descents"] == back


def test_walk_of_nothing_fails(tools, tmp_path):
    done = call(tools / "walk", tmp_path / "none")
    assert done.returncode == 1
    assert "none" in done.stderr


def test_cache_holds_until_an_input_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path))
    cache = lab.ImageCache("x", {"kernel": "1"})
    assert cache.get() is None
    with lab.scratch("t") as work:
        image = work / "disk.img"
        image.write_bytes(b"data")
        cache.put(image, {"n": 1})
    assert not work.exists()
    assert lab.ImageCache("x", {"kernel": "1"}).get()["told"] == {"n": 1}
    assert lab.ImageCache("x", {"kernel": "2"}).get() is None
    cache.drop()
    assert lab.ImageCache("x", {"kernel": "1"}).get() is None


def test_scratch_of_a_killed_run_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path))
    left = lab.cache_dir() / "tmp-999999999-old-x"
    left.mkdir()
    with lab.scratch("t"):
        assert not left.exists()


def test_copies_stay_sparse_and_equal(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    with open(source, "wb") as out:
        out.truncate(64 << 20)
        out.seek(50 << 20)
        out.write(b"x" * 4096)
    lab.copy_image(source, target)
    assert target.stat().st_size == 64 << 20
    assert target.stat().st_blocks * 512 < 1 << 20
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in (source, target)]
    assert digests[0] == digests[1]


def test_no_space_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(lab.LabError, match="ITREE_CACHE"):
        lab.need_space(tmp_path, 1 << 60)


def test_table_lines_up():
    text = lab.table(["what", "n"], [["a", "1"], ["long name", "1,000"]])
    assert text.splitlines() == ["what           n", "---------  -----", "a              1", "long name  1,000"]


def test_extents_of_debugfs_output():
    text = "EXTENTS:\n(ETB0):900, (0-9):1000-1009, (10):1100\n"
    assert [(m[0], m[1], m[2]) for m in lab._EXTENT.findall(text)] == [("0", "9", "1000"), ("10", "", "1100")]
    assert re.search("ETB", text)


def finished(share):
    (share / "result.json").write_text(json.dumps({"done": True, "steps": [{"name": share.name}]}))


def test_two_guests_give_two_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "run_guest", lambda share: finished(share))
    reports = lab.run_guests([{"share": tmp_path / "a"}, {"share": tmp_path / "b"}])
    assert [list(report.steps) for report in reports] == [["a"], ["b"]]


def test_a_guest_that_fails_ends_the_other(tmp_path, monkeypatch):
    def run_guest(share):
        if share.name == "a":
            raise lab.LabError("no disk")
        time.sleep(600)

    monkeypatch.setattr(lab, "run_guest", run_guest)
    begin = time.monotonic()
    with pytest.raises(lab.LabError, match="no disk"):
        lab.run_guests([{"share": tmp_path / "b"}, {"share": tmp_path / "a"}])
    assert time.monotonic() - begin < 300, "it waited for the other"


def test_a_guest_that_did_not_finish_is_an_error(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"steps": []}))
    with pytest.raises(lab.LabError, match="did not finish"):
        lab.read_report(tmp_path)
