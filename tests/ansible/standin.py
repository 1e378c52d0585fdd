#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Stands in for e4itree where the host's kernel has no itrees, in tests of order, gates and messages.

It touches no directory. It answers as e4itree does, writes each call to `log` beside it, and remembers in
`built` which directories it "built". `answers.json` beside it may hold {path: [[exit code, record, stderr], ...]}, used
up in that order; `hook` beside it is run, if there, with the path as its argument.
"""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    argv = sys.argv[1:]
    op, path, dry = argv[0], argv[-1], "--dry-run" in argv
    with open(HERE / "log", "a") as handle:
        handle.write(f"{op}{' dry' * dry} {path}\n")
    answers = HERE / "answers.json"
    given = json.loads(answers.read_text()) if answers.exists() else {}
    if given.get(path):
        code, record, output = given[path].pop(0)
        answers.write_text(json.dumps(given))
    else:
        done = HERE / "built"
        before = done.read_text().splitlines() if done.exists() else []
        code, output = 0, ""
        if op == "pack":
            sizes = {"dir_blocks_before": 900, "dir_blocks": 20, "tree_blocks_before": 40, "tree_blocks": 4}
            if path in before:
                record = {"result": "already", "dir_blocks": 20}
            else:
                record = {"result": "would-pack" if dry else "packed", **sizes}
                if not dry:
                    done.write_text("".join(f"{p}\n" for p in [*before, path]))
        elif op == "check":
            record = {"result": "exact" if path in before else "none"}
        elif path in before:
            record = {"result": "already", "dir_blocks": 20}
        elif dry:
            record = {"result": "would-build", "dir_blocks": 20}
        else:
            record = {"result": "built", "keys": 1000, "dir_blocks": 20, "tree_blocks": 4}
            done.write_text("".join(f"{p}\n" for p in [*before, path]))
        if (HERE / "hook").exists() and not dry:
            subprocess.run([HERE / "hook", path], check=True)
    if output:
        print(f"e4itree: {path}: {output}", file=sys.stderr)
    print(json.dumps({"path": path, "op": op, **record}))
    print(json.dumps({"summary": True, "op": op}))
    return code


if __name__ == "__main__":
    sys.exit(main())
