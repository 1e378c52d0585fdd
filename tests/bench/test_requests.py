# SPDX-License-Identifier: GPL-2.0-only
"""bench/requests as a command. Recording needs a disk of its own: test_target.py does it in a guest."""

import json
import subprocess

import pytest

import lab
from model import pricing
from trace import records
from trace.records import Request

PNG = b"\x89PNG\r\n"


def requests(*args, ok=0):
    """Run the command; its output and its errors."""
    done = subprocess.run([lab.BENCH / "requests", *args], capture_output=True, text=True, check=False)
    assert done.returncode == ok, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def trace(tmp_path):
    """A trace of reads in order, a write far away, and a read of 1 MiB."""
    path = tmp_path / "trace.gz"
    rows = [Request(n / 1000, "R", n * 8, 8, "tar") for n in range(100)]
    rows += [Request(0.2, "WS", 50_000_000, 16, "jbd2"), Request(0.3, "R", 800, 2048, "tar")]
    records.write_trace(path, rows)
    return path


def test_prices_are_those_of_the_model(trace):
    want = pricing.summary(records.read_trace(trace))
    assert json.loads(requests("price", "--json", trace)[0]) == {str(trace): want}
    result = requests("price", trace)[0].splitlines()
    assert result[0].split() == ["requests", "MiB", "seeks", "seconds"]
    lines = {line.split()[0]: line.split()[1:] for line in result[2:]}
    assert lines["reads"] == ["101", "1.4", "0", f"{want['reads']['seconds']:.2f}"]
    assert lines["all"][0] == "102" and lines["writes"][0] == "1"


def test_other_disks_have_other_prices(trace):
    one, other = (json.loads(requests("price", "--json", "--disk", disk, trace)[0]) for disk in ("sas10k", "net2"))
    assert one[str(trace)]["all"]["requests"] == other[str(trace)]["all"]["requests"]
    assert one[str(trace)]["all"]["seconds"] != other[str(trace)]["all"]["seconds"]


def test_two_traces_are_drawn(trace, tmp_path):
    requests("draw", "addresses", trace, trace, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


def test_two_lists_of_inodes_are_drawn(tmp_path):
    for name, inodes in (("ignored", (5, 3, 9)), ("used", (3, 5, 9))):
        (tmp_path / name).write_text("".join(f"{inode}\n" for inode in inodes))
    requests("draw", "inodes", tmp_path / "ignored", tmp_path / "used", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "notes").write_text("notes\n")
    for path in (tmp_path / "notes", tmp_path / "missing"):
        output = requests("price", path, ok=1)[1]
        assert output.startswith("bench/requests: ") and str(path) in output and output.count("\n") == 1
