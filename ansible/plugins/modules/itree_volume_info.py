#!/usr/bin/python
# SPDX-License-Identifier: GPL-2.0-only
"""Whether volumes have the itree feature, and what is to be known before it is turned on."""

from __future__ import annotations

DOCUMENTATION = r"""
module: itree_volume_info
short_description: Tell whether ext4 volumes have the itree feature, and how they are
version_added: "0.1.0"
description:
  - Reads superblocks, mounts and what the running kernel can do. Changes nothing and runs no program.
  - A kernel that does not know the feature mounts volumes that have it read-only.
options:
  volumes:
    description:
      - Block devices, images or mount points with ext4 on them.
      - May be empty, to ask for the kernel alone.
    type: list
    elements: path
    default: []
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
  - Superblocks are read from the device, which takes the rights of root.
seealso:
  - module: itree.storage.itree_feature
"""

EXAMPLES = r"""
- name: See how the mail spool is
  itree.storage.itree_volume_info:
    volumes: [/srv/mail]
  register: spool

- name: Stop if the kernel does not know itrees
  ansible.builtin.assert:
    that: spool.kernel_feature
    fail_msg: "{{ spool.kernel_advice }}"
"""

RETURN = r"""
kernel_feature:
  description: Whether the running kernel's own ext4 knows itrees.
  returned: success
  type: bool
module_feature:
  description: Whether the running kernel has the module ext4itree, which mounts volumes with itrees by that type.
  returned: success
  type: bool
kernel_release:
  description: The release of the running kernel.
  returned: success
  type: str
  sample: 6.12.117
kernel_waiting:
  description:
    - The release of an installed kernel that is newer than the running one and of the same flavour, such as a
      security update that was not booted. Empty if there is no such kernel.
    - The running release itself if its image in C(/boot) is another build. Only images for x86 show their build.
  returned: success
  type: str
  version_added: "0.3.0"
  sample: 6.12.118-1-itree
kernel_advice:
  description: What to do if it does not; else empty.
  returned: success
  type: str
module_waiting:
  description:
    - Whether the kernel of RV(kernel_waiting) has the module ext4itree, too. If the running kernel has it and that one
      does not, the host cannot mount volumes of the type ext4itree after its next boot.
  returned: success
  type: bool
  version_added: "0.3.0"
secure_boot:
  description:
    - Whether the firmware starts only signed kernels, which load only signed modules.
    - V(unknown) if its variables cannot be read.
  returned: success
  type: str
  choices: [enabled, disabled, unknown]
  version_added: "0.3.0"
volumes:
  description: One for each that was asked for, in that order.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: As it was asked for.
      type: str
    device:
      description: The device or image.
      type: str
    itree:
      description: Whether the volume has the feature.
      type: bool
    lacking:
      description: Features that the itree feature needs and the volume does not have.
      type: list
      elements: str
    block_size:
      description: In bytes.
      type: int
    mounted_at:
      description: Its mount points.
      type: list
      elements: str
    read_only:
      description: Whether it is mounted read-only somewhere.
      type: bool
    type:
      description: The type by which it is mounted, V(ext4) or V(ext4itree). Empty if it is not mounted.
      type: str
      version_added: "0.3.0"
    root:
      description: Whether it is the root file system.
      type: bool
    switchable:
      description: Whether it is mounted, and the kernel can turn the feature on and off while it is.
      type: bool
    errors:
      description: The errors that the kernel has recorded in the superblock.
      type: int
    free_percent:
      description: Free space of a mounted volume, for users other than root.
      type: float
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.itree.storage.plugins.module_utils import boot, ext4


def main():
    module = AnsibleModule(
        argument_spec={"volumes": {"type": "list", "elements": "path", "default": []}}, supports_check_mode=True
    )
    found = []
    for name in module.params["volumes"]:
        try:
            found.append({"name": name, **ext4.Volume(name).info()})
        except ext4.Ext4Error as err:
            module.fail_json(msg=str(err))
    known, advice = ext4.kernel_feature()
    kernel = os.uname()
    waiting = boot.waiting(kernel.release, kernel.version)
    module.exit_json(
        changed=False,
        kernel_feature=known,
        module_feature=ext4.module_feature(),
        kernel_release=kernel.release,
        kernel_waiting=waiting,
        kernel_advice=advice,
        module_waiting=bool(waiting) and ext4.module_installed(waiting),
        secure_boot=boot.secure_boot(),
        volumes=found,
    )


if __name__ == "__main__":
    main()
