# SPDX-License-Identifier: GPL-2.0-only
"""The parts of bench/matrix and bench/report that need no guest."""

import argparse
import json
import subprocess
from pathlib import Path

import pytest
import treebuild as tb

import lab
from cells import matrixcells, summary, tables
from cells.matrixcells import Cell
from cells.tables import Data
from draw import pages
from lab import images
from model import pricing
from trace import records

pytest.importorskip("matplotlib", reason="matplotlib is missing: run `make deps`")
matrix = tb.load_script(lab.BENCH / "matrix")
report = tb.load_script(lab.BENCH / "report")


def result(system, work, count=10_000, fill="clean", reads=100, status=0, **more):
    """A result as bench/matrix keeps it, of evenly spaced reads."""
    requests = [records.Request(0.0, "R", i * 100_000, 8, "x") for i in range(reads)]
    figures = {**pricing.summary(requests), "disks": pricing.on_all_disks(requests), "wall": 1.0, **more}
    cell = Cell(system, work, count, 4096, fill)
    return {
        "cell": cell.__dict__ | {"name": cell.name},
        "key": "k",
        "inputs": {"memory": "192M"},
        "status": status,
        "kernel": "6.12.1",
        "measured": "2026-11-21",
        "figures": figures,
    }


def line(data, start, where="10,000, clean"):
    (found,) = [li for li in tables.targets(data) if li.target.startswith(start) and li.where == where]
    return found


# -- cells -------------------------------------------------------------------


def test_every_work_and_system_of_the_issue_is_a_cell():
    names = {c.name for c in matrixcells.all_cells()}
    for system in matrixcells.SYSTEMS:
        assert f"{system}/tar/5000000/4096/aged" in names
    for work in matrixcells.WORKS:
        assert f"itree/{work}/10000/0/clean" in names
    assert len(names) == len(matrixcells.all_cells())


def test_cells_are_picked_by_pattern():
    picked = matrixcells.pick(["itree/*/10000/4096/clean", "*/lstat/10000/4096/clean"])
    assert {c.system for c in picked} == {"ext4", "ext4+sort", "itree", "xfs", "btrfs"}
    assert len(picked) == len(set(picked)) == len(matrixcells.WORKS) + 4


def test_a_pattern_for_nothing_is_an_error():
    with pytest.raises(lab.LabError, match="nosuch"):
        matrixcells.pick(["nosuch/*"])


def test_sorted_in_user_space_goes_through_readdir_of_the_library():
    command = Cell("ext4+sort", "lstat", 10_000, 4096, "clean").command()
    assert command[0].endswith("diskorder") and "-c" in command
    assert Cell("itree+tools", "tar", 10_000, 4096, "clean").command().count("--sort=disk") == 1
    assert "--sort=disk" not in Cell("itree", "tar", 10_000, 4096, "clean").command()


def test_a_result_holds_until_an_input_changes(tmp_path):
    kept = matrixcells.Results(tmp_path)
    cell = Cell("itree", "lstat", 10_000, 4096, "clean")
    trace = tmp_path / "t.gz"
    records.write_trace(trace, [records.Request(0.0, "R", 8, 8, "x")])
    kept.put(cell, {"kernel": "1"}, {"status": 0}, trace)
    assert kept.get(cell, matrixcells.hash_of({"kernel": "1"}))["cell"]["name"] == cell.name
    assert kept.get(cell, matrixcells.hash_of({"kernel": "2"})) is None
    assert records.read_trace(kept.trace(cell))[0].sector == 8
    assert [r["cell"]["work"] for r in kept.all()] == ["lstat"]


class Told:
    def __init__(self, text):
        self.text = text

    def output(self, step):
        return self.text


@pytest.mark.parametrize(
    ("work", "right", "wrong"),
    [
        ("lstat", '{"entries": 10000}', '{"entries": 9999}'),
        ("randstat", '{"asked": 10000, "found": 10000}', '{"asked": 10000, "found": 9999}'),
        ("missing", '{"asked": 10000, "found": 0}', '{"asked": 10000, "found": 1}'),
        (
            "mail",
            '{"read": 2000, "delivered": 1500, "deleted": 1200, "marked": 250, "listed": 50, "left": 10300}',
            '{"read": 2000, "delivered": 1500, "deleted": 1200, "marked": 250, "listed": 50, "left": 10299}',
        ),
        ("ls", "10001", "10000"),
        ("tar", str(10_000 * 4608), str(10_000 * 4608 - 1)),
    ],
)
def test_an_answer_that_cannot_be_right_is_an_error(work, right, wrong):
    cell = Cell("itree", work, 10_000, 4096, "clean")
    matrix.check_output(cell, Told(right))
    with pytest.raises(lab.LabError, match=work):
        matrix.check_output(cell, Told(wrong))


def test_what_fails_does_not_keep_the_rest_from_being_measured(tmp_path, monkeypatch):
    args = argparse.Namespace(memory="192M", again=False, timeout=1)
    monkeypatch.setattr(matrixcells.Results, "__init__", lambda self: setattr(self, "where", tmp_path))
    monkeypatch.setattr(Cell, "inputs", lambda self, memory: {"cell": self.name})
    monkeypatch.setattr(lab, "compile_tools", lambda: tmp_path)
    run = matrix.Matrix(args)
    done = []

    def read(part):
        if part[0].system == "ext4":
            raise lab.LabError("no")
        done.extend(c.name for c in part)

    monkeypatch.setattr(run, "read", read)
    run.run(matrixcells.pick(["ext4/ls/10000/4096/clean", "itree/ls/10000/4096/clean"]))
    assert run.failed == ["ext4/ls/10000/4096/clean"]
    assert done == ["itree/ls/10000/4096/clean"]


def test_works_of_one_guest_have_the_same_memory(monkeypatch, tmp_path):
    args = argparse.Namespace(memory="192M", again=False, timeout=1)
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lab, "compile_tools", lambda: tmp_path)
    monkeypatch.setattr(Cell, "inputs", lambda self, memory: {"cell": self.name})
    run = matrix.Matrix(args)
    parts = []
    monkeypatch.setattr(run, "read", lambda part: parts.append([(c.work, c.memory("192M")) for c in part]))
    run.run(matrixcells.pick(["itree/lstat/*/4096/clean", "itree/ls/*/4096/clean", "itree/tar/*/4096/clean"]))
    assert [("lstat", "192M"), ("ls", "192M"), ("tar", "192M")] in parts
    assert [("ls", "3G")] in parts
    assert all(len({memory for _, memory in part}) == 1 for part in parts)


@pytest.mark.parametrize(
    ("count", "work", "in_place"),
    [
        (300_000, "lstat", False),
        (300_000, "rm", False),
        (5_000_000, "lstat", True),
        (5_000_000, "copy", True),
        (5_000_000, "rm", False),
        (5_000_000, "mail", False),
    ],
)
def test_a_volume_in_the_cache_is_read_only_by_what_reads_only(tmp_path, monkeypatch, count, work, in_place):
    args = argparse.Namespace(memory="192M", again=False, timeout=1)
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    run = matrix.Matrix(args)
    source = tmp_path / "kept.img"
    source.write_bytes(b"kept")
    monkeypatch.setattr(run, "filled", lambda cell: source)
    monkeypatch.setattr(images.Volume, "cache", lambda self: lab.ImageCache("xfs", {}))
    monkeypatch.setattr(lab, "make_fs", lambda *_a, **_k: None)
    seen = []

    def guest(volumes, steps, *_rest, **_more):
        seen.append((volumes[0][0], [s.options.split(",") for s in steps]))
        raise lab.LabError("enough")

    monkeypatch.setattr(lab, "run_guest", guest)
    monkeypatch.setattr(lab, "read_report", lambda *_a, **_k: argparse.Namespace(steps={}))
    with pytest.raises(lab.LabError, match="enough"):
        run.read([Cell("xfs", work, count, 4096, "clean")])
    ((image, options),) = seen
    assert (image == source) == in_place
    assert all(("ro" in o) == in_place for o in options)
    # there is no room for a second one
    assert source.exists() == (count < 5_000_000 or work != "rm")


# -- small programs --------------------------------------------------------------


@pytest.fixture(scope="module")
def tools():
    return lab.compile_tools()


def test_lookup_finds_all_names_and_no_others(tools, tmp_path):
    (tmp_path / "d").mkdir()
    subprocess.run([tools / "fill", "-q", "-n", "300", "-s", "0", tmp_path / "d"], check=True, capture_output=True)
    subprocess.run([tools / "walk", "-n", "-N", tmp_path / "names", tmp_path / "d"], check=True, capture_output=True)
    for options, outcome in (
        ([], {"asked": 300, "found": 300}),
        (["-k", "10"], {"asked": 10, "found": 10}),
        (["-m", "-k", "299"], {"asked": 299, "found": 0}),
    ):
        done = subprocess.run(
            [tools / "lookup", *options, tmp_path / "names", tmp_path / "d"], check=True, capture_output=True
        )
        assert json.loads(done.stdout) == outcome


def test_mailmix_does_what_it_says_and_the_same_each_time(tools, tmp_path):
    seen = []
    for turn in ("a", "b"):
        top = tmp_path / turn
        (top / "d").mkdir(parents=True)
        subprocess.run([tools / "fill", "-q", "-n", "300", "-s", "9", top / "d"], check=True, capture_output=True)
        subprocess.run([tools / "walk", "-n", "-N", top / "names", top / "d"], check=True, capture_output=True)
        # that of a directory differs from one file system to another
        names = (top / "names").read_text().split()
        (top / "names").write_text("\n".join(sorted(names, reverse=turn == "b")) + "\n")
        before = set(names)
        argv = [tools / "mailmix", "-k", "1000", top / "names", top / "d", top / "tmp"]
        outcome = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
        after = {p.name for p in (top / "d").iterdir()}
        assert outcome["left"] == len(after) == 300 + outcome["delivered"] - outcome["deleted"]
        assert min(outcome[what] for what in ("read", "delivered", "deleted", "marked", "listed")) > 0
        assert outcome["bytes"] > outcome["read"] and not list((top / "tmp").iterdir())
        assert after - before and before - after
        seen.append((outcome, sorted((p.name, p.stat().st_size) for p in (top / "d").iterdir())))
    assert seen[0] == seen[1]


def test_both_ways_to_read_a_directory_see_the_same(tools, tmp_path):
    subprocess.run([tools / "fill", "-q", "-n", "500", "-s", "10", tmp_path / "d"], check=True, capture_output=True)
    seen = []
    for options in (["-r"], ["-r", "-c"]):
        done = subprocess.run([tools / "walk", *options, tmp_path / "d"], check=True, capture_output=True)
        seen.append({k: v for k, v in json.loads(done.stdout).items() if k != "seconds"})
    assert seen[0] == seen[1]
    assert seen[0]["bytes"] == 5000


def test_insn_passes_on_the_exit_code_or_says_what_is_missing(tools, tmp_path):
    note = tmp_path / "note"
    command = [tools / "insn", note, "sh", "-c", "exit 7"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if Path("/proc/schedstat").exists():
        assert done.returncode == 7
        assert int(note.read_text()) > 0
    else:
        assert done.returncode == 1
        assert "/proc/schedstat" in done.stderr


# -- tables and targets -------------------------------------------------------------


def test_nothing_measured_is_said_for_every_target_and_met_by_none():
    lines = tables.targets(Data([]))
    assert lines and all(li.reached == tables.NOT_MEASURED and li.met is None for li in lines)
    for count in ("300,000", "5,000,000"):
        assert {li.where for li in lines} >= {f"{count}, clean", f"{count}, aged"}


def test_traversal_is_held_against_the_sweep_and_the_peers():
    directory = {"names": 100, "tree": 22}
    # 122 blocks and 10,000 inodes of 256 bytes at 75 MB/s
    sweep = (122 * 4096 + 10_000 * 256) / 75e6
    few = result("itree", "lstat", reads=10, directory=directory)
    assert tables.sweep_seconds(few) == pytest.approx(sweep)
    slow, slower = result("xfs", "lstat", reads=50), result("btrfs", "lstat", reads=50)

    def met(ours, xfs, results):
        few["figures"]["disks"]["sas10k"]["reads"] = ours * sweep
        slow["figures"]["disks"]["sas10k"]["reads"] = xfs * sweep
        return line(Data(results), "getdents and lstat").met

    assert met(1.4, 3, [few, slow, slower]) is True
    assert "1.40 sweeps" in line(Data([few]), "getdents and lstat").reached
    assert met(1.4, 1.3, [few, slow, slower]) is False  # behind one
    assert met(1.6, 3, [few, slow, slower]) is False  # more than 1.5 sweeps
    assert met(1.4, 3, [few, slow]) is None  # ahead of one, the other is not known
    assert met(1.4, 1.3, [few, slow]) is False
    assert met(1.6, 3, [few]) is False


def test_instructions_and_journal_blocks_are_ratios_to_stock():
    counts = {"create": 1030, "names": 130, "lstat": 1, "rm": 1}
    stock = {"create": 1000, "names": 100, "lstat": 1, "rm": 1}
    data = Data(
        [
            result("itree", "insn", instructions=counts),
            result("ext4", "insn", instructions=stock),
            result("itree", "create", journal_blocks=104, directory={"names": 1, "tree": 30}),
            result("ext4", "create", journal_blocks=100),
        ]
    )
    assert line(data, "create: instructions").met is True
    assert line(data, "names alone, warm").met is True
    assert line(data, "create: journal blocks").met is False
    assert "1.040 of stock" in line(data, "create: journal blocks").reached
    assert line(data, "space").met is False  # 12.3 bytes
    head, rows = tables.instruction_table(data)
    assert rows[1][:3] == ["10,000, clean", "itree", "0 (1.030)"]


def test_what_did_not_finish_is_no_figure():
    data = Data([result("xfs", "rm", status=1), result("itree", "rm")])
    (row,) = tables.work_table(data, "rm")[1]
    assert row[1].startswith("100 req, ") and row[2] == "did not finish"
    # It is behind if it had taken longer by then; else nobody knows.
    for mine, behind in ((0.5, True), (2, None)):
        outcome = [result("xfs", "rm", status=1), result("itree", "rm")]
        outcome[1]["figures"]["disks"]["sas10k"]["all"] = mine * outcome[0]["figures"]["disks"]["sas10k"]["all"]
        found = line(Data(outcome), "rm -r")
        assert found.met is behind and found.peers.startswith("xfs did not finish, ")


def test_cost_of_an_operation_can_be_missed_by_two_sizes_but_not_met():
    def found(data):
        (only,) = [li for li in tables.targets(data) if "cost" in li.target and li.target.endswith("lstat")]
        return only

    near = [result("itree", "lstat", count=count) for count in (10_000, 100_000)]
    for outcome in near:
        outcome["figures"]["disks"]["sas10k"]["reads"] = outcome["cell"]["count"] / 1e5
    assert found(Data(near)).met is None
    assert found(Data(near)).reached == "10,000: 10.0 µs, 100,000: 10.0 µs"
    near[1]["figures"]["disks"]["sas10k"]["reads"] *= 1.3
    assert found(Data(near)).met is False
    # to get cheaper is no fault, to get dearer again is
    near[1]["figures"]["disks"]["sas10k"]["reads"] *= 0.5
    assert found(Data(near)).met is None
    last = result("itree", "lstat", count=5_000_000)
    last["figures"]["disks"]["sas10k"]["reads"] = 50 * 0.75
    assert found(Data([*near, last])).met is True
    last["figures"]["disks"]["sas10k"]["reads"] = 50 * 0.85
    assert found(Data([*near, last])).met is False


# -- the report ---------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    order = {"order": [[i, i * 7 % 50] for i in range(50)]}
    outcome = [
        result(system, work, count=count, reads=reads, directory={"names": 9, "tree": 2})
        for system, reads in (("ext4", 300), ("itree", 20))
        for work in ("lstat", "tar", "rm")
        for count in (10_000, 300_000)
    ]
    instructions = dict.fromkeys(("create", "names", "lstat", "rm"), 10**9)
    outcome += [result("itree", "names") | order, result("ext4", "insn", instructions=instructions)]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": outcome}))
    return path


def test_one_page_with_nothing_from_elsewhere(exported, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    command = [lab.BUILD / "venv" / "bin" / "python3", lab.BENCH / "report", "--from", exported]
    done = subprocess.run([*command, "--out", tmp_path / "out", "--docs", docs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in page and "http" not in page
    assert 'name="viewport"' in page
    assert page.count("data:image/png;base64,") == len(list((docs / "results").glob("*.png"))) >= 7
    text = (docs / "results.md").read_text()
    assert "300,000, clean" in text and "not measured" in text
    assert text.index("![") < text.index("## What it brings") < text.index("## The targets")


def test_pictures_that_cannot_be_drawn_again_stay(exported, tmp_path):
    results = json.loads(exported.read_text())["results"]
    for one in results:
        one.pop("order", None)
    exported.write_text(json.dumps({"results": results}))
    there = tmp_path / "docs" / "results"
    there.mkdir(parents=True)
    for name in ("order", "seeks-tar-itree", "bars-copy"):
        (there / f"{name}.png").write_bytes(b"picture")
    command = [lab.BUILD / "venv" / "bin" / "python3", lab.BENCH / "report", "--from", exported]
    done = subprocess.run([*command, "--out", tmp_path / "out", "--docs", there.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (there / "order.png").exists() and (there / "seeks-tar-itree.png").exists()
    assert not (there / "bars-copy.png").exists()
    assert "results/order.png" in (there.parent / "results.md").read_text()


def summarised(*measured, work="tar"):
    """Data of a work: seconds of stock ext4, of the itree, and the number of files."""
    found = []
    for *seconds, count in measured:
        for system, value in zip(("ext4", "itree"), seconds, strict=True):
            found.append(result(system, work, count=count, reads=1))
            found[-1]["figures"]["disks"]["sas10k"]["reads"] = value
    return Data(found)


def test_the_summary_says_what_is_faster_and_by_how_much():
    head, rows = summary.brings(summarised((300, 20, 300_000)))
    assert head[1:] == ["clean", "aged"] and rows == [["tar", "300 → 20.0, 15.0 ×", "not measured"]]
    assert summary.brings(summarised((300, 290, 300_000)))[1] == []


def test_the_summary_says_where_it_does_not_help():
    data = summarised((300, 20, 300_000), (100, 99, 30_000), (100, 104, 10_000))
    assert [row[1:] for row in summary.no_help(data)[1]] == [
        ["10,000, clean", "100 → 104, 0.96 ×", "slower"],
        ["30,000, clean", "100 → 99.0, 1.01 ×", "as fast"],
    ]


def test_the_summary_says_what_it_costs():
    blocks = {"ext4": 1000, "itree": 1080}
    data = Data([result(s, "create", count=300_000, journal_blocks=n, directory={"names": 9, "tree": 600})
                 for s, n in blocks.items()])  # fmt: skip
    rows = {row[0]: row[1:] for row in summary.costs(data)[1]}
    assert rows["create: blocks in the journal"] == ["+8.0 %", "not measured"]
    assert rows["space of the tree for a name"] == ["8.2 bytes", "not measured"]
    assert rows["rm -r: instructions"] == ["not measured", "not measured"]


def test_a_page_says_the_same_in_both_forms():
    made = [pages.Heading("a < b"), pages.Fold("more", [pages.Table(["x"], [["`y`"]], ["met"])])]
    page, text = pages.as_html("t", made), pages.as_markdown("t", made, ["c"])
    assert "<h2>a &lt; b</h2>" in page and '<tr class="met"><td><code>y</code></td></tr>' in page
    assert page.index("<summary>more") < page.index("<table>") < page.index("</details>")
    lines = text.splitlines()
    assert lines[:3] == ["<!-- c -->", "# t", ""] and lines[lines.index("| x |") - 1] == "" and "| `y` |" in lines


def test_the_committed_document_is_what_the_committed_results_give():
    source, document = (lab.ROOT / "docs" / name for name in ("results.json", "results.md"))
    data, _ = report.load(source)
    pictures = (lab.ROOT / "docs" / "results").glob("*.png")
    assert document.read_text() == report.document(data, pictures)


def test_a_file_that_is_no_export_is_refused(tmp_path):
    (tmp_path / "x").write_text("[]")
    with pytest.raises(lab.LabError, match="export"):
        report.load(tmp_path / "x")


def test_results_of_another_machine_are_taken_beside_those_at_hand(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    cell = Cell("itree", "lstat", 10_000, 4096, "clean")
    results = matrixcells.Results()
    results.put(cell, {"of": "here"}, {"status": 0}, None)
    outcome = json.loads(exported.read_text())["results"]
    assert matrix.take(exported) == len(outcome) - 1 and matrix.take(exported) == 0
    assert results.get(cell, matrixcells.hash_of({"of": "here"}))["status"] == 0, "what is at hand stays"
    assert {r["cell"]["name"] for r in results.all()} == {r["cell"]["name"] for r in outcome}
    other = next(r for r in outcome if r["cell"]["name"] != cell.name)
    taken = json.loads(results.path(Cell(**{k: v for k, v in other["cell"].items() if k != "name"})).read_text())
    assert taken["figures"] == other["figures"] and taken["inputs"] == other["inputs"]


@pytest.mark.parametrize("text", ["[]", '{"results": [{}]}', '{"results": [{"cell": {"system": 1}}]}', "no JSON"])
def test_what_is_no_export_is_not_taken(tmp_path, monkeypatch, text):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "x").write_text(text)
    with pytest.raises(lab.LabError, match="export"):
        matrix.take(tmp_path / "x")
    assert matrixcells.Results().all() == []
