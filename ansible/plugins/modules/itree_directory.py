#!/usr/bin/python
# SPDX-License-Identifier: GPL-2.0-only
"""Build, drop or check the trees of directories, or pack these, through e4itree."""

from __future__ import annotations

DOCUMENTATION = r"""
module: itree_directory
short_description: Build, drop or check the itrees of ext4 directories in use, or pack the directories
version_added: "0.1.0"
description:
  - Runs C(e4itree --json) for each directory. The directories can be used meanwhile.
  - If one directory fails the others are still done, and the module fails at the end, naming the first that failed.
  - If the kernel or the file system lacks the feature it stops there and says which of the two.
options:
  path:
    description:
      - The directory. Directories below it are not touched.
    type: path
  paths:
    description:
      - Several directories, as a YAML list; taken as they stand.
    type: list
    elements: str
  state:
    description:
      - V(built) gives a directory its tree if it has none.
      - V(dropped) takes the tree away and frees its blocks.
      - V(checked) compares the tree with the directory and fails if they differ.
        Names cannot be added or removed meanwhile.
      - V(packed) makes the directory smaller if it would lose a quarter of its blocks, with or without a tree.
    type: str
    choices: [built, dropped, checked, packed]
    default: built
  force:
    description:
      - With O(state=built), rebuild trees that exist. Always a change.
      - With O(state=packed), pack directories even if that gains little.
    type: bool
    default: false
  min_blocks:
    description:
      - Leave directories alone that have fewer blocks, with O(state=built) if they have no tree.
      - Only with O(state=built) and O(state=packed).
    type: int
    default: 16
  ignore_missing:
    description:
      - Whether directories that do not exist (any more) are left out instead of failing.
    type: bool
    default: false
  stop_file:
    description:
      - Before each directory, look for this file and stop if it exists; what was done stays.
    type: path
  retries:
    description:
      - How often to try a directory again that changes too fast, or that another build or drop is at work on.
    type: int
    default: 3
  retry_delay:
    description:
      - Seconds between these.
    type: int
    default: 10
  executable:
    description:
      - The program to use instead of the C(e4itree) in C(/usr/sbin), C(/sbin) or the search path.
    type: path
author:
  - The itree founders (!UNKNOWN)
attributes:
  check_mode:
    description: Asks e4itree what it would do. V(checked) checks in check mode too, for it changes nothing.
    support: full
  diff_mode:
    description: >-
      Tells of each directory that changes what tree it had and has. Check mode does not know how large a tree will be.
    support: full
  platform:
    description: Where it runs.
    support: full
    platforms: posix
requirements:
  - e4itree of e2fsprogs-itree (the role itree.storage.packages installs it)
seealso:
  - module: itree.storage.itree_directories_info
"""

EXAMPLES = r"""
- name: Give the inbox its tree
  itree.storage.itree_directory:
    path: /srv/mail/info/new

- name: Build those that were found, until somebody creates the stop file
  itree.storage.itree_directory:
    paths: "{{ large.directories | map(attribute='path') | list }}"
    stop_file: /run/itree.stop
    ignore_missing: true

- name: Compare the tree with the directory
  itree.storage.itree_directory:
    path: /srv/mail/info/new
    state: checked

- name: Make a queue smaller that has been long
  itree.storage.itree_directory:
    path: /var/spool/postfix/deferred
    state: packed
"""

RETURN = r"""
results:
  description: What happened to each directory, in the order they were given; also when the module fails.
  returned: when e4itree was run
  type: list
  elements: dict
  contains:
    path:
      description: The directory.
      type: str
    result:
      description:
        - V(built), V(already), V(small) or V(would-build) of O(state=built).
        - V(dropped), V(none) or V(would-drop) of O(state=dropped).
        - V(exact), V(none), V(differs) or V(bad) of O(state=checked).
        - V(packed), V(already), V(small), V(no-index) or V(would-pack) of O(state=packed).
        - V(failed), and V(missing) with O(ignore_missing).
      type: str
    error:
      description: What went wrong, if something did.
      type: str
    keys:
      description: Entries of the tree.
      type: int
    tree_blocks:
      description: Blocks of the tree.
      type: int
    dir_blocks:
      description: Blocks of the directory.
      type: int
    dir_blocks_before:
      description: Blocks of the directory before it was packed.
      type: int
stopped:
  description: Whether the stop file was there.
  returned: when e4itree was run
  type: bool
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.itree.storage.plugins.module_utils import ext4

EXIT_LACKING = 3
RETRY = (11, 16)  # EAGAIN, EBUSY
OPS = {"built": "build", "dropped": "drop", "checked": "check", "packed": "pack"}
# What each state may end in without being an error, and which of these are changes.
GOOD = {
    "built": ("built", "already", "small", "would-build"),
    "dropped": ("dropped", "none", "would-drop"),
    "checked": ("exact", "none"),
    "packed": ("packed", "already", "small", "no-index", "would-pack"),
}
CHANGES = ("built", "dropped", "packed", "would-build", "would-drop", "would-pack")


class Lacking(Exception):
    """No directory of this file system can have a tree, now."""


def arguments():
    return {
        "path": {"type": "path"},
        "paths": {"type": "list", "elements": "str"},
        "state": {"type": "str", "choices": list(OPS), "default": "built"},
        "force": {"type": "bool", "default": False},
        "min_blocks": {"type": "int", "default": 16},
        "ignore_missing": {"type": "bool", "default": False},
        "stop_file": {"type": "path"},
        "retries": {"type": "int", "default": 3},
        "retry_delay": {"type": "int", "default": 10},
        "executable": {"type": "path"},
    }


def command(module, path):
    want = module.params
    program = want["executable"] or module.get_bin_path("e4itree", opt_dirs=["/usr/sbin", "/sbin"])
    if not program:
        module.fail_json(
            msg="e4itree is not installed: install e2fsprogs-itree (Fedora, EL) or the itree repository's e2fsprogs "
            "(Debian); the role itree.storage.packages does that"
        )
    argv = [program, OPS[want["state"]], "--json", "--verbose"]
    if want["state"] in ("built", "packed"):
        argv += ["--min-blocks", str(want["min_blocks"])] + ["--force"] * want["force"]
    if module.check_mode and want["state"] != "checked":
        argv.append("--dry-run")
    return [*argv, "--", path]


def lacking(path, number, output):
    """Which of kernel and file system lacks the feature."""
    if "cannot pack" in output:
        return f"{path}: {output}"
    known, advice = ext4.feature()
    if number == 95:  # EOPNOTSUPP
        return (
            f"{path}: its file system lacks the itree feature; unmount it and run tune2fs -O itree on its device (role "
            "itree.storage.feature)"
        )
    if not known:
        return f"{path}: {advice}"
    return f"{path}: not on ext4 ({output or 'e4itree said no more'})"


def once(module, path):
    """Run e4itree on one directory; its record, with `error` if it is not good."""
    env = {"LC_ALL": "C", "LANGUAGE": "C"}
    code, out, err = module.run_command(command(module, path), encoding=None, environ_update=env)
    output = err.decode(errors="replace").strip()
    record = {}
    for line in out.splitlines():
        try:
            data = json.loads(line.decode("utf-8", "surrogateescape"))
        except ValueError:
            module.fail_json(msg=f"{path}: e4itree wrote what is not JSON: {line[:200]!r}", rc=code, stderr=output)
        if "summary" not in data and not record:
            record = data
    if code == EXIT_LACKING or record.get("result") == "lacking":
        raise Lacking(lacking(path, record.get("errno"), output))
    result = record.get("result")
    if code == 0 and result in GOOD[module.params["state"]]:
        return record
    if result == "bad":
        error = f"bad tree: block {record.get('block')}: {record.get('why')}"
    elif result == "differs":
        error = f"{record.get('missing')} names have no key in the tree, {record.get('extra')} keys have no name"
    else:
        prefix = f"e4itree: {path}: "
        error = output[len(prefix) :] if output.startswith(prefix) else output
        error = error or f"e4itree ended with exit code {code} and told nothing"
    if result in ("bad", "differs"):
        error += "; rebuild it (state: built, force: true), or unmount the volume and run e2fsck -f"
    return {"result": "failed", **record, "path": path, "error": error}


def one(module, path):
    if not os.path.isdir(path):
        if module.params["ignore_missing"] and not os.path.lexists(path):
            return {"path": path, "result": "missing"}
        why = "not a directory" if os.path.lexists(path) else "does not exist"
        return {"path": path, "result": "failed", "error": why}
    for left in range(module.params["retries"], -1, -1):
        record = once(module, path)
        if record.get("errno") not in RETRY or not left:
            break
        time.sleep(module.params["retry_delay"])
    # Deleted between the look above and the call.
    if record["result"] == "failed" and module.params["ignore_missing"] and not os.path.lexists(path):
        return {"path": path, "result": "missing"}
    return record


def diff_of(module, results):
    """What the changed directories had and have."""
    before, after = [], []
    for record in results:
        result = record["result"]
        if result in ("packed", "would-pack"):
            before.append(f"{record['path']}: {record['dir_blocks_before']} blocks\n")
            about = "about " if result == "would-pack" else ""
            after.append(f"{record['path']}: {about}{record['dir_blocks']} blocks\n")
        elif result in CHANGES:
            had = module.params["force"] or result in ("dropped", "would-drop")
            has = result in ("built", "would-build")
            size = f" of {record['keys']} keys, {record['tree_blocks']} blocks" if result == "built" else ""
            before.append(f"{record['path']}: {'a tree' if had else 'no tree'}\n")
            after.append(f"{record['path']}: {'a tree' + size if has else 'no tree'}\n")
    return {"before": "".join(before), "after": "".join(after)}


def main():
    module = AnsibleModule(
        argument_spec=arguments(),
        mutually_exclusive=[("path", "paths")],
        required_one_of=[("path", "paths")],
        supports_check_mode=True,
    )
    want = module.params
    if want["force"] and want["state"] not in ("built", "packed"):
        module.fail_json(msg="force is for state=built and state=packed only")
    for name in ("min_blocks", "retries", "retry_delay"):
        if want[name] < 0:
            module.fail_json(msg=f"{name} must not be negative")
    paths = want["paths"] if want["path"] is None else [want["path"]]
    for path in paths:
        if not path.startswith("/"):
            module.fail_json(msg=f"{path}: give absolute paths")
    results, stopped, lacks = [], False, ""
    for path in paths:
        if want["stop_file"] and os.path.lexists(want["stop_file"]):
            stopped = True
            break
        try:
            results.append(one(module, path))
        except Lacking as err:
            lacks = str(err)
            break
    answer = {"results": results, "stopped": stopped, "changed": any(r["result"] in CHANGES for r in results)}
    if module._diff:
        answer["diff"] = diff_of(module, results)
    if stopped:
        module.warn(f"{want['stop_file']} exists: stopped after {len(results)} of {len(paths)} directories")
    if lacks:
        module.fail_json(msg=lacks, **answer)
    bad = [r for r in results if "error" in r]
    if bad:
        more = f"; {len(bad) - 1} more failed" if len(bad) > 1 else ""
        module.fail_json(msg=f"{bad[0]['path']}: {bad[0]['error']}{more}", **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
