# SPDX-License-Identifier: GPL-2.0-only
"""Which kernel boots next, and which one boots once: GRUB as Debian sets it up, grubby, systemd-boot.

Kernels are named by their release, as `uname -r` prints it.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import re

# GRUB cannot write to these, so an entry chosen for one boot would be chosen for good.
NOT_WRITTEN = {"btrfs", "zfs", "iso9660", "squash4", "lvm", "diskfilter", "mdraid1x", "mdraid09", "cryptodisk", "luks"}
EFI_VARIABLES = "sys/firmware/efi/efivars"
EFI_VARIABLE = "{0}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


class BootError(Exception):
    """The text says what is wrong and what to do."""


@dataclasses.dataclass
class Entry:
    """An entry of a boot menu. id is what the loader's own tools call it; kernel is empty for a submenu."""

    id: str
    title: str
    kernel: str = ""
    rescue: bool = False
    inside: list | None = None


def newest_first(kernels):
    """Releases by version, each once, the highest first."""
    return sorted(set(kernels), key=lambda r: [(p.isdigit(), int(p) if p.isdigit() else 0, p)
                                               for p in re.split(r"(\d+)", r)], reverse=True)  # fmt: skip


def release_of(path):
    """The release in the name of a kernel image; empty if it has none."""
    match = re.search(r"vmlinu[xz]-(\S+)$", path)
    return match[1] if match else ""


def flavour(release):
    """The part of a release that updates of its package keep: amd64, cloud-amd64, x86_64, itree."""
    parts = re.split(r"[-.+~]", release)
    if "itree" in parts:
        return "itree"
    return "-".join(p for p in parts if not re.fullmatch(r"\d+|(fc|el)\d+(_\d+)?|(deb|bpo)\d*", p))


def build_of(path):
    """The build that an x86 kernel image contains, as `uname -v` prints it; empty if it cannot be read."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(0x210)
            if head[0x202:0x206] != b"HdrS":
                return ""
            handle.seek(int.from_bytes(head[0x20E:0x210], "little") + 0x200)
            text = handle.read(512).split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
    return text.partition(") ")[2].strip()


def waiting(running, build, root="/"):
    """The release of an installed kernel that replaces the running one at the next boot; empty if none does.

    It is newer and of the same flavour, or another build of the same release.
    """
    images = {release_of(path): path for path in glob.glob(os.path.join(root, "boot/vmlinuz-*"))}
    for path in glob.glob(os.path.join(root, "usr/lib/modules/*/vmlinuz")):
        images.setdefault(os.path.basename(os.path.dirname(path)), path)
    newest = newest_first([running, *(r for r in images if flavour(r) == flavour(running))])[0]
    if newest != running:
        return newest
    installed = build_of(images.get(running, ""))
    return running if installed and installed != build else ""


def parse_grub(text):
    """The menu of a grub.cfg as a list of Entry; submenus have theirs in `inside`."""
    top = []
    stack = [top]
    for raw in text.splitlines():
        line = raw.strip()
        match = re.match(r"(menuentry|submenu)\s+(['\"])(.*?)\2(.*)\{$", line)
        if match:
            known = re.search(r"\$menuentry_id_option\s+['\"]?([^'\"\s]+)", match[4])
            entry = Entry(known[1] if known else match[3], match[3], inside=[])
            (stack[-1] if isinstance(stack[-1], list) else stack[-1].inside).append(entry)
            stack.append(entry)
        elif line == "}" and len(stack) > 1:
            stack.pop()
        elif re.match(r"linux(16|efi)?\s", line) and len(stack) > 1 and not stack[-1].kernel:
            words = line.split()
            stack[-1].kernel = release_of(words[1])
            stack[-1].rescue = bool({"single", "recovery", "rescue"} & set(words[2:])) or "-recovery-" in stack[-1].id
    return top


def flatten(entries, prefix=""):
    """(id as grub-reboot takes it, Entry) of all entries that boot something."""
    for entry in entries:
        if entry.kernel:
            yield prefix + entry.id, entry
        yield from flatten(entry.inside or [], f"{prefix}{entry.id}>")


def find_grub(entries, spec):
    """The Entry that GRUB takes for a `default`: numbers, ids or titles, with > between levels; None if none is it."""
    found = None
    for part in (spec or "0").split(">"):
        if part.isdigit() and int(part) < len(entries):
            found = entries[int(part)]
        else:
            found = next((e for e in entries if part in (e.id, e.title)), None)
        if found is None:
            return None
        entries = found.inside or []
    while found and not found.kernel and found.inside:
        found = found.inside[0]
    return found


class Loader:
    """What the loaders have in common. run(argv) is (exit code, standard output, standard error)."""

    def __init__(self, run, root="/"):
        self._run, self.root = run, root

    def path(self, name):
        return os.path.join(self.root, name)

    def run(self, *argv):
        """The standard output of a command; BootError if it fails."""
        code, out, err = self._run(list(argv))
        if code:
            raise BootError(f"{' '.join(argv)} ended with exit code {code}: {(err or out).strip()[-1000:]}")
        return out

    def read(self, name):
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as handle:
                return handle.read()
        except FileNotFoundError:
            return ""
        except OSError as err:
            raise BootError(f"{self.path(name)}: {err.strerror}") from err

    def efi_variable(self, name):
        """What an EFI variable holds, after its four bytes of attributes; None if there is none of that name."""
        path = self.path(f"{EFI_VARIABLES}/{name}")
        try:
            with open(path, "rb") as handle:
                return handle.read()[4:]
        except FileNotFoundError:
            return None
        except OSError as err:
            raise BootError(f"{path}: {err.strerror}") from err

    def secure_boot(self):
        """Whether the firmware starts only what is signed: enabled, disabled, or unknown."""
        try:
            found = self.efi_variable(SECURE_BOOT)
            if found is not None:
                return {b"\0": "disabled", b"\1": "enabled"}.get(found, "unknown")
            # A BIOS has no Secure Boot, nor has firmware that keeps variables and not this one. No variables at all:
            # efivarfs is not mounted, or the kernel was told to leave the firmware alone.
            bios = not os.path.exists(self.path("sys/firmware/efi"))
            return "disabled" if bios or os.listdir(self.path(EFI_VARIABLES)) else "unknown"
        except (BootError, OSError):
            return "unknown"

    def kernels(self):
        return newest_first(self.ids())

    def id_of(self, kernel):
        """The entry of a kernel."""
        ids = self.ids()
        if kernel not in ids:
            have = ", ".join(newest_first(ids)) or "none"
            raise BootError(f"the boot menu has no entry for the kernel {kernel}; it has {have}")
        return ids[kernel]

    def kernel_of(self, id_):
        return next((kernel for kernel, known in self.ids().items() if known == id_), "")

    def check_once(self):
        """BootError if an entry for one boot could not be taken back by the loader itself."""

    def forget(self, change):
        """Give the choice back to the distribution; whether there was something to give back."""
        return False


class GrubEnvironment(Loader):
    """What GRUB and GRUB by grubby share: the environment block, grub-reboot, and where GRUB can write."""

    word = "grub"

    def environment(self):
        path = self.path(f"boot/{self.word}/grubenv")
        if not os.path.exists(path):
            return {}
        lines = self.run(f"{self.word}-editenv", path, "list").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def check_once(self):
        where = self.path(f"boot/{self.word}")
        for target in ("fs", "abstraction"):
            bad = NOT_WRITTEN & set(self.run(f"{self.word}-probe", f"--target={target}", where).split())
            if bad:
                raise BootError(
                    f"{where} lies on {', '.join(sorted(bad))}, which GRUB cannot write to: an entry chosen for "
                    "one boot would stay chosen, and a kernel that does not come up would be tried for ever. Try the "
                    "kernel by hand, at the console"
                )

    def set_once(self, kernel):
        self.run(f"{self.word}-reboot", self.id_of(kernel))

    def clear_once(self):
        if self.environment().get("next_entry"):
            self.run(f"{self.word}-editenv", self.path(f"boot/{self.word}/grubenv"), "unset", "next_entry")


class Grub(GrubEnvironment):
    """GRUB with a grub.cfg written by update-grub, as on Debian."""

    name = "grub"
    pin = "etc/default/grub.d/itree.cfg"

    def menu(self):
        text = self.read("boot/grub/grub.cfg")
        if not text:
            raise BootError(f"{self.path('boot/grub/grub.cfg')} is missing or empty: run update-grub")
        return text, parse_grub(text)

    def ids(self):
        found = {}
        for id_, entry in flatten(self.menu()[1]):
            # Of a kernel's entries the one in the submenu: the first of the menu is another kernel's after an update.
            if entry.kernel and not entry.rescue and (entry.kernel not in found or ">" in id_):
                found[entry.kernel] = id_
        return found

    def spec(self, text):
        """What the menu takes for its default when nothing was chosen for one boot."""
        words = [w for w in re.findall(r'^\s*set default="(.*)"', text, re.M) if "next_entry" not in w]
        return words[-1] if words else "0"

    def default(self):
        text, entries = self.menu()
        spec = self.spec(text)
        found = find_grub(entries, self.environment().get("saved_entry", "") if "saved_entry" in spec else spec)
        return found.kernel if found else ""

    def once(self):
        spec = self.environment().get("next_entry")
        found = find_grub(self.menu()[1], spec) if spec else None
        return found.kernel if found else ""

    def check_once(self):
        if "next_entry" not in self.menu()[0]:
            raise BootError(
                f"{self.path('boot/grub/grub.cfg')} does not look at next_entry, so nothing can be chosen for one "
                "boot: it was not written by update-grub"
            )
        super().check_once()

    def pinned(self, panic):
        """The file that lets a default be chosen at all."""
        text = (
            "# SPDX-License-Identifier: GPL-2.0-only\n"
            "# Written by itree.storage.itree_boot: the default is the entry that grub-set-default chose, not the\n"
            "# newest kernel. Without this file, and after update-grub, it is as the distribution has it.\n"
            "GRUB_DEFAULT=saved\n"
        )
        if panic:
            text += f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT panic={panic}"\n'
        return text

    def default_is(self, kernel, panic):
        # What is default only because it is the newest would not be after the next installation.
        saved = "saved_entry" in self.spec(self.menu()[0])
        return saved and self.default() == kernel and (not panic or self.read(self.pin) == self.pinned(panic))

    def set_default(self, kernel, panic):
        text = self.pinned(panic)
        if "saved_entry" not in self.spec(self.menu()[0]) or (panic and self.read(self.pin) != text):
            path = self.path(self.pin)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".new", "w", encoding="utf-8") as handle:
                handle.write(text)
            os.rename(path + ".new", path)
            # First, so that there is no moment at which the saved entry is none or an old one.
            self.run("grub-set-default", self.id_of(kernel))
            self.run("update-grub")
        self.run("grub-set-default", self.id_of(kernel))

    def forget(self, change):
        if not os.path.exists(self.path(self.pin)):
            return False
        if change:
            os.unlink(self.path(self.pin))
            self.run("update-grub")
        return True


class Grubby(GrubEnvironment):
    """GRUB with boot entries in files, kept by grubby, as on Fedora and EL."""

    name, word = "grubby", "grub2"

    def entries(self):
        """[{index, kernel (a release), args, id}]"""
        found = []
        for line in self.run("grubby", "--info=ALL").splitlines():
            key, equals, value = line.partition("=")
            if key == "index":
                found.append({"index": value})
            elif found and key in ("kernel", "args", "id"):
                found[-1][key] = value.strip('"')
        for entry in found:
            entry["path"], entry["kernel"] = entry.get("kernel", ""), release_of(entry.get("kernel", ""))
        return [e for e in found if e["kernel"] and not e["kernel"].startswith("0-rescue")]

    def ids(self):
        return {e["kernel"]: e.get("id") or e["index"] for e in reversed(self.entries())}

    def default(self):
        return release_of(self.run("grubby", "--default-kernel").strip())

    def once(self):
        spec = self.environment().get("next_entry", "")
        return next((e["kernel"] for e in self.entries() if spec and spec in (e.get("id"), e["index"])), "")

    def default_is(self, kernel, panic):
        return self.default() == kernel

    def set_default(self, kernel, panic):
        (path,) = [e["path"] for e in self.entries() if e["kernel"] == kernel][:1] or [self.id_of(kernel)]
        self.run("grubby", f"--set-default={path}")

    def add_arguments(self, kernel, panic):
        """Let this kernel reboot after a panic, and its initramfs too."""
        (entry,) = [e for e in self.entries() if e["kernel"] == kernel][:1]
        if f"panic={panic}" not in entry.get("args", "").split():
            words = f"panic={panic} rd.shell=0 rd.emergency=reboot"
            self.run("grubby", f"--update-kernel={entry['path']}", f"--args={words}")


class SystemdBoot(Loader):
    """systemd-boot with boot entries in files, kept by kernel-install."""

    name = "systemd-boot"

    def entries(self):
        try:
            found = json.loads(self.run("bootctl", "list", "--json=short"))
        except ValueError as err:
            raise BootError(f"bootctl list --json=short wrote no JSON: {err}") from err
        return [{**e, "kernel": e.get("version") or release_of(e.get("linux") or "")} for e in found]

    def ids(self):
        return {e["kernel"]: e["id"] for e in reversed(self.entries()) if e["kernel"]}

    def default(self):
        return next((e["kernel"] for e in self.entries() if e.get("isDefault")), "")

    def variable(self, name):
        """An EFI variable of the loader, which is UTF-16."""
        return (self.efi_variable(EFI_VARIABLE.format(name)) or b"").decode("utf-16-le").rstrip("\0")

    def once(self):
        return self.kernel_of(self.variable("LoaderEntryOneShot"))

    def default_is(self, kernel, panic):
        return self.variable("LoaderEntryDefault") == self.id_of(kernel)

    def set_default(self, kernel, panic):
        self.run("bootctl", "set-default", self.id_of(kernel))

    def set_once(self, kernel):
        self.run("bootctl", "set-oneshot", self.id_of(kernel))

    def clear_once(self):
        if self.variable("LoaderEntryOneShot"):
            self.run("bootctl", "set-oneshot", "")

    def forget(self, change):
        if not self.variable("LoaderEntryDefault"):
            return False
        if change:
            self.run("bootctl", "set-default", "")
        return True


def secure_boot():
    """Whether the firmware of this host starts only what is signed, whatever its boot loader is."""
    return Loader(None).secure_boot()


LOADERS = {c.name: c for c in (Grub, Grubby, SystemdBoot)}


def loader(name, run, which, root="/"):
    """The loader of this host; which(program) is its path or None, name is one of LOADERS or auto."""
    if name != "auto":
        return LOADERS[name](run, root)
    if which("grubby") and which("grub2-reboot"):
        return Grubby(run, root)
    if which("grub-reboot") and which("update-grub") and os.path.exists(os.path.join(root, "boot/grub/grub.cfg")):
        return Grub(run, root)
    if which("bootctl") and run(["bootctl", "is-installed", "--quiet"])[0] == 0:
        return SystemdBoot(run, root)
    raise BootError(
        "found no boot loader that can boot an entry once: neither grubby with grub2-reboot, nor GRUB with "
        "update-grub, nor systemd-boot. Install and boot the kernel by hand"
    )
