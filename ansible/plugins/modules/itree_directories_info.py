#!/usr/bin/python
# SPDX-License-Identifier: GPL-2.0-only
"""The large directories below some paths."""

from __future__ import annotations

DOCUMENTATION = r"""
module: itree_directories_info
short_description: Find the large ext4 directories that gain from an itree
version_added: "0.1.0"
description:
  - Finds the directories of at least O(min_blocks) blocks below some paths, and tells whether they have a tree.
  - Looks at the size and the flags of directories. Only directories that have subdirectories are listed; a flat
    directory of a million messages costs one open.
  - Stays on the file system of each path, follows no symbolic link, changes nothing.
options:
  paths:
    description:
      - Directories or mount points on ext4, as a YAML list.
      - A path that is missing or on another file system is an error.
    type: list
    elements: str
    required: true
  min_blocks:
    description:
      - The least size of a directory, in blocks of its file system. The kernel builds trees from 16 blocks on.
    type: int
    default: 16
  recursive:
    description:
      - Whether to look below the paths as well.
    type: bool
    default: true
  only_without_tree:
    description:
      - Return only directories that could have a tree and have none; the others are counted.
    type: bool
    default: false
  count_entries:
    description:
      - Whether to list each large directory to count its names.
      - Without it RV(directories[].entries) is known only of those that had to be listed anyway.
    type: bool
    default: false
  max_names:
    description:
      - Stop after this many names have been read.
    type: int
    default: 20000000
  max_seconds:
    description:
      - Stop after this many seconds.
    type: int
    default: 1800
  max_results:
    description:
      - Return this many directories at most, the largest ones.
    type: int
    default: 5000
author:
  - The itree founders (!UNKNOWN)
attributes:
  check_mode:
    description: Can run in check mode and tells the same.
    support: full
  diff_mode:
    description: There is nothing to tell a difference of.
    support: none
  platform:
    description: Where it runs.
    support: full
    platforms: posix
notes:
  - Directories that the user cannot open are named in RV(problems).
seealso:
  - module: itree.storage.itree_directory
"""

EXAMPLES = r"""
- name: Find what is worth converting in the mail spool
  itree.storage.itree_directories_info:
    paths: [/srv/mail]
  register: large

- name: Show it
  ansible.builtin.debug:
    msg: "{{ large.directories | rejectattr('has_tree') | map(attribute='path') | list }}"
"""

RETURN = r"""
directories:
  description: The large directories, largest first.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Absolute, without symbolic links.
      type: str
    blocks:
      description: Its size in blocks of the file system.
      type: int
    bytes:
      description: The same in bytes.
      type: int
    has_tree:
      description: Whether it has a valid tree.
      type: bool
    can_have_tree:
      description: Whether one can be built.
      type: bool
    why_not:
      description: Why not, if so.
      type: str
    entries:
      description: The number of its names but V(.) and V(..), null if it was not counted.
      type: int
with_tree:
  description: How many of these have a tree.
  returned: success
  type: int
cannot_have_tree:
  description: How many of these have none and cannot have one.
  returned: success
  type: int
total:
  description: How many large directories were found, those beyond O(max_results) included.
  returned: success
  type: int
complete:
  description: Whether all was looked at.
  returned: success
  type: bool
stopped_by:
  description: The option whose bound was reached, null if none.
  returned: success
  type: str
problems:
  description: What could not be looked at.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The directory.
      type: str
    error:
      description: What the system said.
      type: str
file_systems:
  description: What each of the paths is on.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: As it was asked for.
      type: str
    mount_point:
      description: Where the file system is mounted.
      type: str
    read_only:
      description: Whether it is mounted read-only.
      type: bool
    free_percent:
      description: Free space, for users other than root.
      type: float
load:
  description: What the host has to do; for those who begin work depending on it.
  returned: success
  type: dict
  contains:
    average:
      description: The load average of the last minute.
      type: float
    processors:
      description: How many processors this process may use.
      type: int
work:
  description: What it cost.
  returned: success
  type: dict
  contains:
    directories:
      description: Directories opened.
      type: int
    listed:
      description: How many of these were listed.
      type: int
    names:
      description: Names read.
      type: int
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.itree.storage.plugins.module_utils import ext4, walk

BOUNDS = ("min_blocks", "max_names", "max_seconds", "max_results")


def arguments():
    return {
        "paths": {"type": "list", "elements": "str", "required": True},
        "min_blocks": {"type": "int", "default": 16},
        "recursive": {"type": "bool", "default": True},
        "only_without_tree": {"type": "bool", "default": False},
        "count_entries": {"type": "bool", "default": False},
        "max_names": {"type": "int", "default": 20000000},
        "max_seconds": {"type": "int", "default": 1800},
        "max_results": {"type": "int", "default": 5000},
    }


def main():
    module = AnsibleModule(argument_spec=arguments(), supports_check_mode=True)
    want = module.params
    for name in BOUNDS:
        if want[name] < 1:
            module.fail_json(msg=f"{name} must be at least 1, not {want[name]}")
    if not want["paths"]:
        module.fail_json(msg="paths is empty: name the directories or mount points to look below")
    file_systems = []
    for path in want["paths"]:
        if not path.startswith("/"):
            module.fail_json(msg=f"{path}: give absolute paths")
        try:
            mount = walk.on_ext4(path)
        except ext4.Ext4Error as err:
            module.fail_json(msg=str(err))
        fs = os.statvfs(path)
        free = round(100.0 * fs.f_bavail / fs.f_blocks, 1) if fs.f_blocks else 0.0
        file_systems.append(
            {"path": path, "mount_point": mount.point, "read_only": mount.read_only, "free_percent": free}
        )
    job = walk.Walk(*(want[n] for n in ("min_blocks", "recursive", "count_entries", "max_names", "max_seconds")))
    stopped_by = None
    try:
        for path in want["paths"]:
            # ext4's f_frsize is its block size, also with bigalloc.
            job.over(path, os.statvfs(path).f_frsize)
    except walk.Bound as bound:
        stopped_by = str(bound)
        module.warn(f"{stopped_by} reached after {job.directories} directories: what comes after it is not known")
    except OSError as err:
        module.fail_json(msg=f"{path}: {err.strerror}")
    job.found.sort(key=lambda d: (-d["blocks"], d["path"]))
    # The controller keeps the answers of all hosts: what nobody asks for is not sent.
    wanted = job.found
    if want["only_without_tree"]:
        wanted = [d for d in job.found if d["can_have_tree"] and not d["has_tree"]]
    module.exit_json(
        changed=False,
        directories=wanted[: want["max_results"]],
        total=len(job.found),
        with_tree=sum(d["has_tree"] for d in job.found),
        cannot_have_tree=sum(not d["has_tree"] and not d["can_have_tree"] for d in job.found),
        load={"average": round(os.getloadavg()[0], 2), "processors": len(os.sched_getaffinity(0))},
        complete=stopped_by is None and not job.problems,
        stopped_by=stopped_by,
        problems=job.problems,
        file_systems=file_systems,
        work={"directories": job.directories, "listed": job.listed, "names": job.names},
    )


if __name__ == "__main__":
    main()
