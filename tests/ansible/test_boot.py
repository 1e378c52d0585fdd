# SPDX-License-Identifier: GPL-2.0-only
"""Boot loaders: menus as the distributions write them, with stand-ins for their tools.

Real GRUB: test_kernel_machines.py.
"""

import importlib.util
import json
import re
import sys

import pytest
from conftest import REPO

OLD, NEW = "6.1.0-37-cloud-amd64", "6.12.117-20261121-itree"
UUID = "17ee17ee-0000-4000-8000-000000000001"


def load():
    spec = importlib.util.spec_from_file_location("itree_boot_utils", REPO / "ansible/plugins/module_utils/boot.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


boot = load()


def entry(release, kind, ident, arguments=""):
    return f"""
menuentry 'Debian GNU/Linux, with Linux {release}{kind}' --class gnu-linux --class os $menuentry_id_option '{ident}' {{
\tload_video
\tinsmod gzio
\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
\tsearch --no-floppy --fs-uuid --set=root {UUID}
\tlinux\t/boot/vmlinuz-{release} root=UUID={UUID} ro {arguments}
\tinitrd\t/boot/initrd.img-{release}
}}"""


def menu(*releases, default="0"):
    """A grub.cfg as Debian's update-grub writes it: the newest kernel, then a submenu of all."""
    inside = "".join(
        entry(r, "", f"gnulinux-{r}-advanced-{UUID}", "quiet")
        + entry(r, " (recovery mode)", f"gnulinux-{r}-recovery-{UUID}", "single")
        for r in releases
    )
    return f"""
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="{default}"
fi
function savedefault {{
  if [ -z "${{boot_once}}" ]; then
    saved_entry="${{chosen}}"
    save_env saved_entry
  fi
}}
{entry(releases[0], "", f"gnulinux-simple-{UUID}", "quiet")}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-{UUID}' {{
{inside}
}}
if [ "$grub_platform" = "efi" ]; then
\tfwsetup --is-supported
\tmenuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {{
\t\tfwsetup
\t}}
fi
"""


class Tools:
    """Stand-ins for the programs of Debian's GRUB, that keep a grubenv and write a grub.cfg."""

    def __init__(self, root, *releases):
        self.root, self.releases, self.calls = root, releases, []
        (root / "boot" / "grub").mkdir(parents=True)
        (root / "etc" / "default").mkdir(parents=True)
        self.env, self.probed = {}, {"fs": "ext2", "abstraction": ""}
        (root / "boot" / "grub" / "grubenv").touch()
        self.update()

    def update(self):
        pinned = (self.root / boot.Grub.pin).exists()
        text = menu(*self.releases, default="${saved_entry}" if pinned else "0")
        (self.root / "boot" / "grub" / "grub.cfg").write_text(text)

    def __call__(self, argv):
        self.calls.append(argv)
        program, out = argv[0], ""
        if program == "grub-editenv" and argv[2] == "list":
            out = "".join(f"{k}={v}\n" for k, v in self.env.items())
        elif program == "grub-editenv" and argv[2] == "unset":
            self.env.pop(argv[3])
        elif program == "grub-probe":
            out = self.probed[argv[1].split("=")[1]] + "\n"
        elif program in ("grub-reboot", "grub-set-default"):
            self.env["next_entry" if program == "grub-reboot" else "saved_entry"] = argv[1]
        elif program == "update-grub":
            self.update()
        else:
            return 127, "", f"{program}: not found"
        return 0, out, ""

    def start(self):
        """What GRUB boots now: it forgets the choice for one boot."""
        once = self.env.pop("next_entry", None)
        text = (self.root / "boot" / "grub" / "grub.cfg").read_text()
        saved = 'set default="${saved_entry}"' in text
        spec = once or (self.env.get("saved_entry", "0") if saved else "0")
        names = spec.split(">")
        # Independent of the code under test: the identifier holds the release, and 0 is the newest.
        found = re.search(r"gnulinux-(.*)-advanced-" + UUID + "$", names[-1])
        return found[1] if found else self.releases[0]


@pytest.fixture
def grub(tmp_path):
    tools = Tools(tmp_path, NEW, OLD)
    return boot.Grub(tools, str(tmp_path)), tools


def test_grub_menu(grub):
    found, _tools = grub
    assert found.kernels() == [NEW, OLD]
    assert found.id_of(OLD) == f"gnulinux-advanced-{UUID}>gnulinux-{OLD}-advanced-{UUID}"
    assert found.default() == NEW and found.once() == ""
    with pytest.raises(boot.BootError, match=f"no entry for the kernel 5.10; it has {NEW}, {OLD}"):
        found.id_of("5.10")


def test_grub_once_and_default(grub):
    """The order of the role kernel: pin the old one, try the new one once, then make it the default."""
    found, tools = grub
    assert not found.default_is(OLD, 30)
    found.set_default(OLD, 30)
    assert found.default() == OLD and found.default_is(OLD, 30) and tools.start() == OLD
    assert "panic=30" in (tools.root / boot.Grub.pin).read_text()
    found.check_once()
    found.set_once(NEW)
    assert found.once() == NEW and found.default() == OLD
    assert [tools.start(), tools.start()] == [NEW, OLD]
    assert found.once() == ""
    found.set_once(NEW)
    found.clear_once()
    assert tools.start() == OLD
    found.set_default(NEW, 30)
    assert tools.start() == NEW and found.default_is(NEW, 30)
    # An update of the distribution's kernel does not move it.
    tools.releases = ("6.13.0-1-cloud-amd64", NEW, OLD)
    tools.update()
    assert tools.start() == NEW == found.default()
    assert found.forget(False) and found.default() == NEW
    assert found.forget(True) and tools.start() == "6.13.0-1-cloud-amd64" == found.default()
    assert not found.forget(True)


@pytest.mark.parametrize(
    ("target", "what"), (("abstraction", "lvm"), ("abstraction", "mdraid1x diskfilter"), ("fs", "btrfs"))
)
def test_grub_that_cannot_forget(grub, target, what):
    found, tools = grub
    tools.probed[target] = what
    with pytest.raises(boot.BootError, match="would be tried for ever"):
        found.check_once()


def test_grub_of_another_kind(grub):
    """A menu by hand, which does not look at next_entry."""
    found, tools = grub
    (tools.root / "boot/grub/grub.cfg").write_text(entry(NEW, "", "x"))
    assert found.kernels() == [NEW]
    with pytest.raises(boot.BootError, match="not written by update-grub"):
        found.check_once()
    (tools.root / "boot/grub/grub.cfg").write_text("")
    with pytest.raises(boot.BootError, match="run update-grub"):
        found.kernels()


@pytest.mark.parametrize(
    ("spec", "wanted"),
    (("", NEW), ("0", NEW), ("1>2", OLD), ("1", NEW), (f"gnulinux-advanced-{UUID}>gnulinux-{OLD}-advanced-{UUID}", OLD),
     (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", OLD), ("7", None), ("gone", None)),
)  # fmt: skip
def test_grub_specs(spec, wanted):
    """A default by number, identifier or title, as GRUB reads it."""
    found = boot.find_grub(boot.parse_grub(menu(NEW, OLD)), spec)
    assert (found.kernel if found else None) == wanted


GRUBBY = f"""index=0
kernel="/boot/vmlinuz-6.14.0-63.fc42.x86_64"
args="ro rhgb quiet"
root="UUID={UUID}"
id="0123-6.14.0-63.fc42.x86_64"
index=1
kernel="/boot/vmlinuz-6.12.117-1.itree.x86_64"
args="ro rhgb quiet"
root="UUID={UUID}"
id="0123-6.12.117-1.itree.x86_64"
index=2
kernel="/boot/vmlinuz-0-rescue-0123"
args="ro"
id="0123-0-rescue"
index=3
non linux entry
"""


def test_grubby(tmp_path):
    """Its listing as on Fedora; what it is asked to do."""
    fedora, itree = "6.14.0-63.fc42.x86_64", "6.12.117-1.itree.x86_64"
    calls, env = [], tmp_path / "boot/grub2/grubenv"
    env.parent.mkdir(parents=True)
    env.touch()
    answers = {"--info=ALL": GRUBBY, "--default-kernel": f"/boot/vmlinuz-{fedora}\n"}
    answers["list"] = f"next_entry=0123-{itree}\n"

    def run(argv):
        calls.append(argv)
        return 0, answers.get(argv[-1], ""), ""

    found = boot.Grubby(run, str(tmp_path))
    assert found.kernels() == [fedora, itree] and found.default() == fedora and found.once() == itree
    found.set_once(itree)
    assert calls[-1] == ["grub2-reboot", f"0123-{itree}"]
    found.add_arguments(itree, 30)
    words = "--args=panic=30 rd.shell=0 rd.emergency=reboot"
    assert calls[-1] == ["grubby", f"--update-kernel=/boot/vmlinuz-{itree}", words]
    found.set_default(itree, 30)
    assert calls[-1] == ["grubby", f"--set-default=/boot/vmlinuz-{itree}"]


def test_systemd_boot(tmp_path):
    entries = [
        {"id": "1-6.1.conf", "version": "6.1.0", "linux": "/1/6.1.0/linux", "isDefault": True},
        {"id": "1-6.12.conf", "version": "6.12.117-itree", "isDefault": False},
        {"id": "auto-reboot-to-firmware-setup", "title": "Firmware"},
    ]
    variables = tmp_path / "sys/firmware/efi/efivars"
    variables.mkdir(parents=True)

    def run(argv):
        if argv[1] == "list":
            return 0, json.dumps(entries), ""
        name = {"set-oneshot": "LoaderEntryOneShot", "set-default": "LoaderEntryDefault"}[argv[1]]
        path = variables / boot.EFI_VARIABLE.format(name)
        path.write_bytes(b"\x07\0\0\0" + (argv[2] + "\0").encode("utf-16-le"))
        return 0, "", ""

    found = boot.SystemdBoot(run, str(tmp_path))
    assert found.kernels() == ["6.12.117-itree", "6.1.0"] and found.default() == "6.1.0" and found.once() == ""
    found.set_once("6.12.117-itree")
    assert found.once() == "6.12.117-itree"
    assert not found.default_is("6.1.0", 0)
    found.set_default("6.1.0", 0)
    assert found.default_is("6.1.0", 0) and found.forget(False)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    (
        (None, "disabled"),  # a BIOS
        ({}, "unknown"),  # efivarfs is not mounted
        ({"BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x07\0\0\0\1\0"}, "disabled"),
        ({boot.SECURE_BOOT: b"\x06\0\0\0\0"}, "disabled"),
        ({boot.SECURE_BOOT: b"\x06\0\0\0\1"}, "enabled"),
        ({boot.SECURE_BOOT: b"\x06\0\0\0"}, "unknown"),
        ({boot.SECURE_BOOT: b""}, "unknown"),
        # The name as it is in the UEFI specification, whatever the code says.
        ({"SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x06\0\0\0\1"}, "enabled"),
        # Others of the same beginning, such as what shim remembers, are not it.
        ({"SecureBoot-605dab50-e046-4300-abb6-3dd810dd8b23": b"\x06\0\0\0\1"}, "disabled"),
    ),
)
def test_secure_boot(tmp_path, variables, wanted):
    """Files as efivarfs has them: four bytes of attributes, then one."""
    top = tmp_path / "sys/firmware/efi/efivars"
    if variables is not None:
        top.mkdir(parents=True)
        for name, data in variables.items():
            (top / name).write_bytes(data)
    for kind in boot.LOADERS.values():
        assert kind(lambda argv: (1, "", "not to be run"), str(tmp_path)).secure_boot() == wanted


def test_secure_boot_that_cannot_be_read(tmp_path):
    """Firmware that answers with an error, by what is no file."""
    (tmp_path / "sys/firmware/efi/efivars" / boot.SECURE_BOOT).mkdir(parents=True)
    assert boot.Grub(None, str(tmp_path)).secure_boot() == "unknown"
    # EFI without the directory that variables are mounted at.
    (tmp_path / "other/sys/firmware/efi").mkdir(parents=True)
    assert boot.Grub(None, str(tmp_path / "other")).secure_boot() == "unknown"


def test_versions():
    releases = ["6.9.1", "6.12.117-itree", "6.12.9", "6.12.117-itree", "5.14.0-503.el9"]
    assert boot.newest_first(releases) == ["6.12.117-itree", "6.12.9", "6.9.1", "5.14.0-503.el9"]


def test_no_loader(tmp_path):
    with pytest.raises(boot.BootError, match="by hand"):
        boot.loader("auto", lambda argv: (1, "", ""), lambda name: None, str(tmp_path))


def bzimage(build):
    """The head of an x86 kernel image: the magic number of its header, and where its version is."""
    data = bytearray(0x400)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = (0x100).to_bytes(2, "little")
    return bytes(data[:0x300]) + f"{OLD} (builder@host) {build}".encode() + b"\0"


@pytest.mark.parametrize(("running", "installed", "wanted"), [
    ("6.1.0-9-amd64", ["6.1.0-9-amd64", "6.1.0-10-amd64"], "6.1.0-10-amd64"),
    ("6.1.0-10-amd64", ["6.1.0-9-amd64", "6.1.0-10-amd64"], ""),
    ("6.1.0-9-amd64", ["6.1.0-10-cloud-amd64", "6.1.0-9-amd64"], ""),
    ("6.1.0-9-amd64", ["6.12.57+deb12-amd64", "6.1.0-9-amd64"], "6.12.57+deb12-amd64"),
    ("6.14.5-300.fc42.x86_64", ["6.15.3-200.fc43.x86_64", "0-rescue-0123456789abcdef"], "6.15.3-200.fc43.x86_64"),
    ("6.12.0-55.9.1.el10_0.x86_64", ["6.12.0-124.8.1.el10_1.x86_64"], "6.12.0-124.8.1.el10_1.x86_64"),
    # The distribution's kernel does not replace ours.
    (NEW, [NEW, "6.19.0-1-amd64"], ""),
    (NEW, [NEW, "6.12.118-20261128-itree"], "6.12.118-20261128-itree"),
])  # fmt: skip
def test_waiting(tmp_path, running, installed, wanted):
    for n, release in enumerate(installed):
        path = tmp_path / (f"usr/lib/modules/{release}/vmlinuz" if n % 2 else f"boot/vmlinuz-{release}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert boot.waiting(running, "#1", tmp_path) == wanted


def test_waiting_other_build(tmp_path):
    """An update may keep the release: the image in /boot is then another build than the running kernel."""
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / f"vmlinuz-{OLD}").write_bytes(bzimage("#1 SMP Debian 6.1.150-1 (2026-08-01)"))
    assert boot.waiting(OLD, "#1 SMP Debian 6.1.150-1 (2026-08-01)", tmp_path) == ""
    assert boot.waiting(OLD, "#1 SMP Debian 6.1.148-1 (2026-07-01)", tmp_path) == OLD
    (tmp_path / "boot" / f"vmlinuz-{OLD}").write_bytes(b"not x86")
    assert boot.waiting(OLD, "#1 SMP", tmp_path) == ""
