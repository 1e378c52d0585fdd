// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree core: building a whole tree at once, and verifying one.
 */
#include "itree_node.h"

/* --- bulk load: full nodes from left to right, all levels at once --- */

struct bulk {
	struct itree *t;
	u32 root_level;
	struct itree_buf open[ITREE_MAX_DEPTH];	/* node being filled, a level */
};

static u32 div_up(u32 n, u32 d)
{
	return n / d + (n % d != 0);
}

/* Returns the level of the root for @keys keys, or -EFBIG.  Sets *@blocks. */
static int bulk_shape(u32 block_size, u64 keys, u64 *blocks)
{
	u32 level, nodes = keys;

	if (keys > 0xffffffffU)
		return -EFBIG;
	*blocks = 1;
	for (level = 0; level < ITREE_MAX_DEPTH; level++) {
		if (nodes <= itree_limit(block_size, true, level))
			return level;
		nodes = div_up(nodes, itree_limit(block_size, false, level));
		*blocks += nodes;
	}
	return -EFBIG;
}

/**
 * itree_bulk_blocks - blocks that a bulk load of so many keys takes
 * @block_size: bytes
 * @keys: their number
 *
 * Returns their number, the root included, or 0 for more keys than fit.
 */
u64 itree_bulk_blocks(u32 block_size, u64 keys)
{
	u64 blocks;

	return bulk_shape(block_size, keys, &blocks) < 0 ? 0 : blocks;
}

static int bulk_finish(struct bulk *b, u32 level)
{
	int err;

	if (!b->open[level].data)
		return 0;
	err = itree_node_dirty(b->t, &b->open[level], 0);
	itree_put(b->t, &b->open[level]);
	return err;
}

/* Starts a node at @level behind the one that is full. */
static int bulk_start(struct bulk *b, u32 level)
{
	struct itree_root_info *info = node_info(&b->t->root);
	u32 blocks = le32_to_cpu(info->r_blocks);
	struct itree_buf *node = &b->open[level];
	int err = bulk_finish(b, level);

	if (err)
		return err;
	if (blocks >= b->t->max_blocks)
		return -ENOSPC;
	node->lblk = ITREE_SEG_START + blocks;
	err = b->t->ops->grow(b->t, node->lblk, node);
	if (err) {
		itree_buf_clear(node);
		return err;
	}
	info->r_blocks = cpu_to_le32(blocks + 1);
	itree_node_init(b->t, node, ITREE_MAGIC, level);
	return 0;
}

static int bulk_append(struct bulk *b, struct itree_buf *node, u32 level,
		       u64 key, u32 child)
{
	u32 pos = node_count_once(node);

	return itree_node_put_entry(b->t, node, level, pos,
				    level && !pos ? 0 : key, child);
}

/* Adds a key, and for each node that this opens an entry to the level above. */
static int bulk_add(struct bulk *b, u64 key)
{
	u32 level, child = 0;
	int err;

	for (level = 0; level < b->root_level; level++) {
		struct itree_buf *node = &b->open[level];
		bool fresh = !node->data ||
			     node_count(node) >= node_limit(node);

		if (fresh) {
			err = bulk_start(b, level);
			if (err)
				return err;
		}
		err = bulk_append(b, node, level, key, child);
		if (err || !fresh)
			return err;
		child = node->lblk;
	}
	return bulk_append(b, &b->t->root, level, key, child);
}

/**
 * itree_bulk_load - fill an empty tree with sorted keys
 * @t: tree just made by itree_format()
 * @keys: their number
 * @next: supplies the next key; returns 0, or a negative error to end the load
 * @arg: for @next
 *
 * Writes packed nodes.  Returns 0 or a negative error (-EINVAL for keys out
 * of order or a tree that is not empty, -EFBIG for too many); after an error
 * the tree is torn and must not be used.
 */
int itree_bulk_load(struct itree *t, u64 keys,
		    int (*next)(void *arg, u64 *key), void *arg)
{
	struct itree_root_info *info = node_info(&t->root);
	struct bulk b;
	u64 done, key, last = 0, blocks;
	u32 level;
	int ret;

	if (node_level(&t->root) || node_count(&t->root) ||
	    le32_to_cpu(info->r_blocks) != 1)
		return -EINVAL;
	memset(&b, 0, sizeof(b));
	b.t = t;
	ret = bulk_shape(t->block_size, keys, &blocks);
	if (ret < 0)
		return ret;
	b.root_level = ret;
	ret = t->ops->access(t, &t->root);
	if (ret)
		return ret;
	node_head(&t->root)->h_level = b.root_level;
	node_head(&t->root)->h_limit =
		cpu_to_le16(itree_limit(t->block_size, true, b.root_level));

	ret = 0;
	for (done = 0; !ret && done < keys; done++) {
		ret = next(arg, &key);
		if (!ret && key < last)
			ret = -EINVAL;
		if (!ret)
			ret = bulk_add(&b, key);
		last = key;
	}
	for (level = 0; level < b.root_level; level++) {
		int err = bulk_finish(&b, level);

		if (!ret)
			ret = err;
	}
	info->r_keys = cpu_to_le64(keys);
	ret = itree_node_dirty(t, &t->root, ret);
	if (ret)
		t->torn = true;
	return ret;
}

/* --- verify --- */

struct verify {
	struct itree *t;
	struct itree_report *r;
	unsigned char *seen;	/* one bit per block of the segment */
};

static bool see(struct verify *v, u32 lblk)
{
	u32 n = lblk - ITREE_SEG_START;
	unsigned char bit = 1 << (n & 7);

	if (v->seen[n >> 3] & bit)
		return false;
	v->seen[n >> 3] |= bit;
	return true;
}

static int verify_leaf(struct verify *v, const struct itree_buf *b)
{
	u32 count = node_count(b), i;
	u64 key;

	for (i = 0; i < count; i++) {
		key = node_key(b, i);
		if (!v->r->keys)
			v->r->first = key;
		else if (key < v->r->last)
			return itree_corrupt(v->t, "keys out of order",
					     b->lblk);
		v->r->last = key;
		v->r->keys++;
		v->r->hash += itree_hash_key(key);
	}
	v->r->leaves++;
	v->r->leaf_slots += node_limit(b);
	return 0;
}

static void relax(struct itree *t)
{
	if (t->ops->relax)
		t->ops->relax(t);
}

/* Visits every node below the root, children before their next sibling. */
static int verify_nodes(struct verify *v)
{
	struct itree *t = v->t;
	struct itree_cursor cur;
	u32 level;
	int err = 0;

	memset(&cur, 0, sizeof(cur));
	cur.t = t;
	cur.level = node_level(&t->root);
	level = cur.level;
	cur.step[level].buf = t->root;
	cur.step[level].hi = ~0ULL;
	while (!err) {
		struct itree_step *s = &cur.step[level];

		if (!level)
			err = verify_leaf(v, &s->buf);
		if (level && s->pos < node_count(&s->buf)) {
			err = itree_read_child(&cur, level);
			if (err)
				break;
			relax(t);
			level--;
			s = &cur.step[level];
			v->r->nodes++;
			if (!see(v, s->buf.lblk))
				err = itree_corrupt(t, "block used twice",
						    s->buf.lblk);
			continue;
		}
		if (level == cur.level)
			break;
		itree_put(t, &s->buf);
		cur.step[++level].pos++;
	}
	itree_cursor_release(&cur);
	return err;
}

static int verify_free(struct verify *v, const struct itree_info *info)
{
	u32 lblk = info->free_head, i;
	struct itree_buf b;
	int err;

	for (i = 0; i < info->free_count && lblk; i++) {
		err = itree_read_free(v->t, lblk, &b);
		if (err)
			return err;
		relax(v->t);
		if (!see(v, lblk)) {
			itree_put(v->t, &b);
			return itree_corrupt(v->t, "loop in free list", lblk);
		}
		lblk = le32_to_cpu(node_head(&b)->h_next);
		itree_put(v->t, &b);
		v->r->free_count++;
	}
	if (lblk || i < info->free_count)
		return itree_corrupt(v->t, "bad length of free list",
				     ITREE_SEG_START);
	return 0;
}

/**
 * itree_verify - check a whole tree
 * @t: open tree
 * @report: filled in as far as the check got
 *
 * Reads every block of the tree once.  Checks structure, order and key count,
 * and that each block of the segment is exactly once in the tree or on the free
 * list.  The caller compares report->keys and report->hash with the directory's
 * names.
 *
 * Returns 0, -ITREE_CORRUPT with t->why and t->why_lblk set, or another
 * negative error.
 */
int itree_verify(struct itree *t, struct itree_report *report)
{
	struct itree_info info;
	struct verify v;
	int err;

	memset(report, 0, sizeof(*report));
	/* The root is held since the open: a hostile image may share it. */
	err = itree_check_node(t, &t->root);
	if (err)
		return err;
	itree_get_info(t, &info);
	report->depth = info.depth;
	report->nodes = 1;
	v.t = t;
	v.r = report;
	v.seen = t->ops->alloc(t, info.blocks / 8 + 1);
	if (!v.seen)
		return -ENOMEM;
	see(&v, ITREE_SEG_START);
	err = verify_nodes(&v);
	if (!err)
		err = verify_free(&v, &info);
	if (!err && report->keys != info.keys)
		err = itree_corrupt(t, "root counts other keys than there are",
				    ITREE_SEG_START);
	if (!err && report->nodes + report->free_count != info.blocks)
		err = itree_corrupt(t, "block neither in the tree nor free",
				    ITREE_SEG_START);
	t->ops->free(t, v.seen);
	return err;
}
