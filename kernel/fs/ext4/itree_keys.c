// SPDX-License-Identifier: GPL-2.0-only
/*
 * All keys of a directory, gathered in any order and read in sorted order.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "ext4.h"
#include "itree.h"
#include "itree_online.h"

#define RUN_KEYS	EXT4_ITREE_RUN_KEYS
#define KEYS_GFP	(GFP_KERNEL_ACCOUNT | __GFP_NOWARN | __GFP_RETRY_MAYFAIL)

/**
 * ext4_itree_keys_init - start with no keys
 * @k: to be freed by ext4_itree_keys_free()
 *
 * Takes at most a quarter of the machine's memory; the caller may lower @k->max.
 */
void ext4_itree_keys_init(struct ext4_itree_keys *k)
{
	memset(k, 0, sizeof(*k));
	k->max = (u64)totalram_pages() * (PAGE_SIZE / sizeof(u64)) / 4;
}

static int add_run(struct ext4_itree_keys *k)
{
	if (k->nr_runs == k->max_runs) {
		u32 max = max(2 * k->max_runs, 16U);
		u64 **run = kvmalloc_array(max, sizeof(*run), KEYS_GFP);

		if (!run)
			return -ENOMEM;
		if (k->nr_runs)
			memcpy(run, k->run, k->nr_runs * sizeof(*run));
		kvfree(k->run);
		k->run = run;
		k->max_runs = max;
	}
	k->run[k->nr_runs] = kvmalloc_array(RUN_KEYS, sizeof(u64), KEYS_GFP);
	if (!k->run[k->nr_runs])
		return -ENOMEM;
	k->nr_runs++;
	return 0;
}

/* Returns how many keys can be added without an allocation. */
u64 ext4_itree_keys_room(const struct ext4_itree_keys *k)
{
	return (u64)k->nr_runs * RUN_KEYS - k->nr;
}

/**
 * ext4_itree_keys_reserve - make room for more keys
 * @k: keys
 * @nr: how many
 *
 * May wait in reclaim, so call it with no locks held.  Returns 0 or -ENOMEM.
 */
int ext4_itree_keys_reserve(struct ext4_itree_keys *k, u32 nr)
{
	int err = 0;

	while (!err && ext4_itree_keys_room(k) < nr)
		err = add_run(k);
	return err;
}

/**
 * ext4_itree_keys_add - add a key
 * @k: keys
 * @key: need not be new
 *
 * Sleeps if no room was reserved.  Returns 0 or -ENOMEM.
 */
int ext4_itree_keys_add(struct ext4_itree_keys *k, u64 key)
{
	int err;

	if (k->nr >= k->max)
		return -ENOMEM;
	err = ext4_itree_keys_reserve(k, 1);
	if (err)
		return err;
	k->run[k->nr / RUN_KEYS][k->nr % RUN_KEYS] = key;
	k->nr++;
	return 0;
}

/* The last run with keys may not be full, and reserved runs are empty. */
static u32 run_len(const struct ext4_itree_keys *k, u32 run)
{
	u64 before = (u64)run * RUN_KEYS;

	return k->nr > before ? min_t(u64, k->nr - before, RUN_KEYS) : 0;
}

static int cmp_keys(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

/**
 * ext4_itree_keys_tidy - sort the runs that are full
 * @k: keys
 *
 * Call this now and then while keys are gathered, with no locks held.
 */
void ext4_itree_keys_tidy(struct ext4_itree_keys *k)
{
	while (k->sorted < k->nr_runs && run_len(k, k->sorted) == RUN_KEYS) {
		sort(k->run[k->sorted++], RUN_KEYS, sizeof(u64), cmp_keys,
		     NULL);
		cond_resched();
	}
}

static u64 head(const struct ext4_itree_keys *k, u32 at)
{
	u32 run = k->heap[at];

	return k->run[run][k->pos[run]];
}

static void sift_down(struct ext4_itree_keys *k, u32 at)
{
	u32 child;

	while ((child = 2 * at + 1) < k->nr_heap) {
		if (child + 1 < k->nr_heap &&
		    head(k, child + 1) < head(k, child))
			child++;
		if (head(k, at) <= head(k, child))
			break;
		swap(k->heap[at], k->heap[child]);
		at = child;
	}
}

/**
 * ext4_itree_keys_merge - get ready to read all keys in order
 * @k: keys; no more can be added
 *
 * Sorts, so call it with no locks held.  Returns 0 or -ENOMEM.
 */
int ext4_itree_keys_merge(struct ext4_itree_keys *k)
{
	ext4_itree_keys_tidy(k);
	if (k->sorted < k->nr_runs && run_len(k, k->sorted))
		sort(k->run[k->sorted], run_len(k, k->sorted), sizeof(u64),
		     cmp_keys, NULL);
	k->sorted = k->nr_runs;
	k->pos = kvcalloc(k->nr_runs + 1, sizeof(*k->pos), KEYS_GFP);
	k->heap = kvcalloc(k->nr_runs + 1, sizeof(*k->heap), KEYS_GFP);
	if (!k->pos || !k->heap)
		return -ENOMEM;
	ext4_itree_keys_seek(k, 0);
	return 0;
}

/**
 * ext4_itree_find_key - find the first key that is not below a key
 * @keys: in ascending order
 * @nr: how many
 * @key: need not be among them
 * @guess: a place that may be near; the cost is that of a binary search over
 *	twice its distance
 *
 * Returns a place of 0 to @nr.
 */
u32 ext4_itree_find_key(const u64 *keys, u32 nr, u64 key, u32 guess)
{
	u32 lo = 0, hi = nr, step = 1;

	if (!nr)
		return 0;
	guess = min(guess, nr - 1);
	if (keys[guess] < key) {
		lo = guess + 1;
		for (; step < nr - guess && keys[guess + step] < key; step *= 2)
			lo = guess + step + 1;
		hi = min(guess + step, nr);
	} else {
		hi = guess;
		for (; step <= guess && keys[guess - step] >= key; step *= 2)
			hi = guess - step;
		lo = step <= guess ? guess - step + 1 : 0;
	}
	while (lo < hi) {
		u32 mid = lo + (hi - lo) / 2;

		if (keys[mid] < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/**
 * ext4_itree_keys_seek - go to the first key that is not below @key
 * @k: keys, after ext4_itree_keys_merge()
 * @key: need not be among them
 */
void ext4_itree_keys_seek(struct ext4_itree_keys *k, u64 key)
{
	u32 i;

	k->nr_heap = 0;
	for (i = 0; i < k->nr_runs; i++) {
		u32 len = run_len(k, i);

		k->pos[i] = ext4_itree_find_key(k->run[i], len, key, len / 2);
		if (k->pos[i] < len)
			k->heap[k->nr_heap++] = i;
	}
	for (i = k->nr_heap / 2; i; i--)
		sift_down(k, i - 1);
}

/**
 * ext4_itree_keys_next - get the next key in ascending order
 * @k: keys, after ext4_itree_keys_merge()
 * @key: set if there is one
 *
 * Returns false behind the last key.
 */
bool ext4_itree_keys_next(struct ext4_itree_keys *k, u64 *key)
{
	u32 run;

	if (!k->nr_heap)
		return false;
	run = k->heap[0];
	*key = head(k, 0);
	if (++k->pos[run] == run_len(k, run))
		k->heap[0] = k->heap[--k->nr_heap];
	sift_down(k, 0);
	return true;
}

/* Frees all memory; harmless when repeated. */
void ext4_itree_keys_free(struct ext4_itree_keys *k)
{
	u32 i;

	for (i = 0; i < k->nr_runs; i++)
		kvfree(k->run[i]);
	kvfree(k->run);
	kvfree(k->pos);
	kvfree(k->heap);
	memset(k, 0, sizeof(*k));
}
