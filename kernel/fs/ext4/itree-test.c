// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of the itree in ext4: what depends on the kernel around the
 * core.  The core itself has a far larger suite outside the kernel.
 *
 * Included by itree_scan.c.
 */
#include <kunit/test.h>
#include "itree_online.h"

#define TEST_BLOCK	1024
#define TEST_BLOCKS	64

/* A tree in plain memory. */
struct test_tree {
	struct itree	t;
	u8		*block[TEST_BLOCKS];
	struct kunit	*test;
};

static int test_read(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct test_tree *tt = container_of(t, struct test_tree, t);
	u32 n = lblk - ITREE_SEG_START;

	if (n >= TEST_BLOCKS || !tt->block[n])
		return -EIO;
	buf->data = tt->block[n];
	return 0;
}

static int test_grow(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct test_tree *tt = container_of(t, struct test_tree, t);
	u32 n = lblk - ITREE_SEG_START;

	if (n >= TEST_BLOCKS)
		return -ENOSPC;
	tt->block[n] = kunit_kzalloc(tt->test, TEST_BLOCK, GFP_KERNEL);
	buf->data = tt->block[n];
	return buf->data ? 0 : -ENOMEM;
}

static int test_nothing(struct itree *t, struct itree_buf *buf)
{
	return 0;
}

static void test_release(struct itree *t, struct itree_buf *buf)
{
}

static void *test_alloc(struct itree *t, size_t bytes)
{
	return kzalloc(bytes, GFP_KERNEL);
}

static void test_free(struct itree *t, void *mem)
{
	kfree(mem);
}

static const struct itree_ops test_ops = {
	.read		= test_read,
	.grow		= test_grow,
	.access		= test_nothing,
	.dirty		= test_nothing,
	.release	= test_release,
	.alloc		= test_alloc,
	.free		= test_free,
};

/* Each key and its neighbours, with each guess, against a walk. */
static void itree_test_find_key(struct kunit *test)
{
	static const u64 keys[] = { 3, 5, 5, 5, 6, 9, 20, 20, 21, ~0ULL };
	u32 nr, guess, want;
	u64 key;

	for (nr = 0; nr <= ARRAY_SIZE(keys); nr++) {
		for (key = 0; key < 24; key++) {
			for (want = 0; want < nr && keys[want] < key;)
				want++;
			for (guess = 0; guess < ARRAY_SIZE(keys) + 2; guess++)
				KUNIT_EXPECT_EQ(test, want,
						ext4_itree_find_key(keys, nr,
								    key,
								    guess));
		}
	}
}

/* Positions and keys have the same order, and both ends fit. */
static void itree_test_positions(struct kunit *test)
{
	static const u64 keys[] = {
		KEY_DOTDOT, ITREE_KEY(2, 0), ITREE_KEY(11, 0x4000),
		ITREE_KEY(11, 0x80000000), ITREE_KEY(11, 0xffffc000),
		ITREE_KEY(12, 0), ITREE_KEY(0x7fffffff, 0xffffc000),
		ITREE_KEY(0x80000000, 0), ITREE_KEY(0xffffffff, 0xffffc000),
	};
	const u32 id = PASS_IDS - 1;
	loff_t last = 0;
	int i;

	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		loff_t pos = key_to_pos(keys[i], id);

		KUNIT_EXPECT_GT(test, pos, last);
		KUNIT_EXPECT_LT(test, pos, (loff_t)POS_HASH);
		KUNIT_EXPECT_GE(test, pos, (loff_t)POS_FIRST);
		KUNIT_EXPECT_EQ(test, pos_to_key(pos), keys[i]);
		KUNIT_EXPECT_EQ(test, pos >> POS_PASS_SHIFT & (PASS_IDS - 1),
				id);
		last = pos;
	}
	KUNIT_EXPECT_EQ(test, key_to_pos(KEY_DOT, id), 0);
	KUNIT_EXPECT_EQ(test, pos_to_key(0), KEY_DOT);
	/* Within an inode, a position never skips a name. */
	for (i = 0; i < 20; i++) {
		u64 key = ITREE_KEY(11, 5000 * i);

		KUNIT_EXPECT_LE(test, pos_to_key(key_to_pos(key, id)), key);
	}
}

/* Positions in hash order: all hashes fit, and lie below the end. */
static void itree_test_hash_positions(struct kunit *test)
{
	static const u32 hashes[] = { 0, 2, 0x7ffffffe, 0x80000000, 0xfffffffc };
	int i;

	for (i = 0; i < ARRAY_SIZE(hashes); i++) {
		loff_t pos = ext4_itree_hash_pos(PASS_IDS - 1, hashes[i], ~0U);

		KUNIT_EXPECT_GE(test, pos, (loff_t)POS_HASH);
		KUNIT_EXPECT_LT(test, pos, (loff_t)EXT4_HTREE_EOF_64BIT);
		KUNIT_EXPECT_EQ(test, ext4_itree_pos_hash(pos), hashes[i]);
		KUNIT_EXPECT_EQ(test, ext4_itree_pos_minor(pos), 0xffffc000);
		KUNIT_EXPECT_EQ(test, pos >> POS_PASS_SHIFT & (PASS_IDS - 1),
				PASS_IDS - 1);
	}
	KUNIT_EXPECT_EQ(test, ext4_itree_pos_hash(0), 0);
	KUNIT_EXPECT_EQ(test, ext4_itree_pos_minor(0), 0);
}

/* The core compiled for the kernel splits, iterates, merges and verifies. */
static void itree_test_core(struct kunit *test)
{
	const u32 count = 2000;
	struct test_tree *tt;
	struct itree_report report;
	struct itree_cursor cur;
	u32 i;
	int ret;

	tt = kunit_kzalloc(test, sizeof(*tt), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, tt);
	tt->test = test;
	ret = itree_format(&tt->t, &test_ops, NULL, TEST_BLOCK, TEST_BLOCKS,
			   DX_HASH_HALF_MD4);
	KUNIT_ASSERT_EQ(test, ret, 0);
	/* 7919 is prime, so each key comes once, in no order. */
	for (i = 0; i < count; i++) {
		KUNIT_ASSERT_EQ(test, itree_reserve(&tt->t, 1), 0);
		ret = itree_insert(&tt->t, ITREE_KEY(11 + i * 7919 % count,
						     i << 1));
		KUNIT_ASSERT_EQ(test, ret, 0);
	}
	KUNIT_ASSERT_EQ(test, itree_verify(&tt->t, &report), 0);
	KUNIT_EXPECT_EQ(test, report.keys, count);
	KUNIT_EXPECT_GT(test, tt->t.splits, 0);

	ret = itree_seek(&tt->t, 0, &cur);
	for (i = 0; !ret; i++) {
		KUNIT_ASSERT_EQ(test, ITREE_KEY_INO(itree_cursor_key(&cur)),
				11 + i);
		ret = itree_next(&cur);
	}
	itree_cursor_release(&cur);
	KUNIT_EXPECT_EQ(test, ret, ITREE_END);
	KUNIT_EXPECT_EQ(test, i, count);

	for (i = 0; i < count; i++) {
		ret = itree_delete(&tt->t, ITREE_KEY(11 + i * 7919 % count,
						     i << 1));
		KUNIT_ASSERT_EQ(test, ret, 0);
	}
	KUNIT_ASSERT_EQ(test, itree_verify(&tt->t, &report), 0);
	KUNIT_EXPECT_EQ(test, report.keys, 0);
	KUNIT_EXPECT_EQ(test, report.depth, 1);
	itree_close(&tt->t);
}

/* A block that is not a node is refused, with the reason. */
static void itree_test_hostile(struct kunit *test)
{
	struct test_tree *tt;

	tt = kunit_kzalloc(test, sizeof(*tt), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, tt);
	tt->test = test;
	tt->block[0] = kunit_kzalloc(test, TEST_BLOCK, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, tt->block[0]);
	KUNIT_EXPECT_EQ(test, itree_open(&tt->t, &test_ops, NULL, TEST_BLOCK,
					 TEST_BLOCKS), -EFSCORRUPTED);
	KUNIT_EXPECT_NOT_NULL(test, tt->t.why);
}

/* The bytes of all large windows together are bounded and given back. */
static void itree_test_room(struct kunit *test)
{
	struct ext4_itree_scan *s;
	u32 nr, i, most = 1000, short_names, long_names;
	struct inode *dir;

	dir = kunit_kzalloc(test, sizeof(*dir), GFP_KERNEL);
	s = kunit_kcalloc(test, most, sizeof(*s), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, dir);
	KUNIT_ASSERT_NOT_NULL(test, s);
	dir->i_size = 1 << 30;
	dir->i_blkbits = 10;
	for (i = 0; i < most; i++) {
		s[i].dir = dir;
		s[i].count.total = (1 << 30) / 16;
		s[i].size.want = ext4_itree_window_limit(&s[i]);
	}
	short_names = s[0].size.want;
	s[0].count.total = (1 << 30) / 300;
	long_names = ext4_itree_window_limit(&s[0]);
	s[0].count.total = s[1].count.total;
	/* Names already seen count more than the size of the directory. */
	s[0].size.text_names = 1000;
	s[0].size.text_bytes = 250000;
	KUNIT_EXPECT_LE(test, ext4_itree_window_limit(&s[0]), long_names);
	s[0].size.text_names = 0;
	KUNIT_EXPECT_GE(test, long_names, WINDOW_MAX);
	KUNIT_EXPECT_LE(test, long_names, short_names);
	KUNIT_EXPECT_LE(test, short_names, WINDOW_LARGE);

	for (nr = 0; nr < most && ext4_itree_borrow_room(&s[nr]); nr++) {
		KUNIT_EXPECT_GE(test, s[nr].size.borrowed, 16UL * s[nr].size.want);
		KUNIT_EXPECT_GE(test, s[nr].size.text_room, 16UL * s[nr].size.want);
		KUNIT_EXPECT_LT(test, s[nr].size.text_room, s[nr].size.borrowed);
	}
	KUNIT_ASSERT_GT(test, nr, 0);
	KUNIT_ASSERT_LT(test, nr, most);
	KUNIT_EXPECT_EQ(test, s[nr].size.borrowed, 0);
	KUNIT_EXPECT_FALSE(test, ext4_itree_borrow_room(&s[nr]));
	ext4_itree_return_room(&s[0]);
	KUNIT_EXPECT_EQ(test, s[0].size.borrowed, 0);
	KUNIT_EXPECT_TRUE(test, ext4_itree_borrow_room(&s[nr]));
	for (i = 0; i <= nr; i++)
		ext4_itree_return_room(&s[i]);
}

static struct kunit_case ext4_itree_cases[] = {
	KUNIT_CASE(itree_test_find_key),
	KUNIT_CASE(itree_test_positions),
	KUNIT_CASE(itree_test_hash_positions),
	KUNIT_CASE(itree_test_core),
	KUNIT_CASE(itree_test_hostile),
	KUNIT_CASE(itree_test_room),
	{}
};

static struct kunit_suite ext4_itree_suite = {
	.name = "ext4_itree_test",
	.test_cases = ext4_itree_cases,
};

kunit_test_suites(&ext4_itree_suite);
