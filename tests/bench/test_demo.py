# SPDX-License-Identifier: GPL-2.0-only
"""The parts of bench/demo and bench/peers that need no guest."""

import argparse
import subprocess

import pytest
import treebuild as tb

import lab
from model import pricing
from trace import records

pytest.importorskip("matplotlib", reason="matplotlib is missing: run `make deps`")
from draw import plot  # noqa: E402

demo = tb.load_script(lab.BENCH / "demo")
peers = tb.load_script(lab.BENCH / "peers")


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "src" / "usr" / "src").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("hello\n")
    return tmp_path


@pytest.mark.parametrize(("suffix", "flag"), [(".tar", ""), (".tar.gz", "z"), (".tar.xz", "J")])
def test_archives_are_unpacked_to_plain_tar(tree, suffix, flag):
    archive = tree / f"tree{suffix}"
    subprocess.run(["tar", f"c{flag}f", archive, "-C", tree, "tree"], check=True)
    (tree / "work").mkdir()
    out = demo.plain_tar(archive, tree / "work")
    listed = subprocess.run(["tar", "tf", out], check=True, capture_output=True, text=True).stdout
    assert listed.split() == ["tree/", "tree/file"]


def test_other_archives_are_refused(tree):
    archive = tree / "tree.zip"
    archive.write_bytes(b"PK")
    with pytest.raises(lab.LabError, match=r"tree\.zip"):
        demo.plain_tar(archive, tree)


def test_damaged_archive_is_an_error(tree):
    archive = tree / "tree.tar.gz"
    archive.write_bytes(b"not gzip")
    with pytest.raises(lab.LabError, match="gzip"):
        demo.plain_tar(archive, tree)


def test_missing_archive_is_named(tmp_path):
    with pytest.raises(lab.LabError, match=r"nothing\.tar"):
        demo.find_archive(str(tmp_path / "nothing.tar"))


class Told:
    """A report of a guest, as far as check() asks."""

    def __init__(self, descents):
        self.outputs = {"ls": "4", "tar-mail": "99", "tar-source": "77"}
        self.walk = {"entries": 3, "descents": descents}

    def output(self, step):
        return self.outputs[step]

    def json(self, step):
        assert step == "names"
        return self.walk


ARGS = argparse.Namespace(count=3)


@pytest.fixture
def reports():
    return {"ignored": Told(2), "used": Told(0)}


def test_check_accepts_what_is_right(reports):
    demo.check(ARGS, reports)


def test_check_wants_the_same_archive_twice(reports):
    reports["used"].outputs["tar-mail"] = "98"
    with pytest.raises(lab.LabError, match="tar-mail"):
        demo.check(ARGS, reports)


def test_check_wants_every_message(reports):
    for result in reports.values():
        result.outputs["ls"] = "3"
    with pytest.raises(lab.LabError, match="3 messages"):
        demo.check(ARGS, reports)


@pytest.mark.parametrize(("mode", "key", "value"), [("ignored", "entries", 2), ("used", "descents", 1)])
def test_check_wants_every_name_and_inode_order(reports, mode, key, value):
    reports[mode].walk[key] = value
    with pytest.raises(lab.LabError):
        demo.check(ARGS, reports)


def figures(reads, written=0):
    requests = [records.Request(0, "R", i * 5000, 8, "x") for i in range(reads)]
    requests += [records.Request(0, "W", i * 5000, 8, "x") for i in range(written)]
    return {**pricing.summary(requests), "wall": 1.25, "commits": 1, "cpu_seconds": 1.0}


def test_table_of_the_demo_has_a_line_for_each_work_and_mode():
    result = {name: {"ignored": figures(2000), "used": figures(20)} for name, _, _ in demo.JOBS}
    lines = demo.print_table(result).splitlines()
    assert len(lines) == 2 + 2 * len(demo.JOBS)
    assert "2,000" in lines[2]
    assert lines[3].split()[:2] == ["used", "20"]


def test_tables_of_peers():
    row = {"fs": "ext4", "fill": "clean", "what": "rm", "tree": "", **figures(10, 5)}
    text = peers.read_table([row])
    assert text.splitlines()[2].split()[:4] == ["ext4", "clean:", "rm", "10"]
    assert "did not finish" not in text
    assert "rm (did not finish)" in peers.read_table([{**row, "status": 137}])
    created = {"seconds_synced": 10.0, "user_seconds": 1.0, "system_seconds": 7.0}
    stock = {**row, "what": "create", "created": created, "journal_blocks": 1000}
    itree = {**stock, "fs": "itree", "journal_blocks": 1020, "created": {**created, "seconds_synced": 11.0}}
    xfs = {key: value for key, value in stock.items() if key != "journal_blocks"} | {"fs": "xfs"}
    lines = peers.create_table([stock, itree, xfs]).splitlines()
    assert lines[3].split()[2:4] == ["1,020", "1.020"]
    assert "1.100" in lines[3]
    assert lines[4].split()[2:5] == ["-", "-", "-"]


def test_choices_keep_one_order_and_refuse_others():
    parse = peers.choices(("a", "b", "c"))
    assert parse("c,a") == ["a", "c"]
    with pytest.raises(argparse.ArgumentTypeError, match="'x'"):
        parse("a,x")


def test_long_unread_stretches_are_left_out():
    bands = plot.Bands([0, 1000, 2_000_000_000, 2_000_003_000])
    assert bands.bands == [[0, 1000], [2_000_000_000, 2_000_003_000]]
    places = [bands.place(sector) for sector in (0, 1000, 2_000_000_000, 2_000_003_000)]
    # bands of 1,000 and 3,000 sectors with 6 % of their sum between them
    assert places == [0, 1000, 1240, 4240]
    assert bands.top == 4240


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_pictures_are_tall_and_large(tmp_path):
    plot.inode_order(tmp_path / "i.png", "t", [3, 1, 2], [1, 2, 3])
    few = [records.Request(0, "R", i * 8, 8, "x") for i in range(3)]
    many = [records.Request(0, "R", i * 80_000, 8, "x") for i in range(50)]
    plot.disk_addresses(tmp_path / "a.png", "t", many, few)
    plot.disk_addresses(tmp_path / "e.png", "t", [], [])
    for name in ("i.png", "a.png", "e.png"):
        width, height = png_size(tmp_path / name)
        assert height > width >= 1000
