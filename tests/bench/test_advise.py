# SPDX-License-Identifier: GPL-2.0-only
"""itree-advise on a small ext4 of this machine's own kernel."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import advise
import pytest

import lab

HERE = lab.ROOT / "packaging" / "advise"
ADVISE = HERE / "itree-advise"
FILES = 12_000

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to mount an image"),
    pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="this machine has no loop devices"),
    pytest.mark.timeout(300),
]


def call(*args, **kwargs):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=120, check=False, **kwargs)


def must(*args):
    done = call(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """`large`, in hash order, and `small`; left to rest on the disk."""
    tmp = tmp_path_factory.mktemp("advise")
    image, where = tmp / "image", tmp / "mnt"
    where.mkdir()
    with open(image, "wb") as out:
        out.truncate(2 << 30)
    must("mke2fs", "-q", "-F", "-t", "ext4", "-N", 40_000, image)
    device = must("losetup", "--find", "--show", image)
    try:
        must("mount", device, where)
        try:
            fill = lab.compile_tools() / "fill"
            must(fill, "-q", "-n", FILES, "-s", 100, where / "large")
            must(fill, "-q", "-n", 20, where / "small")
            must("sync", "-f", where)
            yield where
        finally:
            must("umount", where)
    finally:
        must("losetup", "-d", device)


def result(mounted, *args):
    done = call(ADVISE, "--json", "--disk", "sas10k", *args, mounted)
    assert done.returncode == 0, done.stderr
    return {os.path.basename(d["path"]): d for d in json.loads(done.stdout)["directories"]}


def test_hash_order_gains_and_few_files_do_not(mounted):
    found = result(mounted, "--min-blocks", 1)
    large, small = found["large"], found["small"]
    assert large["entries"] == FILES and small["entries"] == 20
    assert large["descents"] > FILES / 4
    assert large["factor"] > 3
    assert large["read_factor"] > 3
    assert small["factor"] == pytest.approx(1, abs=0.1)


def test_only_large_directories_are_named(mounted):
    assert set(result(mounted)) == {"large"}


def test_in_words(mounted):
    done = call(ADVISE, "--disk", "sas10k", mounted)
    assert f"your {mounted}/large would be listed" in done.stdout
    assert "10,000 rpm" in done.stdout


def test_nothing_is_changed(mounted):
    def state():
        return {p.name: (p.stat().st_atime_ns, p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in mounted.iterdir()}

    for path in mounted.iterdir():
        os.utime(path, (0, 0))
    before = state()
    result(mounted, "--min-blocks", 1)
    assert state() == before


def test_a_command_is_recorded_and_drawn(mounted, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: run `make deps`")
    picture = tmp_path / "picture.png"
    device = must("findmnt", "-no", "SOURCE", mounted)
    command = f"dd if={device} of=/dev/null iflag=direct bs=64k count=16 skip=100 status=none"
    venv = str(lab.BUILD / "venv" / "bin" / "python3")
    done = call(venv, ADVISE, "--json", "--trace", command, "--picture", picture, mounted)
    assert done.returncode == 0, done.stderr
    trace = json.loads(done.stdout)["trace"]
    assert trace["status"] == 0
    assert (trace["reads"]["requests"], trace["reads"]["bytes"]) == (16, 1 << 20)
    assert trace["reads"]["seeks"] == 1
    assert 0 < trace["bound"] <= trace["reads"]["seconds"]
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_bound_counts_each_block_once_and_front_to_back(mounted, tmp_path):
    picture = tmp_path / "picture.png"
    device = must("findmnt", "-no", "SOURCE", mounted)
    read = f"dd if={device} of=/dev/null iflag=direct bs=64k count=4 status=none"
    there_and_back = "; ".join(f"{read} skip={skip}" for skip in (100, 9000, 100, 9000))

    def traced(command):
        done = call(ADVISE, "--json", "--disk", "sata7k", "--picture", picture, "--trace", command, mounted)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["trace"]

    once, often = traced(f"{read} skip=100; {read} skip=9000"), traced(there_and_back)
    assert often["bound"] == pytest.approx(once["bound"])
    assert often["bound"] < often["reads"]["seconds"] / 2
    done = call(ADVISE, "--picture", picture, "--trace", there_and_back, mounted)
    assert "no order can read these blocks in less than" in done.stdout


def test_other_file_systems_are_refused():
    done = call(ADVISE, "/proc")
    assert done.returncode == 1
    assert "for ext4" in done.stderr


def test_a_missing_directory_is_named(tmp_path):
    done = call(ADVISE, tmp_path / "none")
    assert done.returncode == 1
    assert "none" in done.stderr


def test_the_man_page_names_every_option():
    page = (HERE / "itree-advise.8").read_text().replace("\\-", "-")
    usage = call(ADVISE, "--help").stdout
    options = {word.strip("[],") for word in usage.split() if word.strip("[],").startswith("--")}
    assert options and all(option in page for option in options)


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed")
def test_the_man_page_is_well_formed():
    done = call("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", HERE / "itree-advise.8", env=os.environ)
    assert done.returncode == 0 and not done.stderr


def test_its_packages_hold_all_that_it_imports(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: run `make deps`")
    for rel, path in advise.files().items():
        (tmp_path / rel).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / rel)
    share = tmp_path / advise.SHARE
    names = [str(p.relative_to(share).with_suffix("")).replace("/", ".") for p in share.rglob("*.py")]
    assert "draw.pictures" in names
    script = f"import sys; sys.path.insert(0, {str(share)!r}); import {', '.join(sorted(names))}"
    done = call(lab.BUILD / "venv" / "bin" / "python3", "-B", "-I", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "--min-blocks" in call(share / "itree-advise", "--help").stdout
