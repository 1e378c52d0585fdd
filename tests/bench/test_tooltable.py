# SPDX-License-Identifier: GPL-2.0-only
"""The table of bench/tools: runs put together, what is slower told, nothing missing hidden."""

from cells import toolcells, tooltable
from cells.toolcells import Cell

WORKS = {work.name: work for work in toolcells.WORKS}


def cell(variant="unpatched", work="tar c", memory="1G"):
    return Cell("ext4", "clean", 100, memory, WORKS[work], variant)


def figures(reads, everything=None, runs=1):
    part = {"requests": 1000, "seeks": 10, "seconds": reads}
    return {"reads": part, "all": {**part, "seconds": everything or reads}, "wall": 2, "peak_kib": 512, "runs": runs}


def test_runs_are_kept_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path))
    results, inputs = toolcells.Results(), {"image": "x"}
    assert tooltable.runs(cell(), inputs, results) == []
    for run, value in enumerate((3.0, 1.0, 2.0)):
        results.put(tooltable.numbered(inputs, run), figures(value))
    found = tooltable.runs(cell(), inputs, results)
    assert [f["reads"]["seconds"] for f in found] == [3.0, 1.0, 2.0]
    assert results.get(inputs)["reads"]["seconds"] == 3.0, "the first run is what was kept before there were more"
    assert tooltable.runs(cell(), {"image": "y"}, results) == []


def test_the_run_in_the_middle_counts_and_of_two_the_slower():
    assert tooltable.middle(cell(), []) is None
    result = tooltable.middle(cell(), [figures(9.0), figures(1.0), figures(2.0)])
    assert result["reads"]["seconds"] == 2.0 and result["runs"] == 3
    assert tooltable.middle(cell(), [figures(9.0), figures(1.0)])["reads"]["seconds"] == 9.0


def test_what_changes_the_volume_counts_with_its_writes():
    results = {cell(work="rm -r"): figures(10.0, 20.0), cell("preload", "rm -r"): figures(10.0, 30.0)}
    assert list(tooltable.slower(results).values()) == [1.5]
    results = {cell(): figures(10.0, 20.0), cell("patched"): figures(10.0, 30.0)}
    assert not tooltable.slower(results)


def test_slower_is_told_per_volume_and_work():
    results = {
        cell(): figures(100.0),
        cell("patched"): figures(103.0),
        cell("--sort=disk"): figures(103.2, runs=3),
        cell(memory="192M"): figures(1.0),
        cell("patched", memory="192M"): None,
        cell("patched", "cp -r"): figures(500.0),
    }
    assert [c.variant for c in tooltable.slower(results)] == ["--sort=disk"]
    text = tooltable.verdict(results)
    assert text[0] == "2 variants compared with unpatched, 2 not measured"
    assert text[1] == "slower by more than 3%: 1"
    assert text[2] == "ext4 clean 1G: tar c, --sort=disk: 1.032 (one run)"
    assert len(text) == 3


def test_a_document_says_what_is_missing():
    text = tooltable.markdown({cell(): figures(100.0), cell("patched"): None}, "100 files.")
    assert "| ext4 clean, 1G | `tar c` | unpatched | 1,000 | 10 | 100.0 | - | 2.0 | 0.5 | 1 |" in text
    assert "| ext4 clean, 1G | `tar c` | patched | not measured | - |" in text
    assert "0 variants compared with unpatched, 1 not measured" in text
    lengths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert lengths == {len(tooltable.HEAD) + 1}


def test_what_seems_slower_is_run_again_with_what_it_is_compared_with():
    results = {
        cell(): figures(100.0),
        cell("patched"): figures(110.0),
        cell("--sort=disk"): figures(90.0),
        cell(memory="192M"): figures(100.0),
        cell("patched", memory="192M"): figures(100.0),
    }
    assert [c.variant for c in tooltable.doubtful(results, 3)] == ["unpatched", "patched"]
    assert tooltable.doubtful(results, 1) == []


def test_what_is_missing_comes_before_what_is_doubtful():
    results = {cell(): figures(100.0), cell("patched"): figures(110.0), cell("--sort=disk"): None}
    assert [c.variant for c in tooltable.due(results, 3)] == ["--sort=disk"]
    results = {c: f for c, f in results.items() if f}
    assert [c.variant for c in tooltable.due(results, 3)] == ["unpatched", "patched"]
    assert tooltable.due(results, 1) == []


def test_another_variant_does_not_count_as_runs():
    results = {cell(): figures(100.0, runs=3), cell("patched"): figures(110.0, runs=3)}
    results[cell("--sort=disk")] = figures(9.0)
    assert tooltable.verdict(results)[2] == "ext4 clean 1G: tar c, patched: 1.100 (3 runs)"
