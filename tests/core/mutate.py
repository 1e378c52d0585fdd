#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Break the core in many ways and see whether the suite notices.

usage: mutate.py CORE_DIRECTORY BUILD_DIRECTORY [part of a mutation's name ...]

Each mutation is one edit to a copy of the core.  The unit, fault and model
tests run on it, and, if these pass, the fuzzer for a while.  Ends with
"N killed, N survived"; status 1 if any survived or an edit no longer applies.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CORE = "itree_core.c"
MODIFY = "itree_modify.c"
BULK = "itree_bulk.c"

# (name, file, text, replacement); text must occur exactly once
MUTATIONS = [
    (
        "limit one too large",
        CORE,
        "return room / level_entry_size(level);",
        "return room / level_entry_size(level) + 1;",
    ),
    ("tail at the wrong place", CORE, "((char *)data + block_size) - 1;", "((char *)data + block_size) - 2;"),
    ("content hash weaker", CORE, "return key ^ (key >> 31);", "return key;"),
    (
        "failed dirty is not torn",
        CORE,
        "\tif (ret)\n\t\tt->torn = true;\n\treturn err ? err : ret;",
        "\treturn err ? err : ret;",
    ),
    ("earlier error forgotten", CORE, "return err ? err : ret;", "return ret;"),
    ("root allowed as child", CORE, "return lblk > ITREE_SEG_START &&", "return lblk >= ITREE_SEG_START &&"),
    ("child one behind the segment", CORE, "lblk - ITREE_SEG_START < blocks;", "lblk - ITREE_SEG_START <= blocks;"),
    ("blocks beyond max_blocks", CORE, "if (!blocks || blocks > t->max_blocks)", "if (!blocks)"),
    ("free list in root not checked", CORE, "if (free_count >= blocks ||", "if ("),
    (
        "key total not bounded",
        CORE,
        "if (keys > (u64)(blocks - free_count) *",
        "if (0 && keys > (u64)(blocks - free_count) *",
    ),
    ("root leaf total not checked", CORE, "if (!node_level(b) && keys != node_count(b))", "if (0)"),
    (
        "reserved bytes of the root: last one",
        CORE,
        "i < sizeof(info->r_reserved);",
        "i < sizeof(info->r_reserved) - 1;",
    ),
    ("order not checked", CORE, "if (key < last)", "if (0 && key < last)"),
    ("equal keys refused", CORE, "if (key < last)", "if (i && key <= last)"),
    ("first index key not checked", CORE, "if (node_level(b) && !i && key)", "if (0 && key)"),
    ("magic not checked", CORE, "if (le32_to_cpu(h->h_magic) != ITREE_MAGIC)", "if (0)"),
    ("version not checked", CORE, "if (h->h_version != ITREE_VERSION)", "if (0)"),
    ("level not bounded", CORE, "if (level >= ITREE_MAX_DEPTH)", "if (level > ITREE_MAX_DEPTH)"),
    ("limit not checked", CORE, "if (node_limit(b) != itree_limit(t->block_size, node_is_root(b), level))", "if (0)"),
    ("count not checked", CORE, "if (node_count(b) > node_limit(b))", "if (0)"),
    ("empty nodes allowed", CORE, "if (!node_count(b) && (level || !node_is_root(b)))", "if (0)"),
    ("checked block's head believed", CORE, "return check_or_put(t, b, check_head(t, b));", "return 0;"),
    ("checked never told", CORE, "if (!ret && t->ops->checked)", "if (0 && t->ops->checked)"),
    ("buf leaks when its checks fail", CORE, "\tif (err)\n\t\titree_put(t, b);\n\treturn err;", "\treturn err;"),
    ("free node's magic not checked", CORE, "if (le32_to_cpu(h->h_magic) != ITREE_FREE_MAGIC ||", "if ("),
    ("free node's next not checked", CORE, "(next && !lblk_in_segment(next, blocks))", "0"),
    ("search: lower bound for upper", CORE, "(k == key && side == ITREE_AFTER)", "(k == key)"),
    ("search: upper bound for lower", CORE, "(k == key && side == ITREE_AFTER)", "0"),
    ("child's level not checked", CORE, "if (node_level(&down->buf) != level - 1)", "if (0)"),
    ("lower bound not checked", CORE, "node_key(&down->buf, first) < down->lo", "0"),
    ("upper bound not checked", CORE, "node_key(&down->buf, count - 1) > down->hi", "0"),
    (
        "bounds of the first child are the widest",
        CORE,
        "node_key(&up->buf, up->pos) : up->lo;",
        "node_key(&up->buf, up->pos) : 0;",
    ),
    (
        "bounds of the last child are the widest",
        CORE,
        "node_key(&up->buf, up->pos + 1) : up->hi;",
        "node_key(&up->buf, up->pos + 1) : ~0ULL;",
    ),
    (
        "next leaf: up one level too few",
        CORE,
        "for (level = 1; level <= cur->level; level++)\n\t\tif (cur->step[level].pos + 1 <",
        "for (level = 1; level < cur->level; level++)\n\t\tif (cur->step[level].pos + 1 <",
    ),
    ("next leaf: buf leaks", CORE, "\t\titree_put(cur->t, &cur->step[level - 1].buf);\n", ""),
    (
        "seek stops at the end of a leaf",
        CORE,
        "if (!ret && cur->step[0].pos >= node_count(&cur->step[0].buf))",
        "if (0)",
    ),
    (
        "scan not bounded by the key total",
        CORE,
        "if (++cur->steps > le64_to_cpu(node_info(&t->root)->r_keys))",
        "if (0)",
    ),
    (
        "last of equal keys",
        CORE,
        "ret = itree_descend(t, ~0ULL, ITREE_AFTER, &cur);",
        "ret = itree_descend(t, ~0ULL, ITREE_FIRST, &cur);",
    ),
    (
        "key total not kept",
        MODIFY,
        "info->r_keys = cpu_to_le64(le64_to_cpu(info->r_keys) + keys);",
        "(void)keys; (void)info;",
    ),
    ("free list: chain lost", MODIFY, "node_head(b)->h_next = info->r_free_head;", ""),
    (
        "free list: not counted",
        MODIFY,
        "\tinfo->r_free_count = cpu_to_le32(le32_to_cpu(info->r_free_count) + 1);\n",
        "",
    ),
    (
        "grow: no access to the root",
        MODIFY,
        "\terr = t->ops->access(t, &t->root);\n\tif (err)\n\t\treturn err;\n\titree_buf_clear(&b);",
        "\titree_buf_clear(&b);",
    ),
    ("grow: beyond the segment", MODIFY, "if (blocks >= t->max_blocks)", "if (blocks > t->max_blocks)"),
    ("grow: high-water mark not moved", MODIFY, "\tinfo->r_blocks = cpu_to_le32(blocks + 1);\n", ""),
    (
        "grow: root not dirtied",
        MODIFY,
        "\terr = itree_node_dirty(t, &t->root, err);\n\titree_put(t, &b);",
        "\titree_put(t, &b);",
    ),
    ("reserve one too few", MODIFY, "return inserts * (level + 1);", "return inserts * level;"),
    ("reserve for many too few", MODIFY, "return inserts * (level + 2);", "return level + 2;"),
    (
        "insert: depth not bounded",
        MODIFY,
        "if (in->cur.level + 1 >= ITREE_MAX_DEPTH)",
        "if (in->cur.level >= ITREE_MAX_DEPTH)",
    ),
    (
        "insert: free list's length not checked",
        MODIFY,
        "if (!in->free_head != (le32_to_cpu(info->r_free_count) == need))",
        "if (0)",
    ),
    ("insert: loop in free list not seen", MODIFY, "if (in->fresh[i].lblk == in->free_head)", "if (0)"),
    (
        "insert: too few free nodes not seen",
        MODIFY,
        "if (le32_to_cpu(info->r_free_count) < need)\n\t\treturn -ENOSPC;",
        "",
    ),
    (
        "insert: no access to the top node",
        MODIFY,
        "i <= in->top && i < in->cur.level; i++)\n\t\terr = t->ops->access(t, &in->cur.step[i].buf);",
        "i < in->top && i < in->cur.level; i++)\n\t\terr = t->ops->access(t, &in->cur.step[i].buf);",
    ),
    (
        "insert: no access to fresh nodes",
        MODIFY,
        "for (i = 0; !err && i < in->nfresh; i++)",
        "for (i = 1; !err && i < in->nfresh; i++)",
    ),
    (
        "gap moves one entry too few",
        MODIFY,
        "(count - pos) * level_entry_size(level));\n\tnode_set_count(b, count + 1);",
        "(count - pos - (count > pos)) * level_entry_size(level));\n\tnode_set_count(b, count + 1);",
    ),
    (
        "right edge: leaf only",
        MODIFY,
        "static bool at_right_edge(const struct itree_cursor *cur)\n{\n\tu32 level;\n",
        "static bool at_right_edge(const struct itree_cursor *cur)\n{\n"
        "\tu32 level;\n\n\tif (cur->level)\n"
        "\t\treturn cur->step[0].pos >= node_count(&cur->step[0].buf);\n",
    ),
    ("append splits in half", MODIFY, "u32 half = append ? count - count / 32 : count / 2;", "u32 half = count / 2;"),
    (
        "append moves nothing along",
        MODIFY,
        "u32 half = append ? count - count / 32 : count / 2;",
        "u32 half = append ? count : count / 2;",
    ),
    (
        "split in thirds",
        MODIFY,
        "u32 half = append ? count - count / 32 : count / 2;",
        "u32 half = append ? count - count / 32 : count / 3;",
    ),
    ("split: separator of the left node", MODIFY, "sep = node_key(right, 0);", "sep = node_key(left, half - 1);"),
    (
        "split: first index key kept",
        MODIFY,
        "\tif (level)\n\t\tnode_set_key(right, 0, 0);\n\t*key = sep;",
        "\t*key = sep;",
    ),
    (
        "split: left node not dirtied",
        MODIFY,
        "err = itree_node_dirty(t, left, err);\n\treturn itree_node_dirty(t, right, err);",
        "return itree_node_dirty(t, right, err);",
    ),
    (
        "shared node: more than fit",
        MODIFY,
        "return node_level(b) == level &&\n\t       count <= itree_limit(t->block_size, node_is_root(b), level);",
        "(void)t;\n\t(void)count;\n\treturn node_level(b) == level;",
    ),
    ("verify: nodes in a row", BULK, "\t\t\trelax(t);\n", ""),
    ("verify: free nodes in a row", BULK, "\t\trelax(v->t);\n", ""),
    ("shared node: level not compared", MODIFY, "return node_level(b) == level &&\n\t       count", "return count"),
    ("shared node: position behind the end", MODIFY, "if (pos > count || !node_fits", "if (!node_fits"),
    ("shared node: removed from an empty one", MODIFY, "if (pos >= count || !node_fits", "if (!node_fits"),
    ("shared node: joined nodes do not fit", MODIFY, "!node_fits(t, left, level, nl + nr))", "0)"),
    ("shared node: right neighbour not checked", MODIFY, "if (!node_fits(t, right, level, nr) ||\n\t    ", "if ("),
    ("shared node: more splits than free nodes", MODIFY, "\t\tif (in->used >= in->nfresh) {", "\t\tif (0) {"),
    ("shared node: fewer splits than planned", MODIFY, "if (!err && in->used != in->nfresh)", "if (0)"),
    ("shared node: root moved without a node", MODIFY, "|| in->used >= in->nfresh ||", "||"),
    (
        "shared node: goes on splitting",
        MODIFY,
        "for (level = 0; !t->torn && level <= in->cur.level; level++)",
        "for (level = 0; level <= in->cur.level; level++)",
    ),
    (
        "shared node: root takes more than fit",
        MODIFY,
        "||\n\t    count > itree_limit(t->block_size, true, level))",
        ")",
    ),
    ("split not counted", MODIFY, "\tt->splits++;\n", ""),
    ("new child before the split one", MODIFY, "pos = level ? s->pos + 1 : s->pos;", "pos = s->pos;"),
    (
        "insert before equal keys",
        MODIFY,
        "ret = itree_descend(t, key, ITREE_AFTER, &in.cur);",
        "ret = itree_descend(t, key, ITREE_FIRST, &in.cur);",
    ),
    ("fresh nodes leak", MODIFY, "\twhile (in.nfresh)\n\t\titree_put(t, &in.fresh[--in.nfresh]);\n", ""),
    ("merge below a half", MODIFY, "return node_limit(b) / 4;", "return node_limit(b) / 2;"),
    ("merge never", MODIFY, "return node_limit(b) / 4;", "return 0;"),
    ("merge at exactly a quarter", MODIFY, "if (left >= merge_below(&s->buf))", "if (left > merge_below(&s->buf))"),
    ("merge into full nodes", MODIFY, "return limit - limit / 4;", "return limit;"),
    ("merge into too full nodes", MODIFY, "return limit - limit / 4;", "return 2 * limit;"),
    ("merge never to the left", MODIFY, "if (up->pos) {", "if (0) {"),
    ("merge never to the right", MODIFY, "if (up->pos + 1 < node_count(&up->buf)) {", "if (0) {"),
    (
        "neighbour leaks",
        MODIFY,
        "\t\titree_put(cur->t, &l->sibling);\n\t}\n\tif (up->pos + 1 <",
        "\t}\n\tif (up->pos + 1 <",
    ),
    (
        "one child under two entries not seen",
        MODIFY,
        "if (node_child(&side.step[level + 1].buf, pos) ==",
        "if (0 && node_child(&side.step[level + 1].buf, pos) ==",
    ),
    (
        "wrong entry of the parent goes",
        MODIFY,
        "l[1].pos = s[1].pos + (l->action == FROM_RIGHT);",
        "l[1].pos = s[1].pos;",
    ),
    (
        "root collapses onto too full a child",
        MODIFY,
        "if (count <= merge_most(itree_limit(t->block_size, true, top - 1)))",
        "if (count <= itree_limit(t->block_size, true, top - 1))",
    ),
    ("root never collapses", MODIFY, "if (count <= merge_most(itree_limit(t->block_size, true, top - 1)))", "if (0)"),
    (
        "root collapses without counting what comes in",
        MODIFY,
        "count = left + node_count(&l->sibling);",
        "count = left;",
    ),
    ("delete: no access to the neighbour", MODIFY, "if (!err && d->level[i].sibling.data)", "if (0)"),
    (
        "delete: no access to the child that stays",
        MODIFY,
        "if (!err && d->only)\n\t\terr = t->ops->access(t, d->only);",
        "",
    ),
    ("remove: first index key kept", MODIFY, "if (level && !pos && count > 1)", "if (0)"),
    ("join: separator lost", MODIFY, "\tif (level)\n\t\tnode_set_key(right, 0, sep);\n", "\t(void)sep;\n"),
    ("join: count wrong", MODIFY, "node_set_count(left, nl + nr);", "node_set_count(left, nl + nr - 1);"),
    (
        "merged node not freed",
        MODIFY,
        "node_key(up, s[1].pos));\n\t\tif (!err)\n\t\t\tfree_push(t, &s->buf);",
        "node_key(up, s[1].pos));",
    ),
    (
        "delete: neighbour not dirtied",
        MODIFY,
        "if (l->sibling.data)\n\t\terr = itree_node_dirty(t, &l->sibling, err);",
        "",
    ),
    ("delete: totals of no keys", MODIFY, "if (!ret && !node_info(&t->root)->r_keys)", "if (0)"),
    ("delete another key when it is not there", MODIFY, "(!ret && itree_cursor_key(&d.cur) != key)", "0"),
    ("bulk load: order not checked", BULK, "if (!ret && key < last)", "if (0)"),
    ("bulk load: equal keys refused", BULK, "if (!ret && key < last)", "if (!ret && done && key <= last)"),
    (
        "bulk load: into a tree in use",
        BULK,
        "if (node_level(&t->root) || node_count(&t->root) ||\n"
        "\t    le32_to_cpu(info->r_blocks) != 1)\n\t\treturn -EINVAL;",
        "",
    ),
    (
        "bulk load: nodes not full",
        BULK,
        "node_count(node) >= node_limit(node);",
        "node_count(node) + 1 >= node_limit(node);",
    ),
    ("bulk load: failure not torn", BULK, "\tif (ret)\n\t\tt->torn = true;\n\treturn ret;", "\treturn ret;"),
    ("bulk load: block count rounds down", BULK, "return n / d + (n % d != 0);", "return n / d;"),
    ("bulk load: beyond the segment", BULK, "if (blocks >= b->t->max_blocks)", "if (0)"),
    (
        "bulk load: first index key kept",
        BULK,
        "level && !pos ? 0 : key, child);",
        "key, child);",
    ),
    (
        "bulk load: no access to the root",
        BULK,
        "\tret = t->ops->access(t, &t->root);\n\tif (ret)\n\t\treturn ret;\n",
        "",
    ),
    ("verify: block twice not seen", BULK, "if (!see(v, s->buf.lblk))", "if (0)"),
    ("verify: loop in free list not seen", BULK, "if (!see(v, lblk)) {", "if (see(v, lblk), 0) {"),
    ("verify: free list's length not checked", BULK, "if (lblk || i < info->free_count)", "if (0)"),
    ("verify: key total not checked", BULK, "if (!err && report->keys != info.keys)", "if (0)"),
    ("verify: lost blocks not seen", BULK, "if (!err && report->nodes + report->free_count != info.blocks)", "if (0)"),
    (
        "verify: free list not walked",
        BULK,
        "if (!err)\n\t\terr = verify_free(&v, &info);",
        "report->free_count = info.free_count;",
    ),
    (
        "verify: content hash without the last key",
        BULK,
        "\t\tv->r->hash += itree_hash_key(key);\n",
        "\t\tif (i + 1 < count)\n\t\t\tv->r->hash += itree_hash_key(key);\n",
    ),
    ("verify: bit map leaks", BULK, "\tt->ops->free(t, v.seen);\n", ""),
    ("verify: bit map too small", BULK, "info.blocks / 8 + 1", "info.blocks / 8"),
]

# Not noticed, and why that is right.
EQUIVALENT = {
    "verify: loop in free list not seen": "then the list is longer than counted",
}

SAN = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FUZZ = [*SAN, "-fsanitize=fuzzer-no-link"]
FLAVOURS = {"plain": ("gcc", []), "san": ("gcc", SAN), "fuzz": ("clang", FUZZ)}
FLAGS = ["-std=gnu11", "-O1", "-g", "-w"]
FILES = [CORE, MODIFY, BULK]
HEADERS = ["itree_core.h", "itree_format.h", "itree_node.h"]
LIB = ["mem.c", "tree.c", "test.c"]
# The quick ones first: flavour, program, value of ITREE_ONLY.
STAGES = [
    ("plain", "test_fault", ""),
    ("plain", "test_unit", ""),
    ("san", "test_unit", ""),
    ("san", "test_fault", ""),
    ("plain", "test_model", "1024"),
    ("fuzz", "fuzz_node", ""),
]
JOBS = 2


def run(cmd, **kw):
    return subprocess.run([str(c) for c in cmd], check=True, **kw)


def obj(name):
    return name.replace(".c", ".o")


def build(flavour, source, target, include):
    cc, flags = FLAVOURS[flavour]
    inc = [f"-I{i}" for i in include]
    run([cc, *FLAGS, *flags, *inc, "-c", "-o", target, source])


def failed_line(text):
    """What the suite said first about the failure."""
    lines = text.splitlines()
    for line in lines:
        if line.startswith("# ") and ".c:" in line:
            return line[2:]
    for line in lines:
        if "ERROR: " in line or "runtime error" in line or "killed by" in line:
            return line.strip()[:100]
    return "failed"


def attempt(cmd, env):
    """Returns why the command failed, or None."""
    try:
        done = subprocess.run(
            [str(c) for c in cmd], env=env, timeout=600, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode:
        return failed_line(done.stdout.decode(errors="replace"))
    return None


class Suite:
    """The unchanged core and the tests, built once."""

    def __init__(self, core, work):
        self.here = Path(__file__).resolve().parent
        self.work = work
        self.src = work / "src"
        self.src.mkdir(parents=True, exist_ok=True)
        self.include = [self.src, self.here]
        for name in FILES + HEADERS:
            shutil.copy(core / name, self.src / name)
        shutil.copy(self.here / "itree_port.h", self.src / "itree_port.h")
        self.text = {f: (self.src / f).read_text() for f in FILES}
        for flavour in FLAVOURS:
            (work / flavour).mkdir(exist_ok=True)
            programs = {p + ".c" for f, p, _ in STAGES if f == flavour}
            for name in [*LIB, *sorted(programs)]:
                build(flavour, self.here / name, work / flavour / obj(name), self.include)
            for name in FILES:
                build(flavour, self.src / name, work / flavour / obj(name), self.include)
        build("plain", self.here / "make_corpus.c", work / "plain" / "make_corpus.o", self.include)
        self.corpus = work / "corpus"
        self.corpus.mkdir(exist_ok=True)
        self.link("plain", "make_corpus", work / "make_corpus")
        run([work / "make_corpus", self.corpus])

    def link(self, flavour, program, target, changed=None, instead=None):
        cc, flags = FLAVOURS[flavour]
        flags = [*SAN, "-fsanitize=fuzzer"] if flavour == "fuzz" else flags
        objects = [self.work / flavour / obj(n) for n in [program + ".c", *LIB, *FILES] if n != changed]
        run([cc, *flags, "-o", target, *objects, *([instead] if instead else [])])

    def mutant(self, number, file, old, new):
        """Returns what noticed the mutation, or None."""
        own = self.work / f"m{number}"
        own.mkdir(exist_ok=True)
        source = own / file
        source.write_text(self.text[file].replace(old, new))
        try:
            for flavour, program, only in STAGES:
                # quote-includes look beside the source first: it has none
                build(flavour, source, own / "changed.o", self.include)
                self.link(flavour, program, own / program, file, own / "changed.o")
                env = dict(os.environ, ITREE_STOP="1", ITREE_TIME_LIMIT="60", ITREE_ONLY=only)
                args = []
                if flavour == "fuzz":
                    args = ["-runs=8000", "-seed=1", "-max_len=24000", "-timeout=20"]
                    args += [f"-artifact_prefix={own}/", self.corpus]
                why = attempt([own / program, *args], env)
                if why:
                    return f"{program}: {why}"
            return None
        finally:
            shutil.rmtree(own)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    only = sys.argv[3:] or [""]
    suite = Suite(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
    killed, survived, stale = 0, 0, 0

    def judge(number):
        name, file, old, new = MUTATIONS[number]
        if suite.text[file].count(old) != 1:
            return name, None
        return name, suite.mutant(number, file, old, new) or ""

    numbers = [n for n, m in enumerate(MUTATIONS) if any(o in m[0] for o in only)]
    with ThreadPoolExecutor(JOBS) as pool:
        for name, why in pool.map(judge, numbers):
            if why is None:
                stale += 1
                print(f"STALE     {name}: the text it changes is not there once", flush=True)
            elif why:
                killed += 1
                print(f"killed    {name}: {why}", flush=True)
            elif name in EQUIVALENT:
                print(f"the same  {name}: {EQUIVALENT[name]}", flush=True)
            else:
                survived += 1
                print(f"SURVIVED  {name}", flush=True)
    print(f"{killed} killed, {survived} survived, {stale} stale")
    return 1 if survived or stale else 0


if __name__ == "__main__":
    sys.exit(main())
