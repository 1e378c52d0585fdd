// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fails every single call to the block operations, one after the other.
 *
 * For a set of trees and each operation: let the first read fail, then the
 * second, ... until the operation gets through; likewise grow, access, dirty
 * and alloc; once alone and once with all later calls failing as well.  After
 * each failure the tree is as it was to the byte, or the operation has said
 * that it is torn; nothing is leaked; and the operation works when repeated
 * without the failure, unless the tree is torn.
 */
#include "test.h"
#include "tree.h"

static struct tree x;

/* What a case needs: a tree, an operation, and what it may do. */
struct fault {
	const char *name;
	struct craft c;
	int (*op)(const struct fault *f);
	u32 arg;
	bool reader; /* never tears, never changes */
	u32 reads; /* calls that must at least have been failed */
	u32 dirties;
};

/* Position of the key that the operation is about, found when crafted. */
static size_t at;
static u32 at_count;

static u64 op_key(const struct fault *f)
{
	switch (f->c.side) {
	case CRAFT_FIRST:
		return x.m.key[at];
	case CRAFT_LAST:
		return x.m.key[at + at_count - 1];
	default:
		return x.m.key[at + at_count / 2];
	}
}

static int op_reserve(const struct fault *f)
{
	return itree_reserve(&x.t, f->arg);
}

static int op_insert(const struct fault *f)
{
	return itree_insert(&x.t, op_key(f) + 1);
}

static int op_delete(const struct fault *f)
{
	return itree_delete(&x.t, op_key(f));
}

static int op_verify(const struct fault *f)
{
	struct itree_report r;

	(void)f;
	return itree_verify(&x.t, &r);
}

static int op_seek(const struct fault *f)
{
	struct itree_cursor cur;
	int ret = itree_seek(&x.t, op_key(f) + f->arg, &cur);

	itree_cursor_release(&cur);
	itree_cursor_release(&cur);
	return ret == ITREE_END ? 0 : ret;
}

static int op_scan(const struct fault *f)
{
	struct itree_cursor cur;
	int ret;

	(void)f;
	for (ret = itree_seek(&x.t, 0, &cur); !ret; ret = itree_next(&cur))
		;
	itree_cursor_release(&cur);
	return ret == ITREE_END ? 0 : ret;
}

static int op_last(const struct fault *f)
{
	u64 key;

	(void)f;
	return itree_last(&x.t, &key);
}

static int op_open(const struct fault *f)
{
	struct itree t;
	int ret;

	(void)f;
	ret = itree_open(&t, &mem_ops, &x.d, x.d.block_size, ROOMY);
	if (ret)
		CHECK(!t.root.data);
	else
		itree_close(&t);
	return ret;
}

/* The whole model into a new tree, for which there is a second device. */
static struct mem_dev other;
static bool other_torn;

static int op_format(const struct fault *f)
{
	struct itree t;
	int ret;

	(void)f;
	ret = itree_format(&t, &mem_ops, &other, other.block_size, ROOMY, 1);
	if (ret)
		CHECK(!t.root.data);
	else
		itree_close(&t);
	mem_end_torn(&other, 0);
	other_torn = t.torn;
	return ret;
}

static int op_bulk(const struct fault *f)
{
	struct bulk_keys b = { .key = x.m.key, .n = x.m.n };
	struct itree t;
	u64 saved[MEM_OPS];
	bool saved_on = other.fail_on;
	int ret;

	(void)f;
	/* the format is not what is tested here */
	memcpy(saved, other.fail_at, sizeof(saved));
	mem_clear_faults(&other);
	CHECK_EQ(itree_format(&t, &mem_ops, &other, other.block_size, ROOMY, 1),
		 0);
	mem_end_op(&other, 1, 1);
	mem_clear_faults(&other);
	memcpy(other.fail_at, saved, sizeof(saved));
	other.fail_on = saved_on;

	ret = itree_bulk_load(&t, x.m.n, bulk_next, &b);
	other_torn = t.torn;
	if (ret)
		mem_end_torn(&other, 1);
	else
		mem_end_op(&other, 1, ~0U);
	if (ret && !t.torn) {
		/* as it was: empty */
		struct oracle o;

		CHECKF(!oracle_check(&other, ROOMY, &o), "%s", o.why);
		CHECK_EQ(o.m.n, 0);
		oracle_free(&o);
	}
	itree_close(&t);
	mem_end_torn(&other, 0);
	return ret;
}

static bool on_other(const struct fault *f)
{
	return f->op == op_bulk || f->op == op_format;
}

static u64 failed_calls[MEM_OPS], torn_calls;

/* One operation with one failure.  Returns whether the failure was reached. */
static bool one(const struct fault *f, enum mem_op kind, u64 n, bool on,
		const struct mem_snap *s)
{
	struct mem_dev *d = on_other(f) ? &other : &x.d;
	struct itree before, after;
	struct model keys;
	u32 blocks;
	bool torn;
	int ret;

	snprintf(test_note, sizeof(test_note), "%s: %s %llu%s", f->name,
		 mem_op_name[kind], n, on ? " and all later" : "");
	/* a new tree for each try, its blocks not yet checked */
	mem_init(&x.d, f->c.block_size);
	mem_restore(&x.d, s);
	tree_open(&x, ROOMY);
	if (on_other(f))
		mem_init(&other, f->c.block_size);
	blocks = tree_blocks(&x);
	before = x.t;
	mem_clear_faults(d);
	d->fail_at[kind] = n;
	d->fail_on = on;
	if (f->reader)
		x.d.no_write = true;
	ret = f->op(f);
	x.d.no_write = false;
	if (!d->failed) {
		CHECK_EQ(ret, 0);
		mem_clear_faults(d);
		if (!on_other(f)) {
			CHECK(!x.t.torn);
			tree_end_op(&x);
		}
		goto out;
	}
	CHECKF(ret < 0 && ret != -ITREE_CORRUPT && ret != -ENOENT, "%d", ret);
	CHECK_EQ(ret, kind == MEM_READ	  ? -EIO
		      : kind == MEM_GROW  ? -ENOSPC
		      : kind == MEM_ALLOC ? -ENOMEM
					  : -EROFS);
	failed_calls[kind]++;
	mem_clear_faults(d);
	torn = on_other(f) ? other_torn : x.t.torn;
	torn_calls += torn;
	if (on_other(f))
		goto out;
	if (torn) {
		/* only once blocks have changed: a failed dirty */
		CHECK(kind == MEM_DIRTY);
		CHECK(!f->reader);
		mem_end_torn(&x.d, 1);
		goto out;
	}
	CHECK(kind != MEM_DIRTY);
	tree_end_op(&x);
	if (f->op == op_reserve) {
		/* a longer free list, nothing else */
		CHECK(tree_blocks(&x) >= blocks);
	} else {
		u32 same = mem_compare(&x.d, s, blocks);

		CHECKF(same == blocks, "block %u changed", same);
		after = x.t;
		CHECK_EQ(after.splits, before.splits);
		CHECK_EQ(after.merges, before.merges);
		CHECK(after.root.data == before.root.data);
	}
	tree_check(&x);

	/* nothing lingers: now it works */
	ret = f->op(f);
	CHECK_EQ(ret, 0);
	tree_end_op(&x);
	keys = x.m;
	if (f->op == op_insert || f->op == op_delete) {
		memset(&x.m, 0, sizeof(x.m));
		x.m.key = xcalloc(keys.n, sizeof(u64));
		memcpy(x.m.key, keys.key, keys.n * sizeof(u64));
		x.m.n = keys.n;
		x.m.room = keys.n;
		if (f->op == op_insert)
			model_insert(&x.m, op_key(f) + 1);
		else
			model_delete(&x.m, op_key(f));
		tree_check(&x);
		model_free(&x.m);
		x.m = keys;
	} else {
		tree_check(&x);
	}
out:
	ret = d->failed || ret;
	if (x.open) {
		itree_close(&x.t);
		x.open = false;
	}
	mem_end_torn(&x.d, 0);
	mem_exit(&x.d);
	if (on_other(f))
		mem_exit(&other);
	return ret;
}

static void work(void *arg)
{
	const struct fault *f = arg;
	struct mem_snap s;
	enum mem_op kind;
	struct mem_dev made;
	u32 on;

	mem_init(&made, f->c.block_size);
	at = craft_tree(&made, &f->c, &x.m, &at_count);
	mem_snap(&made, &s);
	mem_exit(&made);

	for (kind = 0; kind < MEM_OPS; kind++) {
		for (on = 0; on < 2; on++) {
			u64 before = failed_calls[kind], n = 0;

			do {
				n++;
				one(f, kind, n, on, &s);
			} while (failed_calls[kind] > before &&
				 failed_calls[kind] - before == n);
		}
	}
	test_note[0] = 0;
	/* each was failed alone and with the later ones */
	CHECKF(failed_calls[MEM_READ] >= 2 * f->reads, "%llu",
	       failed_calls[MEM_READ]);
	CHECKF(failed_calls[MEM_DIRTY] >= 2 * f->dirties, "%llu",
	       failed_calls[MEM_DIRTY]);
	if (f->reader)
		CHECK_EQ(failed_calls[MEM_DIRTY] + failed_calls[MEM_ACCESS] +
				 failed_calls[MEM_GROW] + torn_calls,
			 0);
	printf("# failed: %llu reads, %llu grows, %llu accesses, %llu dirties, %llu allocs; %llu torn\n",
	       failed_calls[MEM_READ], failed_calls[MEM_GROW],
	       failed_calls[MEM_ACCESS], failed_calls[MEM_DIRTY],
	       failed_calls[MEM_ALLOC], torn_calls);
	mem_snap_free(&s);
	model_free(&x.m);
}

/*
 * Another directory of a hostile image shares a node and changes it between
 * the plan and the change.  Whatever the node becomes, the core writes nothing
 * outside the block (ASan watches), and a call that fails has torn the tree.
 */
static void shared(void *arg)
{
	const struct fault *f = arg;
	struct mem_snap s;
	struct mem_dev made;
	u64 calls = 0, torn = 0, other_level = 0, at_call;
	u32 kind;

	mem_init(&made, f->c.block_size);
	at = craft_tree(&made, &f->c, &x.m, &at_count);
	mem_snap(&made, &s);
	mem_exit(&made);
	for (at_call = 1; at_call <= calls + 1; at_call++) {
		for (kind = 0; kind < MEM_SHARES; kind++) {
			int ret;

			snprintf(test_note, sizeof(test_note),
				 "%s: access %llu: %s", f->name, at_call,
				 mem_share_name[kind]);
			mem_init(&x.d, f->c.block_size);
			mem_restore(&x.d, &s);
			tree_open(&x, ROOMY);
			mem_clear_faults(&x.d);
			x.d.share_at = at_call;
			x.d.share_kind = kind;
			ret = f->op(f);
			calls = x.d.calls[MEM_ACCESS];
			torn += x.t.torn;
			other_level += kind == 6 && x.t.torn;
			CHECK(at_call <= calls || !ret);
			CHECK_EQ(x.t.torn, ret < 0);
			CHECK_EQ(ret < 0, ret == -ITREE_CORRUPT);
			CHECK(!ret || x.t.why);
			mem_end_torn(&x.d, 1);
			itree_close(&x.t);
			x.open = false;
			mem_exit(&x.d);
		}
	}
	test_note[0] = 0;
	/* each call changes a leaf, and notices that it is no leaf any more */
	CHECK(calls && other_level);
	printf("# %llu accesses, %llu torn\n", calls, torn);
	mem_snap_free(&s);
	model_free(&x.m);
}

/* The same while a tree is built: before key @at one of its nodes changes. */
struct shared_keys {
	struct bulk_keys b;
	size_t at;
	u32 lblk;
	u32 kind;
	bool changed;
};

static int shared_next(void *arg, u64 *key)
{
	struct shared_keys *k = arg;
	u8 *data;

	if (k->b.at == k->at) {
		data = mem_poke(&other, k->lblk);
		if (data)
			mem_share(data, k->kind);
		k->changed = data;
	}
	return bulk_next(&k->b, key);
}

static void shared_build(void *arg)
{
	const u32 count = 3 * itree_limit(1024, false, 0);
	struct shared_keys k = { 0 };
	u64 *key = xcalloc(count, sizeof(*key)), torn = 0, changed = 0;
	struct itree t;
	size_t n;
	u32 block;
	int ret;

	(void)arg;
	for (n = 0; n < count; n++)
		key[n] = CRAFT_KEY(n);
	for (n = 0; n < count; n += 7)
		for (block = 0; block < 4; block++)
			for (k.kind = 0; k.kind < MEM_SHARES; k.kind++) {
				snprintf(test_note, sizeof(test_note),
					 "key %zu, block %u: %s", n, block,
					 mem_share_name[k.kind]);
				k.b = (struct bulk_keys){ .key = key,
							  .n = count };
				k.at = n;
				k.lblk = ITREE_SEG_START + block;
				mem_init(&other, 1024);
				CHECK_EQ(itree_format(&t, &mem_ops, &other,
						      1024, ROOMY, 1),
					 0);
				ret = itree_bulk_load(&t, count, shared_next,
						      &k);
				CHECK_EQ(t.torn, ret < 0);
				torn += t.torn;
				changed += k.changed;
				mem_end_torn(&other, 1);
				itree_close(&t);
				mem_exit(&other);
			}
	test_note[0] = 0;
	CHECK(torn && torn <= changed);
	printf("# %llu changed, %llu torn\n", changed, torn);
	free(key);
}

static const char *const side_name[] = { "first", "middle", "last" };

static void add(struct fault f, const char *fmt, u32 depth)
{
	char name[160];
	char what[100];

	snprintf(what, sizeof(what), fmt, depth);
	snprintf(name, sizeof(name), "fault %s, %s leaf", what,
		 side_name[f.c.side]);
	f.name = name;
	test_run(name, work, &f);
	if (f.op != op_insert && f.op != op_delete)
		return;
	snprintf(name, sizeof(name), "shared node, %s, %s leaf", what,
		 side_name[f.c.side]);
	f.name = name;
	test_run(name, shared, &f);
}

int main(void)
{
	u32 depth, side, full, level;

	for (depth = 1; depth <= ITREE_MAX_DEPTH; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			struct fault f = {
				.c = { .block_size = 1024,
				       .depth = depth,
				       .side = side,
				       .spare = 6 },
			};

			/* no, one, ... all levels split; root pushed down */
			f.op = op_insert;
			for (full = 0; full <= depth; full++) {
				if (full == ITREE_MAX_DEPTH)
					break;
				for (level = 0; level < depth; level++) {
					f.c.path[level] = level < full ? 0 : 10;
					f.c.near[level] = 3;
				}
				f.reads = depth - 1 + full;
				f.dirties =
					1 + full + (full < depth && depth > 1);
				if (depth == 1)
					f.dirties = 1 + full;
				snprintf(test_note, sizeof(test_note),
					 "insert, depth %%u, %u full", full);
				add(f, test_note, depth);
			}

			/* the leaf only; merges up to each level; all */
			f.op = op_delete;
			for (full = 0; full < depth; full++) {
				for (level = 0; level < depth; level++) {
					u32 edge = level ? 83 / 4 : 125 / 4;

					f.c.path[level] =
						level < full ? edge : edge + 5;
					f.c.near[level] = 30;
				}
				f.c.path[depth - 1] = depth == 1 ? 20 : 3;
				f.reads = depth - 1 + full;
				f.dirties = depth == 1 ? 1 : 2 + full;
				snprintf(test_note, sizeof(test_note),
					 "delete, depth %%u, %u merge", full);
				add(f, test_note, depth);
			}
			/* nodes with one entry; neighbours full */
			if (depth > 1) {
				for (level = 0; level < depth; level++) {
					f.c.path[level] = 1;
					f.c.near[level] = 0;
				}
				f.c.path[depth - 1] = 3;
				f.reads = depth - 1;
				f.dirties = depth;
				add(f, "delete, depth %u, removal", depth);

				/* the root comes down */
				for (level = 0; level < depth; level++) {
					f.c.path[level] = 10;
					f.c.near[level] = 9;
				}
				f.c.path[depth - 1] = 2;
				f.reads = depth - 1 + 1;
				f.dirties = 3;
				add(f,
				    "delete, depth %u, merge, root collapses",
				    depth);
				for (level = 0; level < depth - 1; level++)
					f.c.path[level] = 1;
				f.reads = depth - 1 + 1;
				f.dirties = depth;
				add(f,
				    "delete, depth %u, removal, root collapses",
				    depth);
				/* the last key of all */
				f.c.path[depth - 1] = 1;
				f.reads = depth - 1;
				f.dirties = depth;
				if (side == CRAFT_FIRST)
					add(f, "delete, depth %u, last key",
					    depth);
			}

			for (level = 0; level < depth; level++) {
				f.c.path[level] = 4;
				f.c.near[level] = 3;
			}
			f.dirties = 0;
			f.reads = depth - 1;
			f.reader = true;
			f.op = op_seek;
			add(f, "seek, depth %u", depth);
			f.arg = 1;
			add(f, "seek between leaves, depth %u", depth);
			f.arg = 0;
			f.op = op_last;
			add(f, "last, depth %u", depth);
			f.op = op_scan;
			add(f, "scan, depth %u", depth);
			f.op = op_verify;
			f.reads = depth - 1 + 6;
			add(f, "verify, depth %u", depth);
			f.op = op_open;
			f.reads = 1;
			add(f, "open, depth %u", depth);

			f.reader = false;
			f.reads = 0;
			f.op = op_reserve;
			f.arg = 3;
			f.c.spare = 1;
			f.dirties = 2 * (depth + 2);
			add(f, "reserve, depth %u", depth);
		}
	}
	for (depth = 1; depth <= 3; depth++) {
		struct fault f = {
			.c = { .block_size = 1024, .depth = depth },
			.op = op_bulk,
			.dirties = 1,
		};

		if (depth == 3) {
			/* 3 levels packed again: as many keys as it takes */
			f.c.path[1] = 83;
			f.c.path[2] = 2;
		}
		add(f, "bulk load, made of depth %u", depth);
	}
	for (depth = 0; depth < 2; depth++) {
		struct fault f = {
			.c = { .block_size = 4096 << depth, .depth = 1 },
			.op = op_format,
			.dirties = 1,
		};

		add(f, "format %u", depth);
	}
	test_run("shared node, build", shared_build, NULL);
	return test_done();
}
