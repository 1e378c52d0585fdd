#!/usr/bin/python
# SPDX-License-Identifier: GPL-2.0-only
"""Which kernel boots by default, and which one for a single boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: itree_boot
short_description: Choose the kernel that boots by default, or for one boot only
version_added: "0.2.0"
description:
  - Knows GRUB as Debian sets it up, GRUB with grubby as on Fedora and EL, and systemd-boot.
  - Refuses to choose a kernel for one boot where GRUB could not forget the choice, because it cannot write to C(/boot).
  - With GRUB on Debian, choosing a default writes C(/etc/default/grub.d/itree.cfg) and runs C(update-grub); without
    that file the newest kernel would be the default again after each installation.
options:
  default:
    description:
      - The release of the kernel (as C(uname -r) prints it) to boot from now on.
    type: str
  once:
    description:
      - The release of the kernel to boot next time, and only then.
      - V(none) takes such a choice back.
    type: str
  panic:
    description:
      - Seconds after which a kernel that has panicked reboots; V(0) leaves that as it is.
      - With GRUB on Debian given with O(default), for all entries; with grubby and O(once), for that kernel. With
        systemd-boot it does nothing.
    type: int
    default: 0
  forget:
    description:
      - Give the choice of the default back to the distribution.
    type: bool
    default: false
  loader:
    description:
      - The boot loader; V(auto) finds out.
    type: str
    choices: [auto, grub, grubby, systemd-boot]
    default: auto
author:
  - The itree founders (!UNKNOWN)
attributes:
  check_mode:
    description: Tells what would change.
    support: full
  diff_mode:
    description: Tells of the default and of the next boot.
    support: full
  platform:
    description: Where it runs.
    support: full
    platforms: posix
seealso:
  - module: ansible.builtin.reboot
"""

EXAMPLES = r"""
- name: Keep the kernel that runs, whatever is installed
  itree.storage.itree_boot:
    default: "{{ ansible_facts.kernel }}"

- name: Try another one once
  itree.storage.itree_boot:
    once: 6.12.117-20261121-itree
"""

RETURN = r"""
loader:
  description: The boot loader.
  returned: success
  type: str
kernels:
  description: Releases that the boot menu has entries for, the highest version first.
  returned: success
  type: list
  elements: str
default:
  description: The release that boots by default; empty if that cannot be told. In check mode as it would be.
  returned: success
  type: str
once:
  description: The release that boots next and only then, or empty. In check mode as it would be.
  returned: success
  type: str
can_boot_once:
  description: Whether the loader can boot an entry once.
  returned: success
  type: bool
why_not:
  description: Why it cannot, or empty.
  returned: success
  type: str
secure_boot:
  description:
    - Whether the firmware starts only what is signed, V(enabled) or V(disabled).
    - V(unknown) on a host with EFI whose variables cannot be read.
  returned: success
  type: str
  sample: disabled
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.itree.storage.plugins.module_utils import boot

NONE = "none"


def work(module, found):
    """Do what was asked for; (changed, state before, state after)."""
    wanted, panic, really = module.params["default"], module.params["panic"], not module.check_mode
    before = {"default": found.default(), "once": found.once()}
    after, changed = dict(before), False
    if wanted:
        found.id_of(wanted)
        if not found.default_is(wanted, panic):
            changed, after["default"] = True, wanted
            if really:
                found.set_default(wanted, panic)
    elif module.params["forget"]:
        changed = found.forget(really)
    once = module.params["once"]
    if once and once != NONE:
        found.id_of(once)
        found.check_once()
        if before["once"] != once:
            changed, after["once"] = True, once
            if really:
                if panic and hasattr(found, "add_arguments"):
                    found.add_arguments(once, panic)
                found.set_once(once)
    elif once == NONE and before["once"]:
        changed, after["once"] = True, ""
        if really:
            found.clear_once()
    if really and changed:
        after = {"default": found.default(), "once": found.once()}
    for key, value in (("default", wanted), ("once", once if once != NONE else None)):
        if value and after[key] != value:
            now = after[key] or "unknown"
            raise boot.BootError(f"the tools of {found.name} ended well, and the {key} kernel is {now}, not {value}")
    return changed, before, after


def main():
    module = AnsibleModule(
        argument_spec={
            "default": {"type": "str"},
            "once": {"type": "str"},
            "panic": {"type": "int", "default": 0},
            "forget": {"type": "bool", "default": False},
            "loader": {"type": "str", "choices": ["auto", "grub", "grubby", "systemd-boot"], "default": "auto"},
        },
        mutually_exclusive=[("default", "forget")],
        supports_check_mode=True,
    )
    if module.params["panic"] < 0:
        module.fail_json(msg="panic: a number of seconds, or 0")

    def run(argv):
        return module.run_command(argv, environ_update={"LC_ALL": "C", "LANGUAGE": "C"})

    def which(name):
        return module.get_bin_path(name, opt_dirs=["/usr/sbin", "/sbin"])

    why_not = ""
    try:
        found = boot.loader(module.params["loader"], run, which)
        changed, before, after = work(module, found)
        kernels = found.kernels()
        try:
            found.check_once()
        except boot.BootError as err:
            why_not = str(err)
    except boot.BootError as err:
        module.fail_json(msg=str(err))
    answer = {"loader": found.name, "kernels": kernels, "can_boot_once": not why_not, "why_not": why_not,
              "secure_boot": found.secure_boot(), **after}  # fmt: skip
    if module._diff:
        texts = [f"default: {s['default'] or 'not known'}\nonce: {s['once'] or 'none'}\n" for s in (before, after)]
        answer["diff"] = dict(zip(("before", "after"), texts))
    module.exit_json(changed=changed, **answer)


if __name__ == "__main__":
    main()
