# SPDX-License-Identifier: GPL-2.0-only
"""bench/tools: cells, what is kept of them, and one real cell."""

import dataclasses
import os
import subprocess
import sys

import pytest

import lab
from cells import toolcells

DU = next(w for w in toolcells.WORKS if w.name == "du -s")
RM = next(w for w in toolcells.WORKS if w.name == "rm -r")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))


def cell(work=DU, variant="unpatched", memory="192M"):
    return toolcells.Cell("ext4", "clean", 300, memory, work, variant)


def test_results_are_kept_by_what_went_in(monkeypatch):
    results = toolcells.Results()
    inputs = cell().inputs("image 1")
    assert results.get(inputs) is None
    results.put(inputs, {"wall": 1})
    assert toolcells.Results().get(cell().inputs("image 1")) == {"wall": 1}
    others = [cell().inputs("image 2"), cell(memory="1G").inputs("image 1"), cell(work=RM).inputs("image 1")]
    monkeypatch.setattr(lab, "sha256", lambda path: f"changed {path}")
    others.append(cell().inputs("image 1"))
    assert all(results.get(other) is None for other in others)


def test_results_go_to_another_machine(tmp_path, monkeypatch):
    there, out = toolcells.Results(), tmp_path / "out.json"
    for memory in ("192M", "1G"):
        there.put(cell(memory=memory).inputs("image"), {"wall": memory})
    assert there.export(out) == 2
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "elsewhere"))
    here = toolcells.Results()
    here.put(cell(memory="1G").inputs("image"), {"wall": "measured here"})
    assert here.take(out) == 1 and here.take(out) == 0
    assert [here.get(cell(memory=m).inputs("image")) for m in ("192M", "1G")] == [
        {"wall": "192M"},
        {"wall": "measured here"},
    ]
    for text in ("", "[]", '{"results": [1]}', '{"results": [{"inputs": {}}]}'):
        out.write_text(text)
        with pytest.raises(lab.LabError, match="--export"):
            here.take(out)


def test_a_broken_result_is_measured_again():
    results = toolcells.Results()
    inputs = cell().inputs("image")
    results.put(inputs, {"wall": 1})
    results.path(inputs).write_text("{")
    assert results.get(inputs) is None


def test_every_variant_has_a_program_and_a_place():
    for work in toolcells.WORKS:
        assert work.runs and "unpatched" in work.runs
        for command in work.runs.values():
            assert any("{mnt}" in word for word in command)
            assert bool(work.target) == any("{dst}" in word for word in command)


def test_what_failed_is_no_figure(tmp_path):
    result = tmp_path / "peak"
    result.write_text("1234 0\n")
    assert toolcells.read_peak(cell(), result) == 1234
    for text in ("1234 2\n", "", "Command terminated by signal 9\n1234 0\n"):
        result.write_text(text)
        with pytest.raises(lab.LabError, match="du -s"):
            toolcells.read_peak(cell(), result)


def test_nothing_is_measured_for_a_table(tmp_path):
    if not (lab.E2FS / "mke2fs").exists():
        pytest.skip("needs `make e2fsprogs`: a table is of volumes that mke2fs would make")
    for name in ("tar", "rsync", "cp", "ls"):
        if not (toolcells.ROOT / "bin" / name).exists():
            pytest.skip("needs `ITREE_FULL=1 make tools`: cells are known by their programs")
    argv = [sys.executable, "-B", lab.BENCH / "tools", "--table", "--fs", "ext4", "--fill", "clean", "--work", "du -s"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("ext4 clean ")]
    assert len(rows) == 4 and all("not measured" in row for row in rows)
    assert "0 variants compared with unpatched, 2 not measured" in done.stdout


@pytest.mark.parametrize("work", [DU, RM], ids=["du", "rm"])
def test_a_real_cell(tmp_path, work):
    """The requests of its volume, cold; the volume is another one after rm."""
    if os.geteuid():
        pytest.skip("needs root to mount an image")
    if not (lab.E2FS / "mke2fs").exists():
        pytest.skip("needs `make e2fsprogs`")
    (tmp_path / "w").mkdir()
    (tmp_path / "f").mkdir()
    image = toolcells.host_fill("ext4", "clean", 300, tmp_path / "f")
    volumes = toolcells.Volumes(image, "ext4", tmp_path / "w")
    for _ in range(2):
        result = toolcells.measure(cell(work), volumes)
        assert result["reads"]["requests"] > 3 and result["reads"]["seconds"] > 0
        assert result["peak_kib"] > 500
    assert volumes.fresh == (work is DU)
    assert not list(tmp_path.glob("w/mnt/*"))
    wrong = dataclasses.replace(work, runs={"unpatched": ["/usr/bin/false", "{mnt}"]})
    with pytest.raises(lab.LabError, match="failed"):
        toolcells.measure(cell(wrong), volumes)
    # A mount namespace made meanwhile may hold the volume: then the device goes when that does (AUTOCLEAR 1).
    argv = ["losetup", "-l", "-n", "-O", "AUTOCLEAR,BACK-FILE"]
    left = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert not [line for line in left.splitlines() if str(tmp_path) in line and line.split()[0] == "0"]
