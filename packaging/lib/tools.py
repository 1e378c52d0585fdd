# SPDX-License-Identifier: GPL-2.0-only
"""The patched tools as packages: the common parts of their RPMs and .debs.

They are installed beside those of the distribution, below TREE, and `diskorder`
puts that directory first in PATH.  Nothing is replaced: the distribution keeps
fixing its own tar and rsync, and a host is never without cp during a swap.
"""

import dataclasses

import pkg
import treebuild as tb

TREE = "/usr/libexec/diskorder"
LGPL = tb.REPO / "packaging" / "diskorder" / "COPYING.LGPL"
PARTS = tb.REPO / "coreutils-patches"


@dataclasses.dataclass(frozen=True)
class Tool:
    """A patched tool."""

    source: str  # its name in sources.lock
    version: str  # as upstream writes it
    url: str
    summary: str
    text: str  # the description: what it does that the distribution's own does not
    example: str
    configure: str
    programs: tuple  # paths where they are built, relative to the tree
    manuals: tuple
    features: tuple  # macros that config.h must have: configure silently leaves out what it does not find
    rpm_needs: tuple
    deb_needs: tuple
    targets: str = ""  # for make; the programs, unless upstream lacks rules for their dependencies
    headers: str = ""  # make's variable that names generated headers, which building a single program leaves out
    empty: tuple = ()  # files that Debian's tarball lacks and configure needs
    check: str = ""  # shell; $tool is the directory of the programs, $in has files, $out is empty


CHECK_COPY = """
"$tool/{0}" {1} "$in" "$out/"
diff -r "$in" "$out/in"
"""
CHECK_ARCHIVE = """
"$tool/tar" --sort=disk -C "$in/.." -cf "$out/x.tar" in
"$tool/tar" -C "$out" -xf "$out/x.tar"
diff -r "$in" "$out/in"
"""
TOOLS = {
    "tar-itree": Tool(
        "tar", "1.35", "https://www.gnu.org/software/tar/", "GNU tar that reads directories in disk order",
        "GNU tar that reads directories in the order of inodes, and with --sort=disk\n"
        "file data in the order in which it lies on the disk",
        "tar --sort=disk -cf mail.tar /srv/mail",
        "--with-rmt=/etc/rmt RSH=/usr/bin/ssh", ("src/tar",), ("doc/tar.1",),
        ("USE_ACL 1", "HAVE_POSIX_ACLS", "HAVE_SELINUX_SELINUX_H 1", "HAVE_XATTRS"),
        ("libacl-devel", "libattr-devel", "libselinux-devel"), ("libacl1-dev", "libattr1-dev", "libselinux1-dev"),
        targets="all", check=CHECK_ARCHIVE,
    ),
    "rsync-itree": Tool(
        "rsync", "3.5.1", "https://rsync.samba.org/", "rsync whose sender reads in disk order",
        "rsync that looks names up in the order of inodes and, when it sends, reads\n"
        "ahead in the order in which the data lies on the disk",
        "rsync -a /srv/mail backup:",
        # --disable-idn: else support of host names beyond ASCII would depend on a library of the build host.
        "--disable-md2man --disable-idn --with-included-zlib=no --with-included-popt=no "
        "--with-rsyncd-conf=/etc/rsyncd.conf",
        ("rsync",), ("rsync.1",),
        ("SUPPORT_ACLS 1", "SUPPORT_XATTRS 1", "SUPPORT_XXHASH 1", "SUPPORT_ZSTD 1", "SUPPORT_LZ4 1", "USE_OPENSSL 1"),
        ("libacl-devel", "libattr-devel", "libzstd-devel", "lz4-devel", "openssl-devel", "popt-devel", "xxhash-devel",
         "zlib-devel"),
        ("libacl1-dev", "libattr1-dev", "liblz4-dev", "libpopt-dev", "libssl-dev", "libxxhash-dev", "libzstd-dev",
         "zlib1g-dev"),
        empty=("zlib/dummy.in", "popt/dummy.in"), check=CHECK_COPY.format("rsync", "-a"),
    ),
    "coreutils-itree": Tool(
        "coreutils", "9.7", "https://www.gnu.org/software/coreutils/", "ls, cp and mv that go in disk order",
        "Of GNU coreutils ls, which looks files up in the order of inodes, and cp and\n"
        "mv, which copy files in the order in which their data lies on the disk",
        "cp -a /srv/mail /backup",
        "--without-libgmp --without-openssl", ("src/ls", "src/cp", "src/mv"), ("man/ls.1", "man/cp.1", "man/mv.1"),
        ("USE_ACL 1", "USE_XATTR 1", "HAVE_CAP 1", "HAVE_SELINUX_SELINUX_H 1"),
        ("libacl-devel", "libattr-devel", "libcap-devel", "libselinux-devel"),
        ("libacl1-dev", "libattr1-dev", "libcap-dev", "libselinux1-dev"), headers="BUILT_SOURCES",
        check=CHECK_COPY.format("cp", "-a") + 'test "$("$tool/ls" -i "$out/in")" = "$(ls -i "$out/in")"\n',
    ),
}  # fmt: skip


def library_parts():
    """libdiskorder, the preload and how they are built, as {path in the source package: file}."""
    parts = {"diskorder/Makefile": tb.REPO / "packaging" / "diskorder" / "Makefile"}
    for name in ("lib", "preload"):
        parts |= {f"diskorder/{name}/{rel}": PARTS / name / rel for rel in tb.files_below(PARTS / name)}
    return parts


def patches(tool):
    return tb.read_series(PARTS / tool.source / "patches")


def archive_of(tool, directory):
    """The pristine source; its upstream version must be that of the table."""
    path = tb.fetch(tool.source, directory)
    if not path.name.startswith(f"{tool.source}_{tool.version}"):
        want = f"{tool.source} {tool.version}"
        raise tb.BuildError(f"{path} is not {want}: packaging/lib/tools.py and sources.lock differ")
    return path


def installed(tool):
    """Paths in a tool's package, without the licence."""
    files = [f"{TREE}/bin/{p.split('/')[-1]}" for p in tool.programs]
    return files + [f"{TREE}/share/man/man1/{m.split('/')[-1]}" for m in tool.manuals]


def script(name):
    """The shell script that builds, checks and installs a tool, for the spec and for debian/rules."""
    tool = TOOLS[name]
    words = {
        "TREE": TREE, "EMPTY": " ".join(tool.empty), "CONFIGURE": tool.configure, "HEADERS": tool.headers,
        "TARGETS": tool.targets or " ".join(tool.programs),
        "PROGRAMS": " ".join(tool.programs), "MANUALS": " ".join(tool.manuals),
        "FEATURES": " ".join(f"'{f}'" for f in tool.features), "CHECK": tool.check.strip().replace("\n", "\n\t"),
    }  # fmt: skip
    return pkg.filled(tb.REPO / "packaging" / "diskorder" / "tool.sh.in", **words)
