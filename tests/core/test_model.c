// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random sequences of operations against a sorted array.
 *
 * A step is one operation, or with larger blocks a burst of them, as more are
 * needed there until a node splits or merges.  After each step the tree is
 * verified and compared as a whole while that costs little; a larger tree
 * every so many steps.
 *
 * ITREE_SEED=n starts another sequence, ITREE_ROUNDS=n repeats with n seeds.
 */
#include "test.h"
#include "tree.h"

#define KEYS_A_STEP 1200 /* checked on average */

static const u32 block_sizes[] = {
	1024, 2048, 4096, 8192, 16384, 32768, 65536
};

static struct tree x;

static struct run {
	struct rng rng;
	u32 block_size;
	u32 burst; /* operations a step */
	size_t target; /* keys to reach */
	u64 ops;
	u64 credit; /* keys that may be checked */
	u64 checks;
	u32 depth; /* seen */
	u32 ino;
	bool light; /* rarer checks: a large tree */
} run;

static u64 pick(u64 n)
{
	return rng_below(&run.rng, n);
}

static u64 random_key(void)
{
	return rng_next(&run.rng) & ~1ULL;
}

static void step_done(void)
{
	struct itree_info info;

	itree_get_info(&x.t, &info);
	if (info.depth > run.depth)
		run.depth = info.depth;
	if (!pick(64))
		mem_drop_caches(&x.d);
	if (!pick(300)) {
		u32 splits = x.t.splits, merges = x.t.merges;

		itree_close(&x.t);
		x.open = false;
		mem_end_op(&x.d, 0, 0);
		if (pick(2))
			mem_drop_caches(&x.d);
		tree_open(&x, ROOMY);
		x.t.splits = splits;
		x.t.merges = merges;
	}
	tree_check_info(&x);
	if (x.m.n)
		tree_check_seek(&x, x.m.key[pick(x.m.n)] + pick(3) - 1);
	if (!pick(4))
		tree_check_seek(&x, random_key());
	run.credit += run.light ? KEYS_A_STEP / 20 : KEYS_A_STEP;
	if (run.credit < x.m.n)
		return;
	if (x.m.n)
		run.credit -= run.credit > 2 * x.m.n ? run.credit : x.m.n;
	run.checks++;
	tree_check(&x);
}

static void count_op(void)
{
	if (++run.ops % run.burst == 0)
		step_done();
}

static void insert(u64 key)
{
	tree_insert(&x, key);
	count_op();
}

static void delete (u64 key)
{
	tree_delete(&x, key);
	count_op();
}

static void delete_at(size_t at)
{
	if (x.m.n)
		delete (x.m.key[at]);
}

/* Part of the keys at once, where one by one takes long. */
static void bulk_start(size_t n)
{
	struct bulk_keys b;
	u64 key = 0;

	if (!n)
		return;
	CHECK(!x.m.n);
	while (x.m.n < n) {
		if (pick(8))
			key += 2 * (1 + pick(1ULL << 45));
		model_insert(&x.m, key);
	}
	/* a tree that was in use cannot be loaded: make a new one */
	itree_close(&x.t);
	CHECK_EQ(itree_format(&x.t, &mem_ops, &x.d, run.block_size, ROOMY, 1),
		 0);
	tree_end_op(&x);
	b = (struct bulk_keys){ .key = x.m.key, .n = n };
	CHECK_EQ(itree_bulk_load(&x.t, n, bulk_next, &b), 0);
	tree_end_op(&x);
	tree_check(&x);
}

static size_t head_start(void)
{
	return run.block_size > 8192 ? run.target * 3 / 4 : 0;
}

static void p_ascending(void)
{
	while (x.m.n < run.target)
		insert(ITREE_KEY(++run.ino, random_key()));
	/* then holes are filled, as inodes are used again */
	while (x.m.n < run.target * 5 / 4)
		insert(ITREE_KEY(1 + pick(run.ino), random_key()));
}

static void p_random(void)
{
	bulk_start(head_start());
	while (x.m.n < run.target)
		insert(random_key());
}

static void p_duplicates(void)
{
	u64 pool[6];
	u32 i;

	for (i = 0; i < ARRAY_SIZE(pool); i++)
		pool[i] = random_key();
	while (x.m.n < run.target) {
		u64 key = pool[pick(ARRAY_SIZE(pool))];

		if (pick(10) < 8)
			insert(key);
		else if (pick(10))
			delete (key);
		else
			insert(key + pick(3) - 1);
		if (!pick(500))
			pool[pick(ARRAY_SIZE(pool))] = random_key();
	}
	while (x.m.n)
		delete_at(pick(x.m.n));
}

static void p_mass_delete(void)
{
	u32 round;

	for (round = 0; round < 2; round++) {
		bulk_start(head_start());
		while (x.m.n < run.target)
			insert(random_key());
		while (x.m.n)
			delete_at(pick(x.m.n));
		tree_check(&x);
	}
}

static void p_delete_ascending(void)
{
	bulk_start(head_start());
	while (x.m.n < run.target)
		insert(pick(2) ? random_key() : ITREE_KEY(++run.ino, 0));
	while (x.m.n)
		delete_at(pick(20) ? 0 : pick(x.m.n < 20 ? x.m.n : 20));
}

static void p_delete_descending(void)
{
	bulk_start(head_start());
	while (x.m.n < run.target)
		insert(pick(2) ? random_key() : ITREE_KEY(++run.ino, 0));
	while (x.m.n)
		delete_at(x.m.n - 1 -
			  (pick(20) ? 0 : pick(x.m.n < 20 ? x.m.n : 20)));
}

static void p_queue(void)
{
	size_t window = run.target / 3;
	u64 i;

	for (i = 0; i < run.target * 2; i++) {
		insert(ITREE_KEY(++run.ino, random_key()));
		while (x.m.n > window)
			delete_at(0);
		if (!pick(run.target / 2))
			window = pick(run.target / 2) + 1;
	}
}

/* Creates and deletes 7 : 3, freed inodes first: how a directory ages. */
static void p_aged(void)
{
	u32 *freed = xcalloc(run.target * 4, sizeof(*freed));
	size_t nfreed = 0;

	while (x.m.n < run.target) {
		if (x.m.n && pick(10) < 3) {
			size_t at = pick(x.m.n);

			freed[nfreed++] = ITREE_KEY_INO(x.m.key[at]);
			delete_at(at);
		} else if (nfreed && pick(4)) {
			insert(ITREE_KEY(freed[--nfreed], random_key()));
		} else {
			insert(ITREE_KEY(++run.ino, random_key()));
		}
		/* link and rename: another name, another inode */
		if (x.m.n && !pick(50))
			insert(ITREE_KEY(ITREE_KEY_INO(x.m.key[pick(x.m.n)]),
					 random_key()));
		if (nfreed == run.target * 4 - 1)
			nfreed = 0;
	}
	free(freed);
}

/* Everything, in short phases; reserves ahead of time; keys not there. */
static void p_mixed(void)
{
	u64 phases = 60, n, i;

	bulk_start(head_start());
	while (phases--) {
		u64 base = random_key(), length = run.target / 16 + 1;

		n = 1 + pick(length * 2);
		switch (pick(9)) {
		case 0:
			for (i = 0; i < n; i++)
				insert(random_key());
			break;
		case 1:
			for (i = 0; i < n; i++)
				insert(base + i * 2);
			break;
		case 2:
			for (i = 0; i < n; i++)
				insert(base - i * 2);
			break;
		case 3:
			for (i = 0; i < n; i++)
				insert(base);
			break;
		case 4:
			for (i = 0; i < n && x.m.n; i++)
				delete_at(pick(x.m.n));
			break;
		case 5: /* a stretch */
			for (i = pick(x.m.n + 1); n-- && i < x.m.n;)
				delete_at(i);
			break;
		case 6: /* not there, mostly */
			for (i = 0; i < 10; i++)
				delete (random_key());
			if (x.m.n)
				delete (x.m.key[pick(x.m.n)] + 1);
			break;
		case 7:
			n = 1 + pick(20);
			tree_reserve(&x, (u32)n);
			base = x.m.n && pick(2) ? x.m.key[pick(x.m.n)] : base;
			for (i = 0; i < n; i++)
				tree_insert_reserved(&x, base + i * pick(3));
			count_op();
			break;
		default: /* there and back */
			for (i = 0; i < n; i++)
				insert(base + i);
			while (i--)
				delete (base + i);
			break;
		}
	}
}

static const struct profile {
	const char *name;
	void (*fn)(void);
} profiles[] = {
	{ "dense ascending", p_ascending },
	{ "random", p_random },
	{ "duplicates", p_duplicates },
	{ "mass delete", p_mass_delete },
	{ "delete ascending", p_delete_ascending },
	{ "delete descending", p_delete_descending },
	{ "queue", p_queue },
	{ "aged", p_aged },
	{ "mixed", p_mixed },
};

struct job {
	const struct profile *p;
	u32 block_size;
	u32 leaves; /* target in full leaves */
	u64 seed;
	bool light;
};

static void work(void *arg)
{
	const struct job *j = arg;

	memset(&run, 0, sizeof(run));
	run.rng.s = j->seed;
	run.block_size = j->block_size;
	run.light = j->light;
	run.burst = j->block_size / 1024;
	run.target = (size_t)j->leaves * itree_limit(j->block_size, false, 0);
	run.ino = 11;
	snprintf(test_note, sizeof(test_note),
		 "%s, block size %u, ITREE_SEED=%llu", j->p->name,
		 j->block_size, env_u64("ITREE_SEED", 1));
	tree_format(&x, j->block_size, ROOMY);
	j->p->fn();
	tree_check(&x);
	printf("# %llu operations, %llu full checks, depth %u, %u splits, %u merges\n",
	       run.ops, run.checks, run.depth, x.t.splits, x.t.merges);
	tree_close(&x);
}

int main(void)
{
	u64 seed = env_u64("ITREE_SEED", 1),
	    rounds = env_u64("ITREE_ROUNDS", 1);
	u64 round;
	char name[128];
	u32 b, p;

	printf("# ITREE_SEED=%llu ITREE_ROUNDS=%llu\n", seed, rounds);
	for (round = 0; round < rounds; round++) {
		for (b = 0; b < ARRAY_SIZE(block_sizes); b++) {
			for (p = 0; p < ARRAY_SIZE(profiles); p++) {
				struct rng rng = { seed + round };
				struct job j = {
					.p = &profiles[p],
					.block_size = block_sizes[b],
				};

				j.leaves = j.block_size > 4096 ? 3 : 8;
				j.seed = rng_next(&rng) + b * 1000 + p;
				snprintf(name, sizeof(name),
					 "model %s, block size %u, seed %llu",
					 j.p->name, j.block_size, seed + round);
				test_run(name, work, &j);
			}
		}
		/* three levels, and down again */
		for (p = 0; p < ARRAY_SIZE(profiles); p++) {
			struct job j = { .p = &profiles[p],
					 .block_size = 1024,
					 .leaves = 95,
					 .seed = seed + round + p,
					 .light = true };

			snprintf(name, sizeof(name),
				 "model %s, large tree, seed %llu", j.p->name,
				 seed + round);
			test_run(name, work, &j);
		}
	}
	return test_done();
}
