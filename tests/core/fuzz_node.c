// SPDX-License-Identifier: GPL-2.0-only
/*
 * libFuzzer target: the bytes of a segment's blocks, and what to do with them.
 *
 * Input: one byte of flags, one of block size, one with the number of
 * operations, these (two bytes each: OP_* and an argument), then the blocks: as they are on disk, or
 * in short (F_SHORT), where a node is a few bytes and most of its head is
 * right, so that mutations reach what lies behind the first checks.
 *
 * Nothing may crash, hang, be written outside, leak, or be changed by a call
 * that fails.  Verify must say what the second opinion in tree.c says, and a
 * tree that is valid must stay so.
 */
#include "test.h"
#include "tree.h"

#define F_SHORT 1 /* blocks in short */
#define F_KEEP_CSUM 2 /* else checksums are put right */
#define F_NO_TOTALS 4 /* short: root's totals are not put right */
#define F_ALWAYS_CHECK 8 /* no block ever counts as checked */
#define F_MANY 16 /* short: entries repeat */

#define OP_KIND 7
#define OP_SHARED 0x20 /* a node changes during it: see shared() */
#define OP_PRESENT 0x40 /* with a key that is there */
#define OP_COLD 0x80 /* all blocks are checked again */

#define MAX_BLOCKS 40

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tree x;

struct input {
	const u8 *p;
	size_t n;
};

static u8 byte(struct input *in)
{
	if (!in->n)
		return 0;
	in->n--;
	return *in->p++;
}

static void put16(u8 *p, u32 v)
{
	p[0] = (u8)v;
	p[1] = (u8)(v >> 8);
}

static void put32(u8 *p, u32 v)
{
	put16(p, v);
	put16(p + 2, v >> 16);
}

static void raw_blocks(struct input *in, u32 bs, u8 flags)
{
	u32 i;
	u8 *p;

	for (i = 0; i < MAX_BLOCKS && in->n; i++) {
		size_t n = in->n < bs ? in->n : bs;

		p = mem_map(&x.d, ITREE_SEG_START + i, 0);
		memcpy(p, in->p, n);
		in->p += n;
		in->n -= n;
		if (flags & F_KEEP_CSUM) {
			memcpy(x.d.block[i].shadow, p, bs);
			x.d.block[i].verified = false;
		} else {
			mem_poke_done(&x.d, ITREE_SEG_START + i);
		}
	}
}

/*
 * A node in short: a byte with level (3 bits), free (1 bit), equal keys (1
 * bit); a count; for each entry a step to the next key, and for index nodes
 * a child.
 */
static void short_blocks(struct input *in, u32 bs, u8 flags)
{
	u32 i, j, keys = 0, free_head = 0, free_count = 0;
	u8 *p, *e;

	for (i = 0; i < MAX_BLOCKS && in->n; i++) {
		u8 kind = byte(in);
		u32 level = kind & 7, count = byte(in);
		u32 size = level ? 12 : 8;
		u32 limit = (bs - 24 - (i ? 0 : 32)) / size;
		u64 key = ITREE_KEY(byte(in), 0);
		u8 step = 0;

		p = mem_map(&x.d, ITREE_SEG_START + i, 0);
		p[4] = 1;
		if ((kind & 8) && i) {
			put32(p, ITREE_FREE_MAGIC);
			put32(p + 12, flags & F_NO_TOTALS && count
					      ? ITREE_SEG_START + count
					      : free_head);
			free_head = ITREE_SEG_START + i;
			free_count++;
			mem_poke_done(&x.d, ITREE_SEG_START + i);
			continue;
		}
		if (count > limit)
			count = limit;
		if (kind & 16)
			count = limit;
		put32(p, ITREE_MAGIC);
		p[5] = (u8)level;
		put16(p + 6, count);
		put16(p + 8, limit);
		e = p + (i ? 16 : 48);
		for (j = 0; j < count; j++, e += size) {
			/* many entries from few bytes */
			if (!(flags & F_MANY) || j % 16 == 0)
				step = byte(in);
			key += step == 0xff  ? -5ULL
			       : step & 0x80 ? (u64)(step & 0x7f) << 32
					     : step;
			put32(e, level && !j ? 0 : ITREE_KEY_INO(key));
			put32(e + 4, level && !j ? 0 : ITREE_KEY_HASH(key));
			if (level)
				put32(e + 8, ITREE_SEG_START + byte(in));
		}
		if (!level)
			keys += count;
		mem_poke_done(&x.d, ITREE_SEG_START + i);
	}
	p = mem_poke(&x.d, ITREE_SEG_START);
	if (!p)
		return;
	put32(p + 16, keys);
	put32(p + 24, i);
	put32(p + 28, free_head);
	put32(p + 32, free_count);
	if (flags & F_NO_TOTALS) {
		put32(p + 16, keys + byte(in) - 128);
		put32(p + 32, byte(in));
	}
	mem_poke_done(&x.d, ITREE_SEG_START);
}

static bool is_valid(void)
{
	struct oracle o;
	bool ok = !oracle_check(&x.d, x.t.max_blocks, &o);

	oracle_free(&o);
	return ok;
}

static u64 reads;

/* No call may read more blocks than its path can have. */
static void bounded(u64 most)
{
	CHECKF(x.d.calls[MEM_READ] - reads <= most, "%llu reads",
	       x.d.calls[MEM_READ] - reads);
	reads = x.d.calls[MEM_READ];
}

static void scan(u64 from)
{
	struct itree_cursor cur;
	struct itree_info info;
	u64 n = 0, last = 0;
	int ret;

	itree_get_info(&x.t, &info);
	for (ret = itree_seek(&x.t, from, &cur); !ret; ret = itree_next(&cur)) {
		CHECK(n++ <= info.keys);
		last = itree_cursor_key(&cur);
		CHECK(last >= from || n > 1);
	}
	itree_cursor_release(&cur);
	CHECK(ret == ITREE_END || ret < 0);
	reads = x.d.calls[MEM_READ];
}

/*
 * Two directories of a hostile image share a node.  The other one changes it
 * between the plan and the change, which may tear the tree or break it.
 */
static void shared(u8 op, u8 arg)
{
	u64 key = ITREE_KEY(arg >> 1, arg & 1 ? arg : 0);
	struct itree_cursor cur;
	int ret;

	if (!itree_seek(&x.t, key, &cur) && op & OP_PRESENT)
		key = itree_cursor_key(&cur);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	x.d.share_at = x.d.calls[MEM_ACCESS] + 1 + (op >> 3 & 3);
	x.d.share_kind = arg % MEM_SHARES;
	ret = op & 1 ? itree_insert(&x.t, key) : itree_delete(&x.t, key);
	x.d.share_at = 0;
	CHECK(!x.t.torn || ret < 0);
	CHECK(ret != -ITREE_CORRUPT || x.t.why);
	mem_end_torn(&x.d, 1);
	reads = x.d.calls[MEM_READ];
}

static void operate(u8 op, u8 arg)
{
	struct itree_cursor cur;
	struct itree_report r;
	struct itree_info info;
	struct mem_snap s;
	u64 key = ITREE_KEY(arg >> 1, arg & 1 ? arg : 0);
	u32 blocks = tree_blocks(&x);
	bool valid = is_valid(), change = false;
	int ret = 0;

	itree_get_info(&x.t, &info);
	if (op & OP_COLD)
		mem_drop_caches(&x.d);
	if (op & OP_PRESENT) {
		x.d.no_write = true;
		if (!itree_seek(&x.t, key, &cur))
			key = itree_cursor_key(&cur);
		itree_cursor_release(&cur);
		x.d.no_write = false;
		tree_end_op(&x);
		bounded(2 * ITREE_MAX_DEPTH);
	}
	mem_snap(&x.d, &s);
	switch (op & OP_KIND) {
	case 0:
		x.d.no_write = true;
		ret = itree_verify(&x.t, &r);
		CHECK(!ret == valid);
		CHECK(ret <= 0);
		bounded(info.blocks + 1);
		break;
	case 1:
		x.d.no_write = true;
		scan(key);
		break;
	case 2:
		x.d.no_write = true;
		ret = itree_last(&x.t, &key);
		CHECK(!valid || ret == (info.keys ? 0 : ITREE_END));
		bounded(ITREE_MAX_DEPTH);
		ret = 0;
		break;
	case 3:
		ret = itree_reserve(&x.t, arg & 3);
		change = true;
		bounded(0);
		CHECK(!valid || !ret || ret == -ENOSPC);
		break;
	case 4:
		ret = itree_reserve(&x.t, 1);
		tree_end_op(&x);
		mem_snap_free(&s);
		mem_snap(&x.d, &s);
		blocks = tree_blocks(&x);
		x.d.no_grow = true;
		/* fall through */
	case 5:
		ret = itree_insert(&x.t, key);
		change = true;
		bounded(2 * ITREE_MAX_DEPTH);
		CHECK(!valid || !ret || ret == -ENOSPC || ret == -EOVERFLOW);
		break;
	default:
		x.d.no_grow = true;
		ret = itree_delete(&x.t, key);
		change = true;
		bounded(5 * ITREE_MAX_DEPTH);
		CHECK(!valid || !ret || ret == -ENOENT);
		break;
	}
	x.d.no_write = false;
	x.d.no_grow = false;
	CHECK(!x.t.torn);
	tree_end_op(&x);
	if (ret < 0 && (op & OP_KIND) != 3)
		CHECK_EQ(mem_compare(&x.d, &s, blocks), blocks);
	if (ret == -ITREE_CORRUPT)
		CHECK(x.t.why);
	mem_snap_free(&s);
	if (valid && change) {
		struct itree_info now;

		CHECK(is_valid());
		itree_get_info(&x.t, &now);
		if (!ret && (op & OP_KIND) >= 4)
			CHECK_EQ(now.keys - info.keys,
				 (op & OP_KIND) < 6 ? 1 : -1);
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	test_abort = true;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { .p = data, .n = size };
	u8 flags = byte(&in), ops[128], nops;
	u32 bs = ITREE_MIN_BLOCK << (byte(&in) & 1), i;

	nops = byte(&in) & 63;
	for (i = 0; i < 2U * nops; i++)
		ops[i] = byte(&in);
	memset(&x, 0, sizeof(x));
	mem_init(&x.d, bs);
	reads = 0;
	x.d.always_check = flags & F_ALWAYS_CHECK;
	if (flags & F_SHORT)
		short_blocks(&in, bs, flags);
	else
		raw_blocks(&in, bs, flags);
	if (!itree_open(&x.t, &mem_ops, &x.d, bs, MAX_BLOCKS + 8)) {
		x.open = true;
		tree_end_op(&x);
		/* a hole is an error of another kind */
		for (i = 0; i < tree_blocks(&x); i++)
			if (!mem_peek(&x.d, ITREE_SEG_START + i))
				mem_map(&x.d, ITREE_SEG_START + i, 0);
		reads = x.d.calls[MEM_READ];
		if (!(flags & F_KEEP_CSUM) || flags & F_SHORT)
			for (i = 0; i < nops && !x.t.torn; i++) {
				if (ops[2 * i] & OP_SHARED)
					shared(ops[2 * i], ops[2 * i + 1]);
				else
					operate(ops[2 * i], ops[2 * i + 1]);
			}
		else
			scan(0);
	}
	tree_end_op(&x);
	tree_close(&x);
	return 0;
}
