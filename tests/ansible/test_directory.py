# SPDX-License-Identifier: GPL-2.0-only
"""itree_directory: what it makes of e4itree's answers. With real trees it is tested in test_guest.py.

The stand-in for e4itree touches nothing: here it is about calls, order, errors and what the module says.
"""

import os

import pytest

NAME = "itree_directory"


@pytest.fixture
def dirs(tmp_path):
    made = [tmp_path / f"d{n}" for n in range(3)]
    for path in made:
        path.mkdir()
    return [str(p) for p in made]


def call(collection, standin, dirs, ok=True, check=False, **args):
    args = {"paths": dirs, "executable": str(standin.path), "retry_delay": 0, **args}
    return collection.module(NAME, args, check=check, diff=True, ok=ok)


def test_twice_and_check_mode(collection, standin, dirs):
    answer = call(collection, standin, dirs, check=True)
    assert standin.calls() == [f"build dry {d}" for d in dirs]
    assert answer["changed"] and [r["result"] for r in answer["results"]] == ["would-build"] * 3
    assert answer["diff"]["after"] == "".join(f"{d}: a tree\n" for d in dirs)
    answer = call(collection, standin, dirs)
    assert standin.calls() == [f"build {d}" for d in dirs]
    assert answer["changed"] and answer["diff"]["before"] == "".join(f"{d}: no tree\n" for d in dirs)
    assert answer["diff"]["after"] == "".join(f"{d}: a tree of 1000 keys, 4 blocks\n" for d in dirs)
    answer = call(collection, standin, dirs)
    assert not answer["changed"] and answer["diff"] == {"before": "", "after": ""}


def test_one_fails(collection, standin, dirs):
    """The others are done, and the message names it."""
    standin.answer(dirs[1], (1, {"result": "failed", "errno": 28, "error": "No space left on device"},
                             "the tree could not be built: No space left on device: free some space"))  # fmt: skip
    answer = call(collection, standin, dirs, ok=False)
    assert [r["result"] for r in answer["results"]] == ["built", "failed", "built"]
    assert answer["msg"] == f"{dirs[1]}: the tree could not be built: No space left on device: free some space"
    assert answer["changed"]


def test_tries_again(collection, standin, dirs):
    busy = (1, {"result": "failed", "errno": 16, "error": "Device or resource busy"}, "a build or drop is under way")
    standin.answer(dirs[0], busy, busy)
    answer = call(collection, standin, dirs[:1], retries=2)
    assert answer["results"][0]["result"] == "built" and len(standin.calls()) == 3
    standin.answer(dirs[1], busy, busy, busy)
    answer = call(collection, standin, dirs[1:2], retries=2, ok=False)
    assert "under way" in answer["msg"] and len(standin.calls()) == 3


def test_stop_file(collection, standin, dirs, tmp_path):
    stop = tmp_path / "stop"
    standin.hook(f'[ "$1" != {dirs[1]} ] || touch {stop}')
    answer = call(collection, standin, dirs, stop_file=str(stop))
    assert answer["stopped"] and answer["changed"]
    assert standin.calls() == [f"build {d}" for d in dirs[:2]]


def test_missing(collection, standin, dirs):
    os.rmdir(dirs[0])
    answer = call(collection, standin, dirs, ok=False)
    assert answer["msg"] == f"{dirs[0]}: does not exist"
    answer = call(collection, standin, dirs, ignore_missing=True)
    assert [r["result"] for r in answer["results"]] == ["missing", "already", "already"]


def test_packed(collection, standin, dirs):
    """Check mode tells how small the directory would be; a kernel that cannot pack is named."""
    foretold = call(collection, standin, dirs[:1], state="packed", check=True)
    assert standin.calls() == [f"pack dry {dirs[0]}"]
    assert foretold["changed"] and foretold["diff"]["after"] == f"{dirs[0]}: about 20 blocks\n"
    done = call(collection, standin, dirs[:1], state="packed", force=True)
    assert done["changed"] and done["results"][0]["dir_blocks_before"] == 900
    assert done["diff"] == {"before": f"{dirs[0]}: 900 blocks\n", "after": f"{dirs[0]}: 20 blocks\n"}
    assert not call(collection, standin, dirs[:1], state="packed")["changed"]
    output = "not on ext4, or this kernel cannot pack directories"
    standin.answer(dirs[1], (3, {"result": "lacking", "errno": 25}, output))
    answer = call(collection, standin, dirs[1:], state="packed", ok=False)
    assert "this kernel cannot pack directories" in answer["msg"] and len(answer["results"]) == 0


def test_checked(collection, standin, dirs):
    call(collection, standin, dirs[:1])
    assert not call(collection, standin, dirs[:2], state="checked", check=True)["changed"]
    # Check mode checks too.
    assert standin.calls()[-2:] == [f"check {d}" for d in dirs[:2]]
    standin.answer(dirs[0], (1, {"result": "bad", "block": 3, "why": "keys out of order"}, ""))
    answer = call(collection, standin, dirs, state="checked", ok=False)
    assert "block 3: keys out of order" in answer["msg"] and "force" in answer["msg"]
    standin.answer(dirs[0], (1, {"result": "differs", "missing": 2, "extra": 0}, ""))
    assert "2 names have no key" in call(collection, standin, dirs, state="checked", ok=False)["msg"]


def test_no_answer(collection, standin, dirs):
    """It died, or is another program: never taken for success."""
    standin.answer(dirs[0], (139, {"summary": True}, ""))
    assert "exit code 139" in call(collection, standin, dirs[:1], ok=False)["msg"]
    standin.answer(dirs[0], (0, {"result": "no such word"}, ""))
    call(collection, standin, dirs[:1], ok=False)
    assert "not JSON" in call(collection, standin, dirs[:1], ok=False, executable="/bin/echo")["msg"]
    call(collection, standin, dirs[:1], ok=False, executable="/bin/true")


def test_lacking_file_system(collection, standin, dirs):
    standin.answer(dirs[0], (3, {"result": "lacking", "errno": 95}, ""))
    answer = call(collection, standin, dirs, ok=False)
    assert "lacks the itree feature" in answer["msg"] and "tune2fs -O itree" in answer["msg"]
    # The same would be said of the others.
    assert len(standin.calls()) == 1


def test_lacking_kernel(collection, tools, dirs):
    """The real e4itree, on this host's kernel."""
    if os.path.exists("/sys/fs/ext4/features/itree"):
        pytest.skip("this host's kernel knows itrees")
    answer = collection.module(NAME, {"paths": dirs, "executable": str(tools / "e4itree")}, ok=False)
    assert "does not know itrees" in answer["msg"] and os.uname().release in answer["msg"]
    assert answer["results"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    (
        ({}, "one of the following is required: path, paths"),
        ({"path": "/a", "paths": ["/b"]}, "mutually exclusive"),
        ({"path": "/a", "state": "there"}, "value of state must be one of"),
        ({"path": "/a", "state": "checked", "force": True}, "force is for state=built and state=packed"),
        ({"path": "/a", "min_blocks": -1}, "must not be negative"),
        ({"paths": ["a"]}, "absolute"),
        ({"path": "/a", "no": "such"}, "Unsupported parameters"),
    ),
)
def test_refuses(collection, standin, args, words):
    answer = collection.module(NAME, {"executable": str(standin.path), **args}, ok=False)
    assert words in answer["msg"]
    assert standin.calls() == []
