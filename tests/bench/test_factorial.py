# SPDX-License-Identifier: GPL-2.0-only
"""The arithmetic of bench/factorial."""

import pytest
import treebuild as tb

import lab

factorial = tb.load_script(lab.BENCH / "factorial")


def test_contributions_are_found_again():
    # the first factor divides by 8, the third doubles, and the first two together take a tenth off
    def seconds(s):
        return 80 * (1 / 8 if s[0] else 1) * (2 if s[2] else 1) * (0.9 if s[0] and s[1] else 1)

    terms = {
        name: (times, share)
        for name, times, share in factorial.contributions({s: seconds(s) for s in factorial.settings()})
    }
    names = [f.name for f in factorial.FACTORS]
    assert next(iter(terms)) == names[0]
    # over both levels of the second factor the tenth counts half
    assert terms[names[0]][0] == pytest.approx(0.9**0.5 / 8)
    assert terms[names[1]][0] == pytest.approx(0.9**0.5)
    assert terms[names[2]][0] == pytest.approx(2)
    assert terms[names[3]][0] == pytest.approx(1)
    assert terms[f"{names[0]} and {names[1]}"][0] == pytest.approx(0.9**0.5)
    assert sum(share for _, share in terms.values()) == pytest.approx(1)


def test_no_difference_is_no_contribution():
    for _, times, share in factorial.contributions(dict.fromkeys(factorial.settings(), 5.0)):
        assert (times, share) == (pytest.approx(1), 0)


def test_every_combination_is_a_step_of_its_own(tmp_path):
    args = type("Args", (), {"read": False, "timeout": 1})()
    steps = [factorial.step(s, tmp_path, args) for s in factorial.settings()]
    assert len({s.name for s in steps}) == 16
    assert sum("noitree" in s.options for s in steps) == 8
    assert sum(any("diskorder" in part for part in s.command) for s in steps) == 8
    assert sum("inode_readahead_blks=1" == s.options.split(",")[-1] for s in steps) == 8


def test_the_fastest_is_first():
    result = {s: {"requests": 10, "seconds": 16.0 - number} for number, s in enumerate(factorial.settings())}
    lines = factorial.tables_of(result).splitlines()
    assert lines[2].split()[-1] == "1.00" and lines[17].split()[-1] == "16.00"
