# SPDX-License-Identifier: GPL-2.0-only
"""Reports of KCSAN are counted, and those of the itree's own code known from others."""

import kcsan

LINE = "=" * 66


def report(title: str, first: list[str], second: list[str], when: str = "") -> str:
    """As the kernel prints it."""
    stacks = [
        [f"{what} to 0x0000000061f3a2c8 of 8 bytes by task 7{n} on cpu {n}:", *[f" {f}+0x1c/0x90" for f in stack], ""]
        for n, (what, stack) in enumerate((("write", first), ("read", second)))
    ]
    lines = [LINE, f"BUG: KCSAN: data-race in {title}", "", *stacks[0], *stacks[1], "Reported by ...", LINE]
    return "".join(f"{when}{line}\n" for line in lines)


def test_functions_of_our_files():
    found = kcsan.functions_of()
    assert {"ext4_itree_free_text", "window_room", "store_text", "ext4_itree_pack"} <= found
    assert not {"if", "while", "kvfree", "ext4_readdir", "sort", "return"} & found


def test_races():
    ours = report("fill_name / window_room", ["fill_name.isra.0", "a", "b", "window_room"], ["window_room", "c"])
    helper = report("memcpy / vfs_write", ["memcpy", "store_text", "a"], ["vfs_write"])
    far = report("jbd2_journal / start_this", ["jbd2_journal", "a", "b", "store_text"], ["start_this"])
    text = f"mounted\n{ours}{helper}between\n{far}{ours}after store_text+0x1/0x2\n"
    assert [title for title, _near in kcsan.races(text)] == [
        "fill_name / window_room", "memcpy / vfs_write", "jbd2_journal / start_this", "fill_name / window_room",
    ]  # fmt: skip
    assert kcsan.ours(text, {"fill_name", "store_text"}) == {"fill_name / window_room": 2, "memcpy / vfs_write": 1}
    assert kcsan.ours(text, {"vfs_read"}) == {}


def test_a_race_with_an_unknown_side_and_time_stamps():
    text = report("window_room+0x1c/0x90", [], ["window_room"], when="[   12.345678] ")
    assert kcsan.ours(text, {"window_room"}) == {"window_room": 1}
