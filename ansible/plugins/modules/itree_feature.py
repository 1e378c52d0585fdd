#!/usr/bin/python
# SPDX-License-Identifier: GPL-2.0-only
"""The itree feature of a volume."""

from __future__ import annotations

DOCUMENTATION = r"""
module: itree_feature
short_description: Turn the itree feature of an ext4 volume on or off
version_added: "0.1.0"
description:
  - A mounted volume is changed by the kernel, while it is in use, if the kernel is one that can; see RV(online).
  - One that is not mounted is checked with C(e2fsck -f -p) first. C(tune2fs) turns the feature on or off in both cases,
    and the module looks afterwards whether it is.
  - Nothing is ever forced. The root file system, a volume with errors that C(e2fsck -p) does not mend, and a volume in
    use under a kernel that cannot change it then are refused, with advice.
  - Turning it off frees all trees. No file, name or directory changes.
options:
  device:
    description:
      - The block device, or an image file.
    type: path
    required: true
  state:
    description:
      - Whether the volume has the feature.
    type: str
    choices: [present, absent]
    default: present
  require_kernel:
    description:
      - Refuse to turn the feature on while the running kernel does not know it, because this kernel would mount the
        volume read-only at best.
    type: bool
    default: true
  assume_unmounted:
    description:
      - In check mode, do not object to a volume that is mounted, for a task before this one would unmount it.
      - Such a volume is not checked by C(e2fsck). Without check mode this option does nothing.
    type: bool
    default: false
  tools:
    description:
      - A directory in which to look for C(e2fsck), C(tune2fs) and C(debugfs) first.
    type: path
author:
  - The itree founders (!UNKNOWN)
attributes:
  check_mode:
    description:
      - Does the same checks, with C(e2fsck -f -n), which changes nothing.
      - A volume whose journal has to be replayed first is not checked by C(e2fsck) in check mode.
      - Whether the kernel will change a mounted volume is not tried in check mode.
    support: full
  diff_mode:
    description: Tells of the feature.
    support: full
  platform:
    description: Where it runs.
    support: full
    platforms: posix
requirements:
  - e2fsck, tune2fs and debugfs of e2fsprogs-itree (the role itree.storage.packages installs them)
seealso:
  - module: itree.storage.itree_volume_info
"""

EXAMPLES = r"""
- name: Turn the feature on
  itree.storage.itree_feature:
    device: /dev/disk/by-label/mail
"""

RETURN = r"""
online:
  description: Whether the volume is changed while it is mounted.
  returned: success
  type: bool
checked:
  description: Whether e2fsck has looked at the volume.
  returned: success
  type: bool
repaired:
  description: Whether e2fsck has mended something on the way.
  returned: success
  type: bool
fsck:
  description: What e2fsck said.
  returned: when it ran
  type: str
"""

import os
import shlex
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.itree.storage.plugins.module_utils import ext4

FSCK_FIXED = 1


class Feature:
    """The work on one volume."""

    def __init__(self, module, volume):
        self.module, self.volume, self.device = module, volume, volume.device
        self.want = module.params["state"] == "present"
        tools = module.params["tools"]
        where = [tools] if tools else []
        self.where = [*where, "/usr/sbin", "/sbin"]
        self.answer = {"online": False, "checked": False, "repaired": False}

    def fail(self, msg):
        self.module.fail_json(msg=f"{self.device}: {msg}", **self.answer)

    def tool(self, name):
        path = self.module.get_bin_path(name, opt_dirs=self.where)
        return path or self.fail(f"{name} is not installed; it is part of e2fsprogs")

    def run(self, *argv):
        env = {"LC_ALL": "C", "LANGUAGE": "C"}
        code, out, err = self.module.run_command(list(argv), environ_update=env)
        return code, (out + err).strip()

    def refuse(self):
        """All that can be found wrong before the volume is touched."""
        if self.volume.root:
            self.fail("the root file system is left alone; boot another system to change it")
        if self.want and self.volume.super.lacking():
            names = ",".join(self.volume.super.lacking())
            self.fail(f"the itree feature needs {names}: unmount it, run tune2fs -O {names}, then e2fsck -fD")
        known, advice = ext4.feature()
        if self.want and self.module.params["require_kernel"] and not known:
            self.fail(advice)
        _code, output = self.run(self.tool("debugfs"), "-R", "supported_features itree")
        if "Supported feature: itree" not in output:
            self.fail(
                "the e2fsprogs here do not know the itree feature; install those of the itree repository (role "
                "itree.storage.packages)"
            )

    def refuse_in_use(self):
        """Whether the volume is mounted and may be: the kernel can change it then, or this is check mode."""
        points = [m.point for m in self.volume.mounts]
        if self.volume.switchable:
            self.answer["online"] = True
            return True
        if points and self.module.check_mode and self.module.params["assume_unmounted"]:
            return True
        if points:
            commands = "; ".join(f"umount {shlex.quote(p)}" for p in points)
            self.fail(
                f"it is mounted at {', '.join(points)}, and this kernel cannot change it there. Stop what uses it, "
                f"unmount it ({commands}) and run this again; the role itree.storage.feature does that with "
                "itree_feature_unmount: true"
            )
        if not stat.S_ISBLK(os.stat(self.device).st_mode) and ext4.users(self.device):
            self.fail("a loop device is attached to it; detach that (losetup -d), or name the loop device instead")
        if ext4.held(self.device):
            self.fail("it is in use: mounted in another namespace, or part of LVM, RAID or device mapper")
        return False

    def fsck(self):
        """As check and check mode have it; the module ends if the volume is not clean."""
        if self.module.check_mode and self.volume.super.incompat & ext4.INCOMPAT_RECOVER:
            self.module.warn(f"{self.device}: its journal has to be replayed first; not checked in check mode")
            return
        code, output = self.run(self.tool("e2fsck"), "-f", "-n" if self.module.check_mode else "-p", self.device)
        self.answer.update(checked=True, repaired=code == FSCK_FIXED and not self.module.check_mode, fsck=output)
        if code and not self.answer["repaired"]:
            self.fail(
                f"e2fsck ended with exit code {code}, and the feature was left as it is. Run e2fsck -f on it by hand, "
                f"unmounted, with a backup at hand. It said: {output[-2000:]}"
            )

    def change(self):
        words = "itree" if self.want else "^itree"
        code, output = self.run(self.tool("tune2fs"), "-O", words, self.device)
        if code:
            self.fail(f"tune2fs -O {words} ended with exit code {code}: {output}")
        if ext4.Superblock(self.device).itree != self.want:
            self.fail(f"tune2fs -O {words} ended well, and the superblock is as it was: {output}")


def main():
    module = AnsibleModule(
        argument_spec={
            "device": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "require_kernel": {"type": "bool", "default": True},
            "assume_unmounted": {"type": "bool", "default": False},
            "tools": {"type": "path"},
        },
        supports_check_mode=True,
    )
    device = module.params["device"]
    try:
        if os.path.isdir(device):
            raise ext4.Ext4Error(f"{device}: a directory; give the device")
        volume = ext4.Volume(os.path.realpath(device))
        job = Feature(module, volume)
        if volume.super.itree == job.want:
            module.exit_json(changed=False, **job.answer)
        job.refuse()
        if not job.refuse_in_use():
            job.fsck()
        if not module.check_mode:
            job.change()
    except ext4.Ext4Error as err:
        module.fail_json(msg=str(err))
    if module._diff:
        lines = [f"itree feature of {device}: {'off' if on else 'on'}\n" for on in (job.want, not job.want)]
        job.answer["diff"] = {"before": lines[0], "after": lines[1]}
    module.exit_json(changed=True, **job.answer)


if __name__ == "__main__":
    main()
