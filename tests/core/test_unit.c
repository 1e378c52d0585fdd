// SPDX-License-Identifier: GPL-2.0-only
/* Each function of the core, and each thing it must not believe. */
#include "test.h"
#include "tree.h"

#define LBLK(i) (ITREE_SEG_START + (i))

static const u32 block_sizes[] = {
	1024, 2048, 4096, 8192, 16384, 32768, 65536
};

static struct tree x;

static u64 shuffled(u64 i)
{
	struct rng rng = { i };

	return rng_next(&rng) & ~3ULL;
}

/* --- the simple functions --- */

static void limits(void *arg)
{
	static const struct {
		u32 block_size, leaf, root_leaf, index, root_index;
	} want[] = {
		{ 1024, 125, 121, 83, 80 },
		{ 4096, 509, 505, 339, 336 },
		{ 65536, 8189, 8185, 5459, 5456 },
	};
	u32 i, level;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(want); i++) {
		u32 bs = want[i].block_size;

		CHECK_EQ(itree_limit(bs, false, 0), want[i].leaf);
		CHECK_EQ(itree_limit(bs, true, 0), want[i].root_leaf);
		for (level = 1; level < ITREE_MAX_DEPTH; level++) {
			CHECK_EQ(itree_limit(bs, false, level), want[i].index);
			CHECK_EQ(itree_limit(bs, true, level),
				 want[i].root_index);
		}
	}
	for (i = 0; i < ARRAY_SIZE(block_sizes); i++) {
		u32 bs = block_sizes[i];
		u8 *p = xcalloc(1, bs);

		CHECK((u8 *)itree_tail(p, bs) == p + bs - 8);
		free(p);
		for (level = 0; level < 2; level++) {
			u32 n = itree_limit(bs, true, level);
			u32 size = level ? 12 : 8;

			CHECK(16 + 32 + n * size + 8 <= bs);
			CHECK(16 + 32 + (n + 1) * size + 8 > bs);
			n = itree_limit(bs, false, level);
			CHECK(16 + n * size + 8 <= bs);
			CHECK(16 + (n + 1) * size + 8 > bs);
			CHECK(n <= 0xffff);
		}
	}
}

static void hash_key(void *arg)
{
	u32 bit, changed = 0;

	(void)arg;
	/* splitmix64 seeded with 0: its published first outputs */
	CHECK(itree_hash_key(0) == 0xe220a8397b1dcdafULL);
	CHECK(itree_hash_key(0x9e3779b97f4a7c15ULL) == 0x6e789e6aa1b965f4ULL);
	for (bit = 0; bit < 64; bit++)
		changed += __builtin_popcountll(
			itree_hash_key(77) ^ itree_hash_key(77 ^ 1ULL << bit));
	CHECK(changed > 64 * 28 && changed < 64 * 36);
}

static void format_open_close(void *arg)
{
	struct itree_info info;
	u32 i;
	const u8 *p;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(block_sizes); i++) {
		u32 bs = block_sizes[i], j;

		memset(&x, 0, sizeof(x));
		mem_init(&x.d, bs);
		mem_map(&x.d, LBLK(0), 0x5a); /* what is there is lost */
		CHECK_EQ(itree_format(&x.t, &mem_ops, &x.d, bs, 77, 5), 0);
		CHECK(x.t.priv == &x.d);
		CHECK_EQ(x.t.block_size, bs);
		CHECK_EQ(x.t.max_blocks, 77);
		CHECK(!x.t.torn && !x.t.why && !x.t.splits && !x.t.merges);
		x.open = true;
		tree_end_op(&x);
		p = mem_peek(&x.d, LBLK(0));
		CHECK(!memcmp(p, "ITRE\1\0\0\0", 8));
		CHECK_EQ(p[8] | p[9] << 8, (bs - 56) / 8);
		CHECK_EQ(p[24], 1);
		CHECK_EQ(p[36], 5);
		for (j = 0; j < bs - 4; j++)
			CHECK(!p[j] || j < 10 || j == 24 || j == 36);
		tree_check(&x);
		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);

		CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, bs, 78), 0);
		x.open = true;
		tree_end_op(&x);
		itree_get_info(&x.t, &info);
		CHECK_EQ(info.keys, 0);
		CHECK_EQ(info.blocks, 1);
		CHECK_EQ(info.free_count, 0);
		CHECK_EQ(info.free_head, 0);
		CHECK_EQ(info.depth, 1);
		CHECK_EQ(info.hash_version, 5);
		tree_check(&x);
		tree_close(&x);
	}
}

static void open_refuses(void *arg)
{
	static const u32 bad[] = { 0,	 1,	512,	1023,	    1536,
				   3000, 65535, 131072, 0x80000000U };
	u32 i;

	(void)arg;
	memset(&x, 0, sizeof(x));
	mem_init(&x.d, 1024);
	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, bad[i], ROOMY),
			 -EINVAL);
		CHECK_EQ(itree_format(&x.t, &mem_ops, &x.d, bad[i], ROOMY, 1),
			 -EINVAL);
	}
	CHECK_EQ(x.d.calls[MEM_READ] + x.d.calls[MEM_GROW], 0);

	/* no root; a wrong checksum; ours, but empty */
	CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, ROOMY), -ENXIO);
	CHECK(!x.t.root.data);
	mem_map(&x.d, LBLK(0), 0);
	CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, ROOMY), -ITREE_CORRUPT);
	CHECK(!x.t.root.data && x.t.why);
	CHECK_EQ(x.t.why_lblk, LBLK(0));
	mem_end_op(&x.d, 0, 0);
	mem_poke(&x.d, LBLK(0))[100] ^= 1;
	CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, ROOMY), -EBADMSG);
	CHECK(!x.t.root.data);
	mem_poke_done(&x.d, LBLK(0));

	/* a directory that owns no block has no tree, whatever it says */
	CHECK_EQ(itree_format(&x.t, &mem_ops, &x.d, 1024, 1, 1), 0);
	itree_close(&x.t);
	mem_end_op(&x.d, 0, 1);
	CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, 0), -ITREE_CORRUPT);
	mem_end_op(&x.d, 0, 1);
	CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, ~0U), 0);
	CHECK(x.t.max_blocks <= ITREE_SEG_MAX);
	itree_close(&x.t);
	itree_close(&x.t); /* harmless */
	mem_end_op(&x.d, 0, 1);
	tree_close(&x);
}

static void empty_and_one(void *arg)
{
	static const u64 keys[] = { 0, 1, ITREE_KEY(12, 34), ~0ULL - 1, ~0ULL };
	struct itree_cursor cur;
	u64 key = 5;
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	CHECK_EQ(itree_seek(&x.t, 0, &cur), ITREE_END);
	itree_cursor_release(&cur);
	CHECK_EQ(itree_seek(&x.t, ~0ULL, &cur), ITREE_END);
	itree_cursor_release(&cur);
	CHECK_EQ(itree_last(&x.t, &key), ITREE_END);
	CHECK_EQ(itree_delete(&x.t, 0), -ENOENT);
	tree_end_op(&x);
	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		key = keys[i];
		tree_insert(&x, key);
		tree_check(&x);
		CHECK_EQ(itree_seek(&x.t, 0, &cur), 0);
		CHECK(itree_cursor_key(&cur) == key);
		CHECK_EQ(itree_next(&cur), ITREE_END);
		itree_cursor_release(&cur);
		CHECK_EQ(itree_seek(&x.t, key, &cur), 0);
		itree_cursor_release(&cur);
		if (key != ~0ULL) {
			CHECK_EQ(itree_seek(&x.t, key + 1, &cur), ITREE_END);
			itree_cursor_release(&cur);
			tree_delete(&x, key + 1);
		}
		if (key)
			tree_delete(&x, key - 1);
		tree_delete(&x, key);
		tree_check(&x);
	}
	CHECK_EQ(tree_blocks(&x), 2);
	tree_close(&x);
}

static void seek_many(void *arg)
{
	struct itree_cursor a, b;
	u32 i, n;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 3000; i++)
		tree_insert(&x, shuffled(i));
	tree_check(&x);
	for (i = 0; i < x.m.n; i++) {
		tree_check_seek(&x, x.m.key[i]);
		tree_check_seek(&x, x.m.key[i] + 1);
		tree_check_seek(&x, x.m.key[i] - 1);
	}
	tree_check_seek(&x, 0);
	tree_check_seek(&x, ~0ULL);

	/* cursors do not disturb each other */
	CHECK_EQ(itree_seek(&x.t, 0, &a), 0);
	for (i = 0; i < 1000; i += 50) {
		CHECK_EQ(itree_seek(&x.t, x.m.key[i + 1000], &b), 0);
		for (n = 0; n < 50; n++) {
			CHECK(itree_cursor_key(&a) == x.m.key[i + n]);
			CHECK(itree_cursor_key(&b) == x.m.key[i + n + 1000]);
			CHECK_EQ(itree_next(&a), 0);
			CHECK_EQ(itree_next(&b), 0);
		}
		itree_cursor_release(&b);
	}
	itree_cursor_release(&a);
	tree_end_op(&x);
	tree_close(&x);
}

/* The core checks a block once while it stays in memory, not once a read. */
static void checked_once(void *arg)
{
	struct itree_report r;
	struct itree_cursor cur;
	const u32 victim = 3;
	u32 i;
	u8 *p;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 2000; i++)
		tree_insert(&x, ITREE_KEY(i + 1, 0));
	mem_drop_caches(&x.d);
	CHECK_EQ(itree_verify(&x.t, &r), 0);
	for (i = 0; i < x.d.nblocks && x.d.block[i].data; i++)
		CHECKF(x.d.block[i].verified ||
			       mem_peek(&x.d, LBLK(i))[3] == 'F' || !i,
		       "block %u", i);
	tree_end_op(&x);

	/* Order broken behind its back: not looked at until read anew. */
	p = mem_poke(&x.d, LBLK(victim));
	CHECK_EQ(p[5], 0);
	memset(p + 16 + 8 * 50, 0xff, 8);
	mem_poke_done(&x.d, LBLK(victim));
	x.d.block[victim].verified = true;
	CHECK_EQ(itree_seek(&x.t, 0, &cur), 0);
	itree_cursor_release(&cur);
	x.d.block[victim].verified = false;
	CHECK_EQ(itree_verify(&x.t, &r), -ITREE_CORRUPT);
	CHECK_EQ(x.t.why_lblk, LBLK(victim));
	tree_end_op(&x);
	tree_close(&x);
}

static void without_checked_op(void *arg)
{
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	x.t.ops = &mem_ops_plain;
	for (i = 0; i < 2000; i++)
		tree_insert(&x, shuffled(i));
	for (i = 0; i < 1500; i++)
		tree_delete(&x, shuffled(i));
	tree_check(&x);
	tree_close(&x);
}

/* --- insert and delete --- */

static double fill(void)
{
	struct itree_report r;

	CHECK_EQ(itree_verify(&x.t, &r), 0);
	tree_end_op(&x);
	return (double)r.keys / (double)r.leaf_slots;
}

static void append_fills(void *arg)
{
	u32 i, n;
	double f;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(block_sizes); i++) {
		u32 bs = block_sizes[i];

		tree_format(&x, bs, ROOMY);
		for (n = 0; n < 40000; n++)
			tree_insert(&x, ITREE_KEY(n + 12, n * 2654435762U));
		f = fill();
		/* the last leaf is on its way */
		CHECKF(f > 0.95 || bs > 8192, "fill %.3f at %u", f, bs);
		/* next to no block more than a packed tree needs */
		CHECKF(tree_blocks(&x) <= itree_bulk_blocks(bs, n) * 1.05 + 5,
		       "%u blocks at %u", tree_blocks(&x), bs);
		tree_check(&x);
		tree_close(&x);
	}
	/* names of few files: equal keys are append, too */
	tree_format(&x, 1024, ROOMY);
	for (n = 0; n < 10000; n++)
		tree_insert(&x, ITREE_KEY(n / 500 + 12, 2));
	f = fill();
	CHECKF(f > 0.95, "fill %.3f", f);
	tree_close(&x);
}

/* Other tasks can run before each node that verify reads. */
static void verify_relaxes(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 3,
			   .path = { 0, 40, 10 },
			   .spare = 30 };
	struct itree_report r;

	(void)arg;
	tree_craft(&x, &c, NULL);
	x.d.relaxed = 0;
	CHECK_EQ(itree_verify(&x.t, &r), 0);
	CHECK(r.nodes > 40 && r.free_count == 30);
	CHECK_EQ(x.d.relaxed, r.nodes - 1 + r.free_count);
	tree_end_op(&x);
	tree_close(&x);
}

static void random_fills(void *arg)
{
	u32 n;
	double f;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (n = 0; n < 30000; n++)
		tree_insert(&x, shuffled(n));
	f = fill();
	CHECKF(f > 0.6 && f < 0.8, "fill %.3f", f);
	tree_check(&x);
	tree_close(&x);

	/* descending: halves */
	tree_format(&x, 1024, ROOMY);
	for (n = 30000; n; n--)
		tree_insert(&x, ITREE_KEY(n, 0));
	f = fill();
	CHECKF(f > 0.45 && f < 0.55, "fill %.3f", f);
	tree_check(&x);
	tree_close(&x);
}

/* A middle split leaves both halves alike. */
static void split_in_half(void *arg)
{
	static const enum craft_side sides[] = { CRAFT_FIRST, CRAFT_MIDDLE };
	u32 i, count, level;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(sides); i++) {
		for (level = 2; level <= 4; level++) {
			struct craft c = { .block_size = 1024,
					   .depth = level,
					   .side = sides[i] };
			size_t at;
			const u8 *p;
			u32 b, small = 0;

			c.path[level - 1] = 10; /* root has room */
			at = tree_craft(&x, &c, &count);
			CHECK_EQ(count, 125);
			tree_insert(&x, x.m.key[at + count / 2] + 1);
			CHECK_EQ(x.t.splits, level - 1);
			/* crafted off-path nodes have 1 or limit entries */
			for (b = 1; b < tree_blocks(&x); b++) {
				p = mem_peek(&x.d, LBLK(b));
				if (p[3] == 'F')
					continue;
				if (p[6] > 1 && p[6] < p[8]) {
					small++;
					CHECK(p[6] >= p[8] / 2 &&
					      p[6] <= p[8] / 2 + 2);
				}
			}
			CHECK_EQ(small, 2 * (level - 1));
			tree_check(&x);
			tree_close(&x);
		}
	}
}

/* Returns the key count of the leaf with the model's key number @at. */
static u32 leaf_count(size_t at)
{
	struct itree_cursor cur;
	u32 count;

	CHECK_EQ(itree_seek(&x.t, x.m.key[at], &cur), 0);
	count = le16_to_cpu(
		((struct itree_head *)cur.step[0].buf.data)->h_count);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	return count;
}

/* A key behind the last of a full leaf that is not the last leaf. */
static void no_append_in_the_middle(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 2,
			   .side = CRAFT_MIDDLE,
			   .path = { 0, 10 },
			   .near = { 60 } };
	u32 count;
	size_t at;

	(void)arg;
	at = tree_craft(&x, &c, &count);
	tree_insert(&x, x.m.key[at + count - 1] + 1);
	CHECK_EQ(x.t.splits, 1);
	CHECK(leaf_count(at) >= 62 && leaf_count(at) <= 64);
	tree_check(&x);
	tree_close(&x);
}

static void merge_bounds(void *arg)
{
	const u32 limit = 125;
	struct craft c = { .block_size = 1024,
			   .depth = 2,
			   .path = { limit, 10 },
			   .near = { 40 } };
	u32 side, count, n;
	size_t at;

	(void)arg;
	/* No merge while a quarter is left, one merge right after. */
	for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
		c.side = side;
		at = tree_craft(&x, &c, &count);
		for (n = limit; n > limit / 4; n--) {
			tree_delete(&x, x.m.key[at + n / 2]);
			CHECK_EQ(x.t.merges, 0);
		}
		CHECK_EQ(leaf_count(at), limit / 4);
		tree_delete(&x, x.m.key[at]);
		CHECK_EQ(x.t.merges, 1);
		CHECK_EQ(leaf_count(at), 40 + limit / 4 - 1);
		tree_check(&x);
		tree_close(&x);
	}

	/* Neighbours that would not stay below three quarters are let be. */
	c.near[0] = limit - limit / 4 - 5;
	for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
		c.side = side;
		at = tree_craft(&x, &c, &count);
		for (n = limit; n > 5; n--) {
			tree_delete(&x, x.m.key[at]);
			CHECK_EQ(x.t.merges, 0);
		}
		CHECK_EQ(leaf_count(at), 5);
		tree_delete(&x, x.m.key[at]);
		CHECK_EQ(x.t.merges, 1);
		CHECK_EQ(leaf_count(at), limit - limit / 4 - 1);
		tree_check(&x);
		tree_close(&x);
	}

	/* Between full ones a leaf lives until it is empty. */
	c.near[0] = limit;
	for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
		u32 blocks;

		c.side = side;
		at = tree_craft(&x, &c, &count);
		blocks = tree_blocks(&x);
		for (n = limit; n > 1; n--)
			tree_delete(&x, x.m.key[at + n - 1]);
		CHECK_EQ(x.t.merges, 0);
		tree_delete(&x, x.m.key[at]);
		CHECK_EQ(x.t.merges, 1);
		CHECK_EQ(tree_blocks(&x), blocks);
		CHECK_EQ(le32_to_cpu(((struct itree_root_info
					       *)(mem_peek(&x.d, LBLK(0)) + 16))
					     ->r_free_count),
			 1);
		tree_check(&x);
		tree_close(&x);
	}

	/* The right neighbour is asked when the left one is too full. */
	c = (struct craft){ .block_size = 1024,
			    .depth = 2,
			    .path = { limit / 4, 3 },
			    .near = { 1 },
			    .side = CRAFT_MIDDLE };
	at = tree_craft(&x, &c, &count);
	for (n = 0; n < 120; n++) /* fills the left one */
		tree_insert(&x, x.m.key[0]);
	at += n;
	tree_delete(&x, x.m.key[at]);
	CHECK_EQ(x.t.merges, 1);
	CHECK_EQ(leaf_count(at), limit / 4 - 1 + 1);
	CHECK_EQ(leaf_count(0), 121);
	tree_check(&x);
	tree_close(&x);
}

/* The leaf just below a quarter, index nodes likewise: all levels merge. */
static void merge_cascades(void *arg)
{
	u32 depth, side, count, level;

	(void)arg;
	for (depth = 2; depth <= ITREE_MAX_DEPTH; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			struct craft c = { .block_size = 1024,
					   .depth = depth,
					   .side = side };
			struct itree_info info;
			size_t at;

			for (level = 0; level < depth; level++) {
				c.path[level] = level ? 83 / 4 : 125 / 4;
				c.near[level] = 30;
			}
			c.path[depth - 1] = 3;
			at = tree_craft(&x, &c, &count);
			tree_delete(&x, x.m.key[at + count / 2]);
			CHECK_EQ(x.t.merges, depth - 1);
			tree_check(&x);
			itree_get_info(&x.t, &info);
			CHECK_EQ(info.free_count, depth - 1);

			/* to the last key and the empty root */
			while (x.m.n)
				tree_delete(&x, x.m.key[x.m.n / 2]);
			tree_check(&x);
			itree_get_info(&x.t, &info);
			CHECK_EQ(info.depth, 1);
			CHECK_EQ(info.free_count, info.blocks - 1);
			tree_close(&x);
		}
	}
}

/* A path of nodes with one entry each disappears as a whole. */
static void remove_cascades(void *arg)
{
	u32 depth, side, count, level;

	(void)arg;
	for (depth = 2; depth <= ITREE_MAX_DEPTH; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			struct craft c = { .block_size = 1024,
					   .depth = depth,
					   .side = side };
			size_t at;

			for (level = 0; level < depth; level++) {
				c.path[level] = 1;
				c.near[level] = 0; /* full */
			}
			c.path[depth - 1] = 5;
			at = tree_craft(&x, &c, &count);
			CHECK_EQ(count, 1);
			tree_delete(&x, x.m.key[at]);
			CHECK_EQ(x.t.merges, depth - 1);
			tree_check(&x);
			tree_close(&x);
		}
	}
}

/* Root with one child left: it takes the child in only with room to spare. */
static void collapse(void *arg)
{
	const u32 room = 121 - 121 / 4;
	struct itree_info info;
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 122; i++)
		tree_insert(&x, ITREE_KEY(i + 1, 0));
	itree_get_info(&x.t, &info);
	CHECK_EQ(info.depth, 2);
	while (x.m.n > room) {
		CHECK_EQ(info.depth, 2);
		tree_delete(&x, x.m.key[x.m.n / 3]);
		itree_get_info(&x.t, &info);
	}
	CHECK_EQ(info.depth, 1);
	tree_check(&x);
	tree_close(&x);

	/* the same when the last but one child is merged in that call */
	for (i = 0; i < 4; i++) {
		struct craft c = { .block_size = 1024,
				   .depth = 2,
				   .side = i & 1 ? CRAFT_LAST : CRAFT_FIRST,
				   .path = { 125 / 4, 2 } };
		u32 count;
		size_t at;

		c.near[0] = room - (125 / 4 - 1) + i / 2;
		at = tree_craft(&x, &c, &count);
		tree_delete(&x, x.m.key[at]);
		itree_get_info(&x.t, &info);
		CHECK_EQ(info.keys, room + i / 2);
		CHECK_EQ(info.depth, i < 2 ? 1 : 2);
		tree_check(&x);
		tree_close(&x);
	}
}

/* The only child may be any of those at hand, or one not yet read. */
static void collapse_ways(void *arg)
{
	u32 depth, side, shape, count, level;

	(void)arg;
	for (depth = 2; depth <= ITREE_MAX_DEPTH; depth++) {
		for (side = 0; side < 2; side++) {
			for (shape = 0; shape < 4; shape++) {
				struct craft c = { .block_size = 1024,
						   .depth = depth,
						   .side = side ? CRAFT_LAST
								: CRAFT_FIRST };
				struct itree_info info;
				size_t at;

				for (level = 0; level < depth; level++) {
					c.path[level] = shape & 1 ? 1
							: level	  ? 83 / 4
								  : 125 / 4;
					/* fits the root, or does not */
					c.near[level] = shape & 2 ? 75 : 10;
				}
				c.path[depth - 1] = 2;
				if (shape == 2 && depth == 2)
					c.near[0] = 110;
				at = tree_craft(&x, &c, &count);
				tree_delete(&x, x.m.key[at]);
				tree_check(&x);
				itree_get_info(&x.t, &info);
				if (shape == 0)
					CHECK_EQ(info.depth, depth - 1);
				if (shape == 1 && depth > 1)
					CHECK_EQ(info.depth, depth - 1);
				if (shape == 2)
					CHECK_EQ(info.depth, depth);
				while (x.m.n) {
					tree_delete(&x, x.m.key[0]);
					if (x.m.n % 16 == 0)
						tree_check(&x);
				}
				tree_close(&x);
			}
		}
	}
}

/* A file made and removed over and over must not move nodes each time. */
static u32 thrash(u64 key, u32 times, u32 batch)
{
	u32 before = x.t.splits + x.t.merges, i, n;

	for (i = 0; i < times; i++) {
		for (n = 0; n < batch; n++)
			tree_insert(&x, key + n);
		for (n = 0; n < batch; n++)
			tree_delete(&x, key + n);
	}
	return x.t.splits + x.t.merges - before;
}

static void no_thrash(void *arg)
{
	u32 side, count, depth, level, moved, batch, n;

	(void)arg;
	/* everything full, at the left end, inside, at the right end */
	for (depth = 1; depth <= 4; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			for (batch = 1; batch <= 3; batch++) {
				struct craft c = { .block_size = 1024,
						   .depth = depth,
						   .side = side };
				size_t at = tree_craft(&x, &c, &count);

				n = side == CRAFT_FIRST	 ? 0
				    : side == CRAFT_LAST ? count - 1
							 : count / 2;
				moved = thrash(x.m.key[at + n] + 1, 50, batch);
				CHECKF(moved <= 2 * depth,
				       "depth %u side %u batch %u: %u", depth,
				       side, batch, moved);
				tree_check(&x);
				tree_close(&x);
			}
		}
	}
	/* everything at the edge of merging */
	for (depth = 2; depth <= 4; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			struct craft c = { .block_size = 1024,
					   .depth = depth,
					   .side = side };
			size_t at;
			u64 key;

			for (level = 0; level < depth; level++) {
				c.path[level] = level ? 83 / 4 : 125 / 4;
				c.near[level] = 30;
			}
			c.path[depth - 1] = 3;
			at = tree_craft(&x, &c, &count);
			key = x.m.key[at + count / 2];
			tree_delete(&x, key);
			moved = thrash(key, 50, 1);
			CHECKF(!moved, "depth %u side %u: %u", depth, side,
			       moved);
			tree_close(&x);
		}
	}
	/* a growing directory, disturbed at every size */
	tree_format(&x, 1024, ROOMY);
	for (n = 0; n < 600; n++) {
		tree_insert(&x, ITREE_KEY(n + 1, 0));
		moved = thrash(ITREE_KEY(n + 2, 0), 20, 1);
		CHECKF(moved <= 4, "%u keys: %u", n + 1, moved);
	}
	tree_close(&x);
}

static void free_list_reuse(void *arg)
{
	struct itree_info info;
	u32 i, blocks;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 10000; i++)
		tree_insert(&x, shuffled(i));
	blocks = tree_blocks(&x);
	for (i = 0; i < 10000; i++)
		tree_delete(&x, shuffled(i));
	itree_get_info(&x.t, &info);
	CHECK_EQ(info.keys, 0);
	CHECK_EQ(info.depth, 1);
	CHECK_EQ(info.blocks, blocks);
	CHECK_EQ(info.free_count, blocks - 1);
	tree_check(&x);
	for (i = 0; i < 10000; i++)
		tree_insert(&x, shuffled(i));
	CHECK_EQ(tree_blocks(&x), blocks);
	tree_check(&x);
	tree_close(&x);
}

/* Half-empty trees give space back: a steady population does not grow. */
static void queue_stays_small(void *arg)
{
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 30000; i++) {
		tree_insert(&x, ITREE_KEY(i + 1, 0));
		if (i >= 1000)
			tree_delete(&x, ITREE_KEY(i + 1 - 1000, 0));
	}
	CHECKF(tree_blocks(&x) < 20, "%u blocks", tree_blocks(&x));
	tree_check(&x);
	tree_close(&x);
}

/* --- reserve --- */

static void reserve_keeps_word(void *arg)
{
	static const u32 numbers[] = { 1, 2, 3, 10, 300 };
	u32 depth, side, i, n, count;

	(void)arg;
	for (depth = 1; depth <= 4; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			for (i = 0; i < ARRAY_SIZE(numbers); i++) {
				struct craft c = { .block_size = 1024,
						   .depth = depth,
						   .side = side };
				size_t at = tree_craft(&x, &c, &count);
				u64 key = x.m.key[at + (side == CRAFT_LAST
								? count - 1
								: 0)];

				tree_reserve(&x, numbers[i]);
				tree_check(&x);
				for (n = 0; n < numbers[i]; n++)
					tree_insert_reserved(&x, key + n);
				tree_check(&x);
				tree_close(&x);
			}
		}
	}
}

static void reserve_needs_no_more(void *arg)
{
	struct itree_info info;
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	CHECK(!itree_has_room(&x.t));
	x.d.no_write = true;
	CHECK_EQ(itree_reserve(&x.t, 0), 0);
	tree_end_op(&x);
	x.d.no_write = false;
	tree_reserve(&x, 5);
	CHECK(itree_has_room(&x.t));
	itree_get_info(&x.t, &info);
	CHECK(info.free_count >= 1 && info.free_count <= 10);
	tree_check(&x);
	x.d.no_write = true;
	CHECK_EQ(itree_reserve(&x.t, 5), 0);
	CHECK_EQ(itree_reserve(&x.t, 1), 0);
	tree_end_op(&x);
	x.d.no_write = false;
	/* one insert at a time keeps a handful of nodes, not a heap */
	for (i = 0; i < 5000; i++) {
		/* what the kernel goes by to leave the reserve out */
		if (itree_has_room(&x.t))
			tree_insert_reserved(&x, shuffled(i));
		else
			tree_insert(&x, shuffled(i));
		itree_get_info(&x.t, &info);
		CHECK(info.free_count <= 10);
	}
	tree_close(&x);
}

static void no_space(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 3,
			   .side = CRAFT_MIDDLE };
	struct mem_snap s;
	u32 count, blocks, spare;
	u64 key;
	size_t at;

	(void)arg;
	/* insert without a reserve, or with too small a one */
	for (spare = 0; spare < 3; spare++) {
		c.spare = spare;
		at = tree_craft(&x, &c, &count);
		key = x.m.key[at] + 1;
		mem_snap(&x.d, &s);
		blocks = tree_blocks(&x);
		CHECK(!itree_has_room(&x.t));
		CHECK_EQ(itree_insert(&x.t, key), -ENOSPC);
		CHECK(!x.t.torn);
		tree_end_op(&x);
		CHECK_EQ(mem_compare(&x.d, &s, blocks), blocks);
		mem_snap_free(&s);
		tree_check(&x);

		/* the device is full, in the middle of the reserve */
		x.d.grow_limit = blocks + 1 - (spare == 2);
		CHECK_EQ(itree_reserve(&x.t, 1), -ENOSPC);
		CHECK(!x.t.torn);
		tree_end_op(&x);
		tree_check(&x);
		CHECK_EQ(tree_blocks(&x), x.d.grow_limit);
		x.d.grow_limit = ~0U;
		tree_insert(&x, key);
		tree_check(&x);
		tree_close(&x);
	}
	c.spare = 3;
	at = tree_craft(&x, &c, &count);
	CHECK(itree_has_room(&x.t));
	tree_insert_reserved(&x, x.m.key[at] + 1);
	tree_check(&x);
	tree_close(&x);

	/* the segment is full */
	tree_format(&x, 1024, 3);
	for (count = 0; !itree_reserve(&x.t, 1); count++) {
		tree_end_op(&x);
		tree_insert_reserved(&x, shuffled(count));
	}
	tree_end_op(&x);
	CHECK(count >= 121);
	CHECK_EQ(itree_reserve(&x.t, 1), -ENOSPC);
	CHECK_EQ(tree_blocks(&x), 3);
	tree_check(&x);
	tree_close(&x);
}

static void depth_limit(void *arg)
{
	u32 side, count, blocks;

	(void)arg;
	for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
		struct craft c = { .block_size = 1024,
				   .depth = ITREE_MAX_DEPTH,
				   .side = side };
		size_t at = tree_craft(&x, &c, &count);
		u64 key = x.m.key[at + (side == CRAFT_LAST ? count - 1 : 0)];
		struct mem_snap s;

		tree_check(&x);
		tree_reserve(&x, 1);
		blocks = tree_blocks(&x);
		mem_snap(&x.d, &s);
		CHECK_EQ(itree_insert(&x.t, key + 1), -EOVERFLOW);
		CHECK(!x.t.torn);
		tree_end_op(&x);
		CHECK_EQ(mem_compare(&x.d, &s, blocks), blocks);
		mem_snap_free(&s);
		tree_check(&x);
		/* elsewhere there is room */
		tree_insert(&x,
			    x.m.key[side == CRAFT_LAST ? 0 : x.m.n - 1] + 1);
		/* and here as well once a key has gone */
		tree_delete(&x, key);
		tree_insert(&x, key + 1);
		tree_check(&x);
		tree_close(&x);

		/* one level less: it can still grow */
		c.depth--;
		at = tree_craft(&x, &c, &count);
		tree_insert(&x, x.m.key[at] + 1);
		tree_check(&x);
		tree_close(&x);
	}
}

/* --- equal keys --- */

static void equal_keys(void *arg)
{
	const u64 key = ITREE_KEY(77, 2);
	struct itree_cursor cur;
	u32 i, round;

	(void)arg;
	for (round = 0; round < 4; round++) {
		tree_format(&x, round & 1 ? 2048 : 1024, ROOMY);
		for (i = 0; i < 300; i++) {
			tree_insert(&x, key - 1 - i);
			if (round < 2)
				tree_insert(&x, key + 1 + i);
		}
		for (i = 0; i < 1000; i++) {
			tree_insert(&x, key);
			if (i % 100 == 0)
				tree_check(&x);
		}
		tree_check(&x);
		for (; i; i--) {
			/* the first of them, so all are behind it */
			CHECK_EQ(itree_seek(&x.t, key, &cur), 0);
			CHECK(itree_cursor_key(&cur) == key);
			itree_cursor_release(&cur);
			if (i % 50 == 0) {
				tree_check_seek(&x, key);
				tree_check(&x);
			}
			tree_delete(&x, key);
		}
		CHECK_EQ(itree_delete(&x.t, key), -ENOENT);
		tree_end_op(&x);
		tree_check(&x);
		tree_close(&x);
	}
}

/* seek finds the first of equal keys, not just one of them. */
static void equal_keys_first(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 4,
			   .side = CRAFT_LAST,
			   .path = { 0, 5, 5, 5 },
			   .near = { 3, 3, 3, 3 },
			   .equal = true };
	struct itree_cursor cur;
	u32 count, n;

	(void)arg;
	tree_craft(&x, &c, &count);
	tree_check(&x);
	CHECK_EQ(itree_seek(&x.t, x.m.key[0], &cur), 0);
	for (n = 1; !itree_next(&cur); n++)
		;
	itree_cursor_release(&cur);
	CHECK_EQ(n, x.m.n);
	CHECK_EQ(itree_seek(&x.t, x.m.key[0] + 1, &cur), ITREE_END);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	while (x.m.n) {
		tree_delete(&x, x.m.key[0]);
		tree_check(&x);
	}
	tree_close(&x);
}

/* Leaves that begin with the largest key there can be. */
static void largest_keys(void *arg)
{
	u32 i;

	(void)arg;
	tree_format(&x, 1024, ROOMY);
	for (i = 0; i < 125; i++)
		model_insert(&x.m, ITREE_KEY(i + 1, 0));
	for (i = 0; i < 10; i++)
		model_insert(&x.m, ~0ULL);
	tree_bulk(&x);
	tree_check(&x);
	tree_insert(&x, ~0ULL);
	tree_check(&x);
	tree_check_seek(&x, ~0ULL);
	while (x.m.n > 120) {
		tree_delete(&x, x.m.key[x.m.n - 1]);
		tree_check(&x);
	}
	tree_close(&x);
}

/* --- bulk load --- */

static void fill_model(u64 n, u32 equal)
{
	u64 i;

	x.m.key = xrealloc(x.m.key, (n + 1) * sizeof(u64));
	x.m.room = n + 1;
	x.m.n = n;
	for (i = 0; i < n; i++)
		x.m.key[i] = ITREE_KEY(12 + i / equal, 4);
}

static void bulk_one(u32 bs, u64 n, u32 equal, u32 depth)
{
	struct itree_info info;
	struct itree_report r;
	u64 blocks = itree_bulk_blocks(bs, n), leaves;

	snprintf(test_note, sizeof(test_note), "block size %u, %llu keys", bs,
		 n);
	tree_format(&x, bs, (u32)blocks); /* not one block more */
	fill_model(n, equal);
	tree_bulk(&x);
	itree_get_info(&x.t, &info);
	CHECK_EQ(info.blocks, blocks);
	CHECK_EQ(info.free_count, 0);
	CHECK_EQ(info.depth, depth);
	CHECK_EQ(info.hash_version, 1);
	CHECK(!x.t.torn);
	CHECK_EQ(itree_verify(&x.t, &r), 0);
	leaves = depth == 1 ? 1 : (n + (bs - 24) / 8 - 1) / ((bs - 24) / 8);
	CHECK_EQ(r.leaves, leaves); /* packed */
	tree_end_op(&x);
	tree_check(&x);

	/* and lives on */
	x.t.max_blocks = ROOMY;
	if (n && n < 30000) {
		tree_insert(&x, x.m.key[n / 2]);
		tree_insert(&x, x.m.key[0] - 1);
		tree_insert(&x, x.m.key[x.m.n - 1] + 1);
		tree_delete(&x, x.m.key[n / 3]);
		tree_check(&x);
	}
	tree_close(&x);
}

static void bulk_sizes(void *arg)
{
	u32 i;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(block_sizes); i++) {
		u32 bs = block_sizes[i];
		u64 leaf = (bs - 24) / 8, root_leaf = (bs - 56) / 8;
		u64 index = (bs - 24) / 12, root_index = (bs - 56) / 12;

		bulk_one(bs, 0, 1, 1);
		bulk_one(bs, 1, 1, 1);
		bulk_one(bs, root_leaf - 1, 1, 1);
		bulk_one(bs, root_leaf, 1, 1);
		bulk_one(bs, root_leaf + 1, 1, 2);
		bulk_one(bs, leaf, 1, 2);
		bulk_one(bs, leaf + 1, 3, 2);
		bulk_one(bs, 2 * leaf, 1000, 2);
		bulk_one(bs, 2 * leaf + 1, 7, 2);
		if (bs > 4096)
			continue;
		bulk_one(bs, leaf * root_index, 1, 2);
		bulk_one(bs, leaf * root_index + 1, 1, 3);
		bulk_one(bs, leaf * index + 1, 2, 3);
		if (bs > 1024)
			continue;
		bulk_one(bs, leaf * index * root_index, 1, 3);
		bulk_one(bs, leaf * index * root_index + 1, 1, 4);
	}
}

static void bulk_blocks(void *arg)
{
	u32 i;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(block_sizes); i++) {
		u32 bs = block_sizes[i];
		u64 keys;

		/* against a count level by level, for very many keys */
		for (keys = 1; keys <= 0xffffffffULL; keys = keys * 3 + 1) {
			u64 n = keys, want = 1;
			u32 size = 8;

			while (n > (bs - 56) / size) {
				u32 limit = (bs - 24) / size;

				n = (n + limit - 1) / limit;
				want += n;
				size = 12;
			}
			CHECK_EQ(itree_bulk_blocks(bs, keys), want);
		}
		CHECK_EQ(itree_bulk_blocks(bs, 0), 1);
		CHECK(itree_bulk_blocks(bs, 0xffffffffULL) > 1);
		CHECK_EQ(itree_bulk_blocks(bs, 0x100000000ULL), 0);
		CHECK_EQ(itree_bulk_blocks(bs, ~0ULL), 0);
	}
}

static void bulk_refuses(void *arg)
{
	static const u64 up_down[] = { 5, 7, 6, 8 };
	static const u64 up[] = { 5, 6, 7, 8 };
	struct bulk_keys b = { .key = up_down, .n = 4 };
	u32 n;

	(void)arg;
	/* out of order */
	tree_format(&x, 1024, ROOMY);
	CHECK_EQ(itree_bulk_load(&x.t, 4, bulk_next, &b), -EINVAL);
	CHECK(x.t.torn);
	mem_end_torn(&x.d, 1);
	tree_close(&x);

	/* the caller's error comes back, at each key */
	for (n = 0; n < 4; n++) {
		b = (struct bulk_keys){
			.key = up, .n = 4, .fail_at = n, .fail_err = -EINTR
		};
		tree_format(&x, 1024, ROOMY);
		CHECK_EQ(itree_bulk_load(&x.t, 4, bulk_next, &b), -EINTR);
		CHECK(x.t.torn);
		mem_end_torn(&x.d, 1);
		tree_close(&x);
	}

	/* not into a tree that has keys, levels or free nodes */
	b = (struct bulk_keys){ .key = up, .n = 4 };
	tree_format(&x, 1024, ROOMY);
	tree_insert(&x, 3);
	CHECK_EQ(itree_bulk_load(&x.t, 4, bulk_next, &b), -EINVAL);
	CHECK(!x.t.torn);
	tree_end_op(&x);
	tree_check(&x);
	tree_delete(&x, 3);
	CHECK_EQ(itree_bulk_load(&x.t, 4, bulk_next, &b), -EINVAL);
	CHECK(!x.t.torn);
	for (n = 0; n < 1000; n++)
		tree_insert(&x, n);
	CHECK_EQ(itree_bulk_load(&x.t, 4, bulk_next, &b), -EINVAL);
	CHECK(!x.t.torn);
	tree_end_op(&x);
	tree_check(&x);
	tree_close(&x);

	/* too many, and no space */
	tree_format(&x, 1024, ROOMY);
	CHECK_EQ(itree_bulk_load(&x.t, 0x100000000ULL, bulk_next, &b), -EFBIG);
	CHECK(!x.t.torn);
	CHECK_EQ(b.at, 0);
	tree_end_op(&x);
	tree_check(&x);
	tree_close(&x);
	for (n = 1; n < 30; n++) {
		tree_format(&x, 1024, n);
		fill_model(3400, 1);
		b = (struct bulk_keys){ .key = x.m.key, .n = x.m.n };
		if (n < itree_bulk_blocks(1024, x.m.n)) {
			CHECK_EQ(itree_bulk_load(&x.t, x.m.n, bulk_next, &b),
				 -ENOSPC);
			mem_end_torn(&x.d, 1);
		} else {
			CHECK_EQ(itree_bulk_load(&x.t, x.m.n, bulk_next, &b),
				 0);
			tree_end_op(&x);
			tree_check(&x);
		}
		tree_close(&x);
	}
}

/* --- hostile input --- */

/*
 * The base: three levels with room to damage.
 *   0 root, level 2: children 1, ...
 *   1 index, level 1: leaves 2, 3, 4
 * Crafted depth first: path and neighbours have several entries.
 */
static const struct craft base = {
	.block_size = 1024,
	.depth = 3,
	.side = CRAFT_FIRST,
	.path = { 60, 4, 4 },
	.near = { 60, 3, 3 },
	.spare = 4,
};

/* Reads, then changes the tree in all ways; must end, whatever it says. */
static void exercise(bool must_refuse)
{
	struct itree_report r;
	struct itree_cursor cur;
	u64 n = 0, key, bound = (u64)x.d.nblocks * 128 + 16;
	u32 i;
	int err;

	mem_drop_caches(&x.d);
	err = itree_open(&x.t, &mem_ops, &x.d, x.d.block_size,
			 x.d.nblocks + 16);
	if (err) {
		CHECK(err < 0);
		CHECK(!x.t.root.data);
		if (must_refuse)
			CHECKF(err == -ITREE_CORRUPT && x.t.why, "%d", err);
		mem_end_op(&x.d, 0, 0);
		return;
	}
	x.open = true;
	x.d.no_write = true;
	err = itree_verify(&x.t, &r);
	if (must_refuse)
		CHECKF(err == -ITREE_CORRUPT && x.t.why, "%d", err);
	tree_end_op(&x);
	for (err = itree_seek(&x.t, 0, &cur); !err; err = itree_next(&cur)) {
		(void)itree_cursor_key(&cur);
		CHECK(n++ <= bound);
	}
	itree_cursor_release(&cur);
	tree_end_op(&x);
	(void)itree_last(&x.t, &key);
	tree_end_op(&x);
	x.d.no_write = false;
	for (i = 0; i < 200; i++) {
		(void)itree_reserve(&x.t, i % 3);
		tree_end_op(&x);
		(void)itree_insert(&x.t, CRAFT_KEY(i) + i % 5);
		tree_end_op(&x);
	}
	for (i = 0; i < 700; i++) {
		(void)itree_delete(&x.t, CRAFT_KEY(i * 7 % 700));
		tree_end_op(&x);
		if (i % 64 == 0)
			mem_drop_caches(&x.d);
	}
	CHECK(!x.t.torn);
	itree_close(&x.t);
	x.open = false;
	mem_end_op(&x.d, 0, 0);
}

struct damage {
	const char *name;
	u32 block, off;
	u8 size; /* bytes */
	u32 value;
};

static const u32 BLOCKS = 24, FREE_HEAD = 28, FREE_COUNT = 32;

static void put(u32 block, u32 off, u32 size, u64 value)
{
	u8 *p = mem_poke(&x.d, LBLK(block));

	CHECK(p);
	for (; size; size--, value >>= 8)
		p[off++] = (u8)value;
	mem_poke_done(&x.d, LBLK(block));
}

static u64 get(u32 block, u32 off, u32 size)
{
	const u8 *p = mem_peek(&x.d, LBLK(block));
	u64 v = 0;

	CHECK(p);
	while (size--)
		v = v << 8 | p[off + size];
	return v;
}

static void base_tree(void)
{
	u32 count;

	tree_craft(&x, &base, &count);
	tree_check(&x);
	itree_close(&x.t);
	x.open = false;
	mem_end_op(&x.d, 0, 0);
	/* what the table below takes for granted */
	CHECK_EQ(get(0, 5, 1), 2);
	CHECK_EQ(get(1, 5, 1), 1);
	CHECK_EQ(get(2, 5, 1), 0);
	CHECK_EQ(get(1, 24, 4), LBLK(2));
	CHECK_EQ(get(1, 36, 4), LBLK(3));
	CHECK_EQ(get(0, 56, 4), LBLK(1));
	/* two keys of leaf 2 differ in the hash only */
	put(2, 16 + 8 * 30, 4, get(2, 16 + 8 * 29, 4));
	x.m.key[30] = x.m.key[29];
}

/* Offsets: head 0-15, root info 16-47, entries from 48 (root) or 16. */
static const struct damage damages[] = {
	{ "root: magic", 0, 0, 4, 0x45525448 },
	{ "root: magic of a free node", 0, 0, 4, 0x46525449 },
	{ "root: version 0", 0, 4, 1, 0 },
	{ "root: version 2", 0, 4, 1, 2 },
	{ "root: level 5", 0, 5, 1, 5 },
	{ "root: level 255", 0, 5, 1, 255 },
	{ "root: level 0", 0, 5, 1, 0 },
	{ "root: level 1", 0, 5, 1, 1 },
	{ "root: level 3", 0, 5, 1, 3 },
	{ "root: count 0", 0, 6, 2, 0 },
	{ "root: count above limit", 0, 6, 2, 81 },
	{ "root: count 65535", 0, 6, 2, 65535 },
	{ "root: count too large", 0, 6, 2, 5 },
	{ "root: count too small", 0, 6, 2, 3 },
	{ "root: limit too small", 0, 8, 2, 79 },
	{ "root: limit of another node", 0, 8, 2, 83 },
	{ "root: limit 65535", 0, 8, 2, 65535 },
	{ "root: reserved", 0, 10, 2, 1 },
	{ "root: next", 0, 12, 4, LBLK(5) },
	{ "root: keys 0", 0, 16, 8, 0 },
	{ "root: one key more", 0, 16, 1, 0 },
	{ "root: keys 2^63", 0, 23, 1, 0x80 },
	{ "root: no blocks", 0, 24, 4, 0 },
	{ "root: blocks beyond max_blocks", 0, 24, 4, 0x100000 },
	{ "root: blocks 2^32 - 1", 0, 24, 4, 0xffffffff },
	{ "root: one block less", 0, 24, 1, 0x0e },
	{ "root: free list at the root", 0, 28, 4, LBLK(0) },
	{ "root: free list below the segment", 0, 28, 4, 7 },
	{ "root: free list beyond the segment", 0, 28, 4, 0xffffffff },
	{ "root: free list in a leaf", 0, 28, 4, LBLK(2) },
	{ "root: free list in an index node", 0, 28, 4, LBLK(1) },
	{ "root: free list gone", 0, 28, 4, 0 },
	{ "root: free count 0", 0, 32, 4, 0 },
	{ "root: free count too small", 0, 32, 4, 3 },
	{ "root: free count too large", 0, 32, 4, 5 },
	{ "root: free count 2^32 - 1", 0, 32, 4, 0xffffffff },
	{ "root: reserved in info", 0, 37, 1, 1 },
	{ "root: last reserved in info", 0, 47, 1, 0x80 },
	{ "root: tail", 0, 1016, 4, 1 },
	{ "root: first key", 0, 48, 4, 1 },
	{ "root: first hash", 0, 52, 4, 1 },
	{ "root: order", 0, 60, 4, 0xffffffff },
	{ "root: child is the root", 0, 56, 4, LBLK(0) },
	{ "root: child 0", 0, 56, 4, 0 },
	{ "root: child before the segment", 0, 56, 4, LBLK(0) - 1 },
	{ "root: child beyond the segment", 0, 56, 4, 0xfffffffe },
	{ "root: child is a leaf", 0, 56, 4, LBLK(2) },
	{ "root: child twice", 0, 68, 4, LBLK(1) },
	{ "index: magic", 1, 0, 4, 0 },
	{ "index: magic of a free node", 1, 0, 4, 0x46525449 },
	{ "index: version", 1, 4, 1, 9 },
	{ "index: level 0", 1, 5, 1, 0 },
	{ "index: level 2", 1, 5, 1, 2 },
	{ "index: level 4", 1, 5, 1, 4 },
	{ "index: level 200", 1, 5, 1, 200 },
	{ "index: count 0", 1, 6, 2, 0 },
	{ "index: count above limit", 1, 6, 2, 84 },
	{ "index: count 65535", 1, 6, 2, 65535 },
	{ "index: count too large", 1, 6, 2, 5 },
	{ "index: count too small", 1, 6, 2, 3 },
	{ "index: limit", 1, 8, 2, 84 },
	{ "index: reserved", 1, 10, 2, 0x100 },
	{ "index: next", 1, 12, 4, 1 },
	{ "index: tail", 1, 1019, 1, 1 },
	{ "index: first key", 1, 16, 4, 100 },
	{ "index: order", 1, 28, 4, 0x7fffffff },
	{ "index: key below bounds of child", 1, 28, 4, 101 },
	{ "index: child is the root", 1, 24, 4, LBLK(0) },
	{ "index: child is itself", 1, 24, 4, LBLK(1) },
	{ "index: child is an index node", 1, 36, 4, LBLK(6) },
	{ "index: child beyond the segment", 1, 36, 4, LBLK(0x1000) },
	{ "index: child before the segment", 1, 36, 4, 3 },
	{ "index: child twice", 1, 36, 4, LBLK(2) },
	{ "leaf: magic", 3, 0, 4, 0x45525400 },
	{ "leaf: magic of a free node", 3, 0, 4, 0x46525449 },
	{ "leaf: version", 3, 4, 1, 0xff },
	{ "leaf: level 1", 3, 5, 1, 1 },
	{ "leaf: count 0", 3, 6, 2, 0 },
	{ "leaf: count above limit", 3, 6, 2, 126 },
	{ "leaf: count 65535", 3, 6, 2, 65535 },
	{ "leaf: one key less", 3, 6, 2, 59 },
	{ "leaf: limit 0", 3, 8, 2, 0 },
	{ "leaf: limit too large", 3, 8, 2, 126 },
	{ "leaf: reserved", 3, 11, 1, 1 },
	{ "leaf: next", 3, 12, 4, LBLK(4) },
	{ "leaf: tail", 3, 1016, 4, 0x80000000 },
	{ "leaf: order", 3, 16 + 8 * 30, 4, 0x01000000 },
	{ "leaf: order, only in the hash", 2, 16 + 8 * 30 + 7, 1, 0x7f },
	{ "leaf: first key below bounds", 3, 16, 4, 1 },
	{ "leaf: last key above bounds", 3, 16 + 8 * 59, 4, 0xfffffff0 },
};

static void hostile(void *arg)
{
	const struct damage *m = arg;
	struct oracle o;

	base_tree();
	CHECK(get(m->block, m->off, m->size) != m->value);
	put(m->block, m->off, m->size, m->value);
	/* the second opinion agrees that this is wrong */
	CHECK(oracle_check(&x.d, x.d.nblocks, &o));
	oracle_free(&o);
	exercise(true);
	tree_close(&x);
}

/* Damage that takes more than one place. */
static void hostile_free_list(void *arg)
{
	u32 head, second, third, n;

	(void)arg;
	for (n = 0; n < 11; n++) {
		struct itree_report r;

		snprintf(test_note, sizeof(test_note), "way %u", n);
		base_tree();
		head = (u32)get(0, FREE_HEAD, 4) - ITREE_SEG_START;
		second = (u32)get(head, 12, 4) - ITREE_SEG_START;
		third = (u32)get(second, 12, 4) - ITREE_SEG_START;
		switch (n) {
		case 0: /* loops of one, two, three */
			put(head, 12, 4, LBLK(head));
			break;
		case 1:
			put(second, 12, 4, LBLK(head));
			break;
		case 2:
			put(third, 12, 4, LBLK(head));
			break;
		case 3: /* ends early */
			put(second, 12, 4, 0);
			break;
		case 4: /* leads into the tree, out, to the root */
			put(second, 12, 4, LBLK(3));
			break;
		case 5:
			put(second, 12, 4, 0x7fffffff);
			break;
		case 6:
			put(head, 12, 4, LBLK(0));
			break;
		case 7: /* not empty */
			put(head, 6, 2, 1);
			break;
		case 8:
			put(head, 8, 2, 125);
			break;
		case 9:
			put(head, 5, 1, 1);
			break;
		case 10: /* longer than counted */
			put(0, FREE_COUNT, 4, 2);
			break;
		}
		mem_drop_caches(&x.d);
		tree_open(&x, ROOMY);
		CHECK_EQ(itree_verify(&x.t, &r), -ITREE_CORRUPT);
		CHECK(x.t.why);
		tree_end_op(&x);
		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);
		exercise(true);
		tree_close(&x);
	}
}

/* Inserts notice a bad free list before they take nodes from it. */
static void hostile_insert_takes(void *arg)
{
	struct craft c = { .block_size = 1024, .depth = 3, .spare = 5 };
	u32 n, i, count, list[5], blocks;
	struct mem_snap s;
	size_t at;

	(void)arg;
	for (n = 0; n < 11; n++) {
		snprintf(test_note, sizeof(test_note), "way %u", n);
		at = tree_craft(&x, &c, &count);
		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);
		list[0] = (u32)get(0, FREE_HEAD, 4) - ITREE_SEG_START;
		for (i = 1; i < 5; i++)
			list[i] =
				(u32)get(list[i - 1], 12, 4) - ITREE_SEG_START;
		switch (n) {
		case 0:
		case 1:
		case 2: /* loops within the three nodes it takes */
			put(list[n], 12, 4, LBLK(list[0]));
			break;
		case 3:
			put(list[2], 12, 4, LBLK(list[2]));
			break;
		case 4: /* shorter than counted, longer than counted */
			put(list[2], 12, 4, 0);
			break;
		case 5:
			put(0, FREE_COUNT, 4, 3);
			break;
		case 6: /* nodes in use */
			put(list[0], 12, 4, LBLK(1));
			break;
		case 7:
			put(list[1], 12, 4, LBLK(0));
			break;
		case 8:
			put(list[1], 12, 4, LBLK(0x2000));
			break;
		case 9: /* ends within what it takes */
			put(list[1], 12, 4, 0);
			break;
		case 10: /* what would become the head */
			put(list[2], 12, 4, LBLK(0x2000));
			break;
		}
		tree_open(&x, ROOMY);
		blocks = tree_blocks(&x);
		mem_snap(&x.d, &s);
		CHECK_EQ(itree_insert(&x.t, x.m.key[at] + 1), -ITREE_CORRUPT);
		CHECK(x.t.why && !x.t.torn);
		tree_end_op(&x);
		CHECK_EQ(mem_compare(&x.d, &s, blocks), blocks);
		mem_snap_free(&s);
		tree_close(&x);
	}
}

/* A root that is a leaf holds all keys that it counts. */
static void hostile_root_leaf(void *arg)
{
	u32 i;

	(void)arg;
	for (i = 0; i < 10; i++) {
		tree_format(&x, 1024, ROOMY);
		tree_reserve(&x, 200);
		while (x.m.n < 5)
			tree_insert(&x, shuffled(x.m.n));
		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);
		put(0, 16, 8, i);
		CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, ROOMY),
			 i == 5 ? 0 : -ITREE_CORRUPT);
		CHECK(i == 5 || x.t.why);
		itree_close(&x.t);
		mem_end_op(&x.d, 0, 0);
		tree_close(&x);
	}
}

/* What open itself must refuse, before anything is done with the tree. */
static void hostile_open(void *arg)
{
	static const struct {
		u32 off;
		u32 size;
		u64 value;
	} bad[] = {
		{ 16, 8, 1ULL << 62 }, /* keys */
		{ 24, 4, 0 }, /* blocks */
		{ 28, 4, 0 }, /* free list: head */
		{ 28, 4, LBLK(0) },    { 32, 4, 0 }, /* and count */
		{ 32, 4, ~0U },	       { 44, 4, 1 }, /* reserved */
	};
	u32 i, blocks;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(bad) + 4; i++) {
		snprintf(test_note, sizeof(test_note), "way %u", i);
		base_tree();
		blocks = (u32)get(0, BLOCKS, 4);
		if (i < ARRAY_SIZE(bad))
			put(0, bad[i].off, bad[i].size, bad[i].value);
		else if (i == ARRAY_SIZE(bad))
			put(0, FREE_COUNT, 4, blocks);
		else if (i == ARRAY_SIZE(bad) + 1)
			put(0, FREE_HEAD, 4, LBLK(blocks));
		else if (i == ARRAY_SIZE(bad) + 2)
			put(0, 16, 8, (blocks - 4) * 125 + 1);
		else
			put(0, 16, 8, (blocks - 4) * 125); /* could be */
		CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, blocks),
			 i == ARRAY_SIZE(bad) + 3 ? 0 : -ITREE_CORRUPT);
		itree_close(&x.t);
		mem_end_op(&x.d, 0, 0);
		CHECK_EQ(itree_open(&x.t, &mem_ops, &x.d, 1024, blocks - 1),
			 -ITREE_CORRUPT);
		mem_end_op(&x.d, 0, 0);
		tree_close(&x);
	}
}

/* The block behind the last one is not the tree's, even if it is a node. */
static void hostile_behind_the_end(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 2,
			   .side = CRAFT_LAST,
			   .path = { 5, 3 },
			   .near = { 4 } };
	struct itree_cursor cur;
	u32 count, blocks;
	size_t at;
	u64 key;

	(void)arg;
	at = tree_craft(&x, &c, &count);
	blocks = tree_blocks(&x);
	itree_close(&x.t);
	x.open = false;
	mem_end_op(&x.d, 0, 0);
	put(0, BLOCKS, 4, blocks - 1);
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_last(&x.t, &key), -ITREE_CORRUPT);
	CHECK_EQ(itree_seek(&x.t, x.m.key[at] + 1, &cur), -ITREE_CORRUPT);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);
}

/*
 * Keys that their parent allows, but not its parent: a search must notice,
 * as it does not see the neighbours.
 */
static void hostile_grandparent(void *arg)
{
	struct itree_cursor cur;
	u32 leaf;
	u64 key;

	(void)arg;
	/* below: the first leaf of the second index node */
	base_tree();
	leaf = (u32)get((u32)get(0, 68, 4) - ITREE_SEG_START, 24, 4) -
	       ITREE_SEG_START;
	CHECK_EQ(get(leaf, 5, 1), 0);
	key = ITREE_KEY(get(leaf, 16, 4), get(leaf, 20, 4));
	CHECK_EQ(get(0, 60, 4), ITREE_KEY_INO(key));
	put(leaf, 16, 4, ITREE_KEY_INO(key) - 1);
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_seek(&x.t, key + 1, &cur), -ITREE_CORRUPT);
	CHECK_EQ(x.t.why_lblk, LBLK(leaf));
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);

	/* above: the last leaf of the first index node */
	base_tree();
	leaf = (u32)get(1, 24 + 12 * 3, 4) - ITREE_SEG_START;
	CHECK_EQ(get(leaf, 5, 1), 0);
	key = ITREE_KEY(get(leaf, 16, 4), get(leaf, 20, 4));
	put(leaf, 16 + 8 * ((u32)get(leaf, 6, 2) - 1), 4, get(0, 60, 4) + 1);
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_seek(&x.t, key, &cur), -ITREE_CORRUPT);
	CHECK_EQ(x.t.why_lblk, LBLK(leaf));
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);
}

/* Empty nodes are refused though the root counts right. */
static void hostile_empty_nodes(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 3,
			   .side = CRAFT_FIRST,
			   .path = { 1, 2, 3 },
			   .near = { 1, 1, 1 } };
	struct itree_report r;
	u32 count, i, blocks;

	(void)arg;
	for (i = 1;; i++) {
		tree_craft(&x, &c, &count);
		blocks = tree_blocks(&x);
		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);
		if (i == blocks) {
			tree_close(&x);
			break;
		}
		if (!get(i, 5, 1)) {
			put(0, 16, 8, get(0, 16, 8) - get(i, 6, 2));
			put(i, 6, 2, 0);
			tree_open(&x, ROOMY);
			CHECK_EQ(itree_verify(&x.t, &r), -ITREE_CORRUPT);
			CHECK_EQ(x.t.why_lblk, LBLK(i));
			tree_end_op(&x);
		}
		tree_close(&x);
	}
}

/* A root that counts no keys: deleting must not make it 2^64 - 1. */
static void hostile_key_total(void *arg)
{
	struct itree_info info;
	struct itree_cursor cur;
	u64 n;
	int err;

	(void)arg;
	base_tree();
	put(0, 16, 8, 0);
	tree_open(&x, ROOMY);
	err = itree_delete(&x.t, CRAFT_KEY(5));
	CHECKF(err == -ITREE_CORRUPT && x.t.why, "%d", err);
	tree_end_op(&x);
	itree_get_info(&x.t, &info);
	CHECK_EQ(info.keys, 0);
	tree_close(&x);

	/* fewer than there are: a scan stops there */
	base_tree();
	n = x.m.n;
	put(0, 16, 8, n - 1);
	tree_open(&x, ROOMY);
	for (err = itree_seek(&x.t, 0, &cur); !err; err = itree_next(&cur))
		n--;
	CHECK_EQ(err, -ITREE_CORRUPT);
	CHECK(n <= 1);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);
}

/* Which call notices: damage on the way is seen by the one that goes there. */
static void hostile_on_the_way(void *arg)
{
	struct itree_cursor cur;
	u64 key, last;

	(void)arg;
	base_tree();
	put(3, 0, 4, 0); /* second leaf */
	key = x.m.key[60 + 5];
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_seek(&x.t, x.m.key[0], &cur), 0);
	itree_cursor_release(&cur);
	CHECK_EQ(itree_last(&x.t, &last), 0);
	CHECK_EQ(itree_seek(&x.t, key, &cur), -ITREE_CORRUPT);
	CHECK(x.t.why);
	CHECK_EQ(x.t.why_lblk, LBLK(3));
	itree_cursor_release(&cur);
	tree_end_op(&x);
	CHECK_EQ(itree_insert(&x.t, key + 1), -ITREE_CORRUPT);
	tree_end_op(&x);
	CHECK_EQ(itree_delete(&x.t, key), -ITREE_CORRUPT);
	tree_end_op(&x);
	/* going there from the first leaf */
	CHECK_EQ(itree_seek(&x.t, x.m.key[59], &cur), 0);
	CHECK_EQ(itree_next(&cur), -ITREE_CORRUPT);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	/* or for a key between the two */
	CHECK_EQ(itree_seek(&x.t, x.m.key[59] + 1, &cur), -ITREE_CORRUPT);
	itree_cursor_release(&cur);
	tree_end_op(&x);
	CHECK(!x.t.torn);
	tree_close(&x);

	/* order inside a node, where the bounds say nothing */
	base_tree();
	put(3, 16 + 8 * 30, 4, get(3, 16 + 8 * 20, 4));
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_seek(&x.t, key, &cur), -ITREE_CORRUPT);
	CHECK_EQ(x.t.why_lblk, LBLK(3));
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);
	base_tree();
	put(1, 16 + 12 * 2, 4, get(1, 16 + 12, 4) - 1);
	tree_open(&x, ROOMY);
	CHECK_EQ(itree_seek(&x.t, key, &cur), -ITREE_CORRUPT);
	CHECK_EQ(x.t.why_lblk, LBLK(1));
	itree_cursor_release(&cur);
	tree_end_op(&x);
	tree_close(&x);

	/* checksum: the operation's error comes back */
	base_tree();
	tree_open(&x, ROOMY);
	mem_poke(&x.d, LBLK(3))[500] ^= 4;
	mem_drop_caches(&x.d);
	CHECK_EQ(itree_seek(&x.t, key, &cur), -EBADMSG);
	itree_cursor_release(&cur);
	mem_poke(&x.d, LBLK(3))[500] ^= 4;
	mem_poke_done(&x.d, LBLK(3));
	tree_end_op(&x);
	tree_close(&x);
}

/*
 * One node under two parents' entries: freed through the one, it must not be
 * taken for a node through the other, though its block once passed the checks.
 */
static void hostile_shared_child(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 3,
			   .side = CRAFT_FIRST,
			   .path = { 1, 2, 3 },
			   .near = { 1, 2, 2 },
			   .equal = true,
			   .spare = 2 };
	u32 count, i, j, k, blocks;
	struct itree_report r;

	(void)arg;
	tree_craft(&x, &c, &count);
	blocks = tree_blocks(&x);
	itree_close(&x.t);
	x.open = false;
	mem_end_op(&x.d, 0, 0);
	tree_close(&x);
	/* every leaf pointer to every leaf, all keys equal */
	for (i = 1; i < blocks; i++) {
		for (j = 1; j < blocks; j++) {
			for (k = 0; k < 2; k++) {
				int err = 0, n;

				tree_craft(&x, &c, &count);
				itree_close(&x.t);
				x.open = false;
				mem_end_op(&x.d, 0, 0);
				if (get(i, 5, 1) != 1 || get(i, 6, 2) <= k ||
				    get(i, 24 + 12 * k, 4) == LBLK(j)) {
					tree_close(&x);
					continue;
				}
				put(i, 24 + 12 * k, 4, LBLK(j));
				tree_open(&x, ROOMY);
				CHECK_EQ(itree_verify(&x.t, &r),
					 -ITREE_CORRUPT);
				tree_end_op(&x);
				for (n = 0; n < 10 && !err; n++) {
					err = itree_delete(&x.t, CRAFT_KEY(0));
					tree_end_op(&x);
				}
				CHECK(err < 0);
				CHECK(!x.t.torn);
				tree_close(&x);
			}
		}
	}
}

/* A node must not be merged with itself; equal keys fit all bounds. */
static void hostile_own_neighbour(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 2,
			   .side = CRAFT_FIRST,
			   .path = { 20, 3 },
			   .near = { 20 },
			   .equal = true };
	struct mem_snap s;
	u32 count, blocks;

	(void)arg;
	tree_craft(&x, &c, &count);
	put(0, 56 + 12, 4, get(0, 56, 4));
	blocks = tree_blocks(&x);
	mem_snap(&x.d, &s);
	CHECK_EQ(itree_delete(&x.t, CRAFT_KEY(0)), -ITREE_CORRUPT);
	CHECK(x.t.why && !x.t.torn);
	tree_end_op(&x);
	CHECK_EQ(mem_compare(&x.d, &s, blocks), blocks);
	mem_snap_free(&s);
	tree_close(&x);
}

/* The same across two parents, where only the block's own head can tell. */
static void hostile_freed_child(void *arg)
{
	struct craft c = { .block_size = 1024,
			   .depth = 3,
			   .side = CRAFT_FIRST,
			   .path = { 1, 2, 2 },
			   .near = { 120, 2, 2 },
			   .equal = true };
	struct itree_cursor cur;
	struct itree_report r;
	u32 count, n = 0;
	int err;

	(void)arg;
	tree_craft(&x, &c, &count);
	CHECK_EQ(get(1, 24, 4), LBLK(2));
	CHECK_EQ(get(4, 5, 1), 1);
	put(4, 24, 4, LBLK(2));
	CHECK_EQ(itree_verify(&x.t, &r), -ITREE_CORRUPT);
	tree_end_op(&x);
	CHECK(x.d.block[2].verified);
	CHECK_EQ(itree_delete(&x.t, CRAFT_KEY(0)), 0);
	tree_end_op(&x);
	CHECK_EQ(get(2, 0, 4), ITREE_FREE_MAGIC);
	x.d.block[2].verified = true;
	for (err = itree_seek(&x.t, 0, &cur); !err; err = itree_next(&cur))
		n++;
	itree_cursor_release(&cur);
	tree_end_op(&x);
	CHECK_EQ(err, -ITREE_CORRUPT);
	CHECK_EQ(n, 120);
	tree_close(&x);
}

/* A thousand small damages: verify agrees with the second opinion. */
static void hostile_random(void *arg)
{
	struct rng rng = { env_u64("ITREE_SEED", 1) };
	u32 rounds = (u32)env_u64("ITREE_ROUNDS", 3000), i, bad = 0;
	struct mem_snap s;
	u32 blocks;

	(void)arg;
	base_tree();
	blocks = (u32)get(0, BLOCKS, 4);
	mem_snap(&x.d, &s);
	for (i = 0; i < rounds; i++) {
		struct itree_report r;
		struct oracle o;
		u32 n = 1 + (u32)rng_below(&rng, 2);
		int err;

		mem_restore(&x.d, &s);
		while (n--) {
			u32 b = (u32)rng_below(&rng, blocks);
			u32 off = (u32)rng_below(&rng, 4)
					  ? (u32)rng_below(&rng, 100)
					  : (u32)rng_below(&rng, 1020);
			u64 v;

			switch (rng_below(&rng, 4)) {
			case 0:
				put(b, off, 1, rng_next(&rng));
				break;
			case 1:
				put(b, off, 1,
				    get(b, off, 1) ^ 1U << rng_below(&rng, 8));
				break;
			case 2: /* a likely pointer */
				off &= ~3U;
				put(b, off, 4, LBLK(rng_below(&rng, blocks)));
				break;
			default: /* another block's bytes */
				off &= ~3U;
				v = get((u32)rng_below(&rng, blocks), off, 4);
				put(b, off, 4, v);
				break;
			}
		}
		snprintf(test_note, sizeof(test_note), "seed %llu round %u",
			 env_u64("ITREE_SEED", 1), i);
		oracle_check(&x.d, ROOMY, &o);
		bad += o.why != NULL;
		err = itree_open(&x.t, &mem_ops, &x.d, 1024, ROOMY);
		if (!err) {
			err = itree_verify(&x.t, &r);
			itree_close(&x.t);
		}
		mem_end_op(&x.d, 0, 0);
		CHECKF(!err == !o.why, "%d, %s; %s, block %#x", err,
		       x.t.why ? x.t.why : "-", o.why ? o.why : "-", o.lblk);
		oracle_free(&o);
		exercise(false);
	}
	printf("# %u of %u damaged trees were invalid\n", bad, rounds);
	CHECK(bad > rounds / 4 && bad < rounds);
	mem_restore(&x.d, &s);
	mem_snap_free(&s);
	tree_close(&x);
}

static const struct {
	const char *name;
	void (*fn)(void *arg);
} tests[] = {
	{ "limits", limits },
	{ "hash_key", hash_key },
	{ "format, open, close", format_open_close },
	{ "open refuses", open_refuses },
	{ "no key and one key", empty_and_one },
	{ "seek in many keys", seek_many },
	{ "a block is checked once", checked_once },
	{ "without the checked operation", without_checked_op },
	{ "verify lets others run", verify_relaxes },
	{ "random inserts, descending inserts", random_fills },
	{ "a split leaves halves", split_in_half },
	{ "no append split inside the tree", no_append_in_the_middle },
	{ "merge below a quarter, into less than three", merge_bounds },
	{ "merges at every level", merge_cascades },
	{ "removals at every level", remove_cascades },
	{ "root takes its only child in", collapse },
	{ "root takes its only child in, all ways", collapse_ways },
	{ "no thrashing", no_thrash },
	{ "free list is used again", free_list_reuse },
	{ "a queue stays small", queue_stays_small },
	{ "reserve keeps its word", reserve_keeps_word },
	{ "reserve takes no more than needed", reserve_needs_no_more },
	{ "no space", no_space },
	{ "depth limit", depth_limit },
	{ "equal keys", equal_keys },
	{ "equal keys, first of them", equal_keys_first },
	{ "largest keys", largest_keys },
	{ "bulk load block counts", bulk_blocks },
	{ "bulk load refuses", bulk_refuses },
	{ "hostile free list", hostile_free_list },
	{ "hostile free list, insert", hostile_insert_takes },
	{ "hostile root leaf", hostile_root_leaf },
	{ "hostile root, refused by open", hostile_open },
	{ "hostile child behind the end", hostile_behind_the_end },
	{ "hostile keys beyond the grandparent", hostile_grandparent },
	{ "hostile empty nodes", hostile_empty_nodes },
	{ "hostile number of keys", hostile_key_total },
	{ "hostile node on the way", hostile_on_the_way },
	{ "hostile child shared", hostile_shared_child },
	{ "hostile neighbour is the node", hostile_own_neighbour },
	{ "hostile child shared and freed", hostile_freed_child },
	/* those that take long */
	{ "hostile, random damage", hostile_random },
	{ "append fills leaves", append_fills },
	{ "bulk load sizes", bulk_sizes },
};

int main(void)
{
	char name[128];
	u32 i;

	for (i = 0; i < ARRAY_SIZE(tests); i++)
		test_run(tests[i].name, tests[i].fn, NULL);
	for (i = 0; i < ARRAY_SIZE(damages); i++) {
		snprintf(name, sizeof(name), "hostile %s", damages[i].name);
		test_run(name, hostile, (void *)(uintptr_t)&damages[i]);
	}
	return test_done();
}
