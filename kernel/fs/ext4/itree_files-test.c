// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of the detector of readers in inode order.
 *
 * Included by itree_files.c.
 */
#include <kunit/test.h>

#define TEST_FILES	1000U
/* Inode numbers of a directory, which are not all next to each other. */
#define TEST_INO(n)	(1000U + (n) * 3)

/* Reads files @from to @to.  Returns how many runs were due. */
static u32 test_read(struct ext4_itree_streams *t, u32 from, u32 to, bool miss)
{
	struct ext4_itree_stream *s;
	u32 i, runs = 0;

	for (i = from; i < to; i++) {
		s = stream_note(t, TEST_INO(i), miss);
		if (!s)
			continue;
		runs++;
		stream_stop(s);
	}
	return runs;
}

/* Reads files from @i on until a run is due; sets @i behind the last one. */
static struct ext4_itree_stream *test_until_run(struct ext4_itree_streams *t,
						u32 *i, bool miss)
{
	struct ext4_itree_stream *s;

	do {
		s = stream_note(t, TEST_INO((*i)++), miss);
	} while (!s);
	return s;
}

/* Reads ahead of a reader that is at file @at, as read_run() would. */
static u32 test_run(struct ext4_itree_stream *s, u32 at)
{
	u32 run = s->run, left = run / LEFT_SHARE;

	stream_go_on(s, TEST_INO(at + 1), TEST_INO(at + 1 + run),
		     TEST_INO(at + run - left), run - left - 1);
	return run;
}

static void itree_test_streak(struct kunit *test)
{
	struct ext4_itree_streams t = { };

	KUNIT_EXPECT_EQ(test, test_read(&t, 0, STREAK - 1, true), 0);
	KUNIT_EXPECT_EQ(test, test_read(&t, STREAK - 1, STREAK, true), 1);
}

static void itree_test_hits_begin_nothing(struct kunit *test)
{
	struct ext4_itree_streams t = { };

	KUNIT_EXPECT_EQ(test, test_read(&t, 0, TEST_FILES, false), 0);
}

static void itree_test_backwards(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	u32 i;

	for (i = TEST_FILES; i; i--)
		KUNIT_EXPECT_NULL(test, stream_note(&t, TEST_INO(i), true));
}

/* Threads that share the files out among them are not quite in order. */
static void itree_test_jitter(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	u32 i;

	for (i = 0; i < 4 * STREAK; i++)
		if (stream_note(&t, TEST_INO(i ^ 3), true))
			break;
	KUNIT_EXPECT_LT(test, i, 4 * STREAK);
}

/* Reads that skip too many files are not a streak. */
static void itree_test_sparse(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	u32 i;

	for (i = 0; i < 4 * STREAK; i++)
		KUNIT_EXPECT_NULL(test, stream_note(&t, 1 + i * STREAK_SPAN / 4,
						    true));
}

/* Two readers far apart take turns, and each is followed. */
static void itree_test_two_readers(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *one = NULL, *two = NULL;
	u32 i;

	for (i = 0; i < STREAK; i++) {
		one = stream_note(&t, TEST_INO(i), true);
		two = stream_note(&t, TEST_INO(i) + 4 * STREAM_NEAR, true);
	}
	KUNIT_ASSERT_NOT_NULL(test, one);
	KUNIT_ASSERT_NOT_NULL(test, two);
	KUNIT_EXPECT_PTR_NE(test, one, two);
}

/* Each run that is used makes the next one longer, up to a limit. */
static void itree_test_grows(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, run = 0, last;

	s = test_until_run(&t, &i, true);
	while (run < RUN_MAX) {
		last = run;
		run = test_run(s, i - 1);
		KUNIT_EXPECT_EQ(test, run, !last ? RUN_MIN :
					   last < RUN_SURE ? 2 * last : 4 * last);
		s = test_until_run(&t, &i, false);
	}
	test_run(s, i - 1);
	s = test_until_run(&t, &i, false);
	KUNIT_EXPECT_EQ(test, s->run, RUN_MAX);
}

/* A reader that jumps to the end of its run has not used it. */
static void itree_test_unused(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, run;

	s = test_until_run(&t, &i, true);
	run = test_run(s, i - 1);
	KUNIT_EXPECT_NULL(test, stream_note(&t, TEST_INO(i + run), true));
	KUNIT_EXPECT_EQ(test, s->end, 0);
	KUNIT_EXPECT_EQ(test, s->run, RUN_MIN);
}

/* Other threads of the reader come past a run while it is read. */
static void itree_test_overtaken(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, at;

	s = test_until_run(&t, &i, true);
	at = i - 1;
	for (; i < at + 2 * RUN_MIN; i++)
		KUNIT_EXPECT_NULL(test, stream_note(&t, TEST_INO(i), true));
	test_run(s, at);
	s = stream_note(&t, TEST_INO(i), true);
	KUNIT_ASSERT_NOT_NULL(test, s);
	KUNIT_EXPECT_EQ(test, s->run, 2 * RUN_MIN);
}

/* Files evicted before use make runs shorter, and runs stay so. */
static void itree_test_gone(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, run = 0;

	s = test_until_run(&t, &i, true);
	while (run < 64 * RUN_MIN) {
		run = test_run(s, i - 1);
		s = test_until_run(&t, &i, false);
	}
	run = test_run(s, i - 1);
	for (s = NULL; !s; i++)
		s = stream_note(&t, TEST_INO(i), i % 4 == 0);
	KUNIT_EXPECT_EQ(test, s->run, run - run / 4);
	test_run(s, i - 1);
	s = test_until_run(&t, &i, false);
	KUNIT_EXPECT_EQ(test, s->run, run - run / 4);
}

/* A reader whose inodes are not in memory tries again, but not for ever. */
static void itree_test_wait(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, tries;

	s = test_until_run(&t, &i, true);
	for (tries = 0; s; tries++) {
		u32 until = i + STREAK;

		stream_wait(s, TEST_INO(i));
		for (s = NULL; !s && i < until; i++)
			s = stream_note(&t, TEST_INO(i), true);
	}
	KUNIT_EXPECT_EQ(test, tries, TRIES_MAX + 1);
}

/* A reader whose run is being read is not taken for another. */
static void itree_test_busy(struct kunit *test)
{
	struct ext4_itree_streams t = { };
	struct ext4_itree_stream *s;
	u32 i = 0, far;

	s = test_until_run(&t, &i, true);
	for (far = 1; far <= 2 * STREAMS; far++)
		stream_note(&t, far * 8 * STREAM_NEAR, true);
	KUNIT_EXPECT_TRUE(test, s->busy);
	KUNIT_EXPECT_EQ(test, s->last, TEST_INO(i - 1));
	KUNIT_EXPECT_NULL(test, stream_note(&t, TEST_INO(i), true));
}

static struct kunit_case itree_files_cases[] = {
	KUNIT_CASE(itree_test_streak),
	KUNIT_CASE(itree_test_hits_begin_nothing),
	KUNIT_CASE(itree_test_backwards),
	KUNIT_CASE(itree_test_jitter),
	KUNIT_CASE(itree_test_sparse),
	KUNIT_CASE(itree_test_two_readers),
	KUNIT_CASE(itree_test_grows),
	KUNIT_CASE(itree_test_unused),
	KUNIT_CASE(itree_test_overtaken),
	KUNIT_CASE(itree_test_gone),
	KUNIT_CASE(itree_test_wait),
	KUNIT_CASE(itree_test_busy),
	{}
};

static struct kunit_suite itree_files_suite = {
	.name = "ext4_itree_files_test",
	.test_cases = itree_files_cases,
};

kunit_test_suites(&itree_files_suite);
