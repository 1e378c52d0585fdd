# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the virtual machine: the modules against a kernel that has itrees.

Arguments: collection, tools, number of names, type to mount.

What fails is an assertion; the last line is `done`.
"""

import importlib
import json
import os
import subprocess
import sys
import time

from ansible.module_utils import basic

TOP, TOOLS, NAMES, TYPE = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
DEVICE, MOUNT = "/dev/vda", "/mnt"
LARGE = f"{MOUNT}/large"


def module(name, ok=True, check=False, **args):
    """Run a module's main() in a child of this process: starting Python anew takes long in here."""
    began = time.monotonic()
    main = importlib.import_module(f"ansible_collections.itree.storage.plugins.modules.{name}").main
    arguments = {"ANSIBLE_MODULE_ARGS": {**args, "_ansible_check_mode": check, "_ansible_diff": True}}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 1)
        os.close(reader)
        os.close(writer)
        # As AnsiballZ hands them over.
        basic._ANSIBLE_ARGS, basic._ANSIBLE_PROFILE = json.dumps(arguments).encode(), "legacy"
        try:
            main()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with open(reader) as handle:
        out = handle.read()
    os.waitpid(child, 0)
    answer = json.loads(out[out.index("{") :])
    print(f"{name} {args} check={check}: {time.monotonic() - began:.1f} s", flush=True)
    assert bool(answer.get("failed")) != ok, answer
    return answer


def tree(check=False, ok=True, **args):
    return module("itree_directory", path=LARGE, executable=f"{TOOLS}/e4itree", check=check, ok=ok, **args)


def found():
    (only,) = module("itree_directories_info", paths=[MOUNT])["directories"]
    assert only["path"] == LARGE and only["can_have_tree"], only
    return only["has_tree"]


def before_the_feature():
    info = module("itree_volume_info", volumes=[MOUNT])
    beside = TYPE != "ext4"
    assert (info["kernel_feature"], info["module_feature"]) == (not beside, beside), info
    assert bool(info["kernel_advice"]) == beside and not info["volumes"][0]["itree"], info
    assert not found()
    assert info["volumes"][0]["switchable"], info
    assert "lacks the itree feature" in tree(ok=False)["msg"]


def feature(online, **args):
    answer = module("itree_feature", device=DEVICE, tools=TOOLS, **args)
    assert answer["changed"] and answer["online"] == online and answer["checked"] != online, answer


def in_use():
    """On and off while it is mounted."""
    with open(f"{MOUNT}/open", "w", encoding="utf-8") as held:
        feature(True, check=True)
        assert not module("itree_volume_info", volumes=[MOUNT])["volumes"][0]["itree"]
        feature(True)
        assert not module("itree_feature", device=DEVICE, tools=TOOLS)["changed"]
        assert tree()["changed"] and found()
        feature(True, state="absent")
        assert not found()
        held.write("still open\n")
    subprocess.run(["mount", "-o", "remount,ro", MOUNT], check=True)
    assert "cannot change it there" in module("itree_feature", device=DEVICE, tools=TOOLS, ok=False)["msg"]
    subprocess.run(["umount", MOUNT], check=True)


def turn_it_on():
    feature(False, check=True)
    feature(False)
    subprocess.run(["mount", "-t", TYPE, DEVICE, MOUNT], check=True)
    (volume,) = module("itree_volume_info", volumes=[MOUNT])["volumes"]
    assert volume["itree"] and not volume["read_only"] and volume["mounted_at"] == [MOUNT], volume


def build_check_drop():
    assert not found()
    answer = tree(check=True)
    assert answer["changed"] and answer["results"][0]["result"] == "would-build", answer
    assert not found()
    answer = tree()
    assert answer["changed"] and answer["results"][0]["keys"] == NAMES, answer
    assert f"{LARGE}: a tree of {NAMES} keys" in answer["diff"]["after"], answer
    assert found()
    answer = tree()
    assert not answer["changed"] and answer["results"][0]["result"] == "already", answer
    assert tree(state="checked")["results"][0]["result"] == "exact"
    answer = tree(state="dropped", check=True)
    assert answer["changed"] and found(), answer
    answer = tree(state="dropped")
    assert answer["changed"] and not found(), answer
    assert not tree(state="dropped")["changed"]


def main():
    subprocess.run(["mount", "-t", TYPE, DEVICE, MOUNT], check=True)
    before_the_feature()
    in_use()
    turn_it_on()
    build_check_drop()
    subprocess.run(["umount", MOUNT], check=True)
    print("done")


if __name__ == "__main__":
    main()
