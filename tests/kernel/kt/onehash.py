# SPDX-License-Identifier: GPL-2.0-only
"""Names of one hash that fill many leaves of the htree, and one leaf's worth more than a search by hash finds."""

from __future__ import annotations

import os

from kt import itree_ioctl as io
from kt.guest import Guest
from kt.online import e4itree, exact, feature_on
from kt.registry import case

# Behind 244 times "x" their legacy hash, which takes no seed, is one and the same. Found by trying 10^11 names.
TAILS = """
aaaaaaaaaaa 6shtObkw9Ke ErhRl-dTtRE 5NW9kEP7bxa ZqtGtpGa9jv 1QHBhGEKXwr dKtTlBxDPsm Z1SYwYi7pDj amcpag1BML7 0V46b27omLj
y6iC4vS1ohw REHtyTA2-2k NfGu-M4TGHZ OUWOZKp2g5u HoMuJU5smd3 kD1iNXCeEIH i2D3u22t4O4 66WCu72hOFe goNBPF054bK AtUA3R02UMl
qB6mpZ0QSk7 RjA_4ly-BVr M6WwXZ3bvVo bvOy03iDMps BD4cnVsEHz- zaceKmpghcu 5xjoMlr1tFO nnYBHyOxeZQ HOMYB00yuII cVqMslW45n9
MmzaH0Nc2t6 rRhRwaAqzoX w8LLEApXI5h zVH8UAKT3_j 5S7WaKXO21a up2mME5DrtS qYpxyJRh2We ynbFo785-T8 whmCw4Mdfg6 kUDzay1DkOX
5JGGImJ-v1U i0thdn7oES8 VjQKiEICOfq TZVTdWt0gCS Usna9gfLaWr aYho-s9jNTj Orv7hU2Q9Jr Jc_isNOEcgx tjxFfUBtsp_ OFM_iq9MzON
YrN_pYjC96u YsFgIebvn9i eIF3efdeCRq ndQW4-y5ZnI wAfv1KbW9iy ZxiT4adN_gQ hoWt8lnCh6T kMe-_NvjK1i cN9v0pit8Ch 0zF8MoR56aV
""".split()
OTHERS = 2000  # of 200 characters: some 700 blocks of 1 KiB, so that the first names are looked for by their hash


def legacy_hash(name: bytes) -> int:
    """dx_hack_hash() of ext4."""
    one, two = 0x12A3FE2D, 0x37ABE8F9
    for char in name:
        new = (two + (one ^ (char * 7152373))) & 0xFFFFFFFF
        if new & 0x80000000:
            new = (new - 0x7FFFFFFF) & 0xFFFFFFFF
        one, two = new, one
    return (one << 1) & 0xFFFFFFFF


def names() -> list[str]:
    """Names of one hash, among others with arbitrary hashes."""
    same = ["x" * 244 + tail for tail in TAILS]
    assert len({legacy_hash(n.encode()) for n in same}) == 1
    every = OTHERS // len(same)
    made = []
    for number in range(OTHERS):
        made.append(f"{number:05}".ljust(200, "-"))
        if number % every == 0 and same:
            made.append(same.pop())
    return made + same


def fill(d: str, wanted: list[str]) -> None:
    os.mkdir(d)
    for name in wanted:
        os.close(os.open(f"{d}/{name}", os.O_CREAT | os.O_EXCL, 0o600))


def listed(g: Guest, d: str, wanted: list[str], what: str) -> None:
    found = os.listdir(d)
    g.equal((len(found), set(found) ^ set(wanted)), (len(wanted), set()), f"names {what}")


def one_hash(g: Guest) -> None:
    """Built by the creates or while in use: each name is listed and has its key, and no tree is called bad."""
    g.run(g.tool("tune2fs"), "-E", "hash_alg=legacy", g.dev)
    g.mount()
    wanted = names()
    built, grown = g.path("built"), g.path("grown")
    fill(built, wanted)
    feature_on(g)
    e4itree(g, "build", built)
    exact(g, built, len(wanted))
    fill(grown, wanted)
    exact(g, grown, len(wanted))
    g.again()
    for d in (built, grown):
        # The first window of a directory that large goes by hash.
        listed(g, d, wanted, "by readdir")
        g.equal(io.itree(d, io.STAT).state & io.BAD, 0, "the tree is called bad")
        for tail in TAILS:
            os.unlink(f"{d}/{'x' * 244}{tail}")
        rest = [n for n in wanted if n[0] != "x"]
        listed(g, d, rest, "after unlink")
        exact(g, d, len(rest))
    g.equal(g.counter("drops"), 0, "itree_drops")


case("online-one-hash", "online", {}, itree=False, mkfs=("-b", "1024"), size="256M", cost=30)(one_hash)
