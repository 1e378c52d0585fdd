// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree core: reserving space, inserting, deleting.
 *
 * Every change has two halves.  The first finds all blocks that will change,
 * reads and checks them and gets write access: it may fail and changes nothing.
 * The second only moves bytes in memory and marks the blocks dirty.  If the
 * latter fails, the tree is torn, and t->torn is set.
 */
#include "itree_node.h"

/* Nodes are merged when less than a quarter full ... */
static u32 merge_below(const struct itree_buf *b)
{
	return node_limit(b) / 4;
}

/* ... and only if the result is less than three quarters full. */
static u32 merge_most(u32 limit)
{
	return limit - limit / 4;
}

static void root_add(struct itree *t, int keys)
{
	struct itree_root_info *info = node_info(&t->root);

	info->r_keys = cpu_to_le64(le64_to_cpu(info->r_keys) + keys);
}

/* Puts a node, to which the caller has write access, on the free list. */
static void free_push(struct itree *t, struct itree_buf *b)
{
	struct itree_root_info *info = node_info(&t->root);

	itree_node_init(t, b, ITREE_FREE_MAGIC, 0);
	node_head(b)->h_next = info->r_free_head;
	info->r_free_head = cpu_to_le32(b->lblk);
	info->r_free_count = cpu_to_le32(le32_to_cpu(info->r_free_count) + 1);
}

/* Grows the segment by one block, which goes to the free list. */
static int grow_one(struct itree *t)
{
	struct itree_root_info *info = node_info(&t->root);
	u32 blocks = le32_to_cpu(info->r_blocks);
	struct itree_buf b;
	int err;

	if (blocks >= t->max_blocks)
		return -ENOSPC;
	err = t->ops->access(t, &t->root);
	if (err)
		return err;
	itree_buf_clear(&b);
	b.lblk = ITREE_SEG_START + blocks;
	err = t->ops->grow(t, b.lblk, &b);
	if (err)
		return err;
	free_push(t, &b);
	info->r_blocks = cpu_to_le32(blocks + 1);
	err = itree_node_dirty(t, &b, 0);
	err = itree_node_dirty(t, &t->root, err);
	itree_put(t, &b);
	return err;
}

/* Returns how many free nodes so many inserts may take. */
static u32 nodes_for(struct itree *t, u32 inserts)
{
	u32 level = node_level(&t->root);

	if (inserts < 2)
		return inserts * (level + 1);
	/* The first insert may make the tree one level higher. */
	return inserts * (level + 2);
}

/**
 * itree_has_room - would itree_reserve() of one insert have nothing to do?
 * @t: open tree
 */
bool itree_has_room(struct itree *t)
{
	return le32_to_cpu(node_info(&t->root)->r_free_count) >=
	       nodes_for(t, 1);
}

/**
 * itree_reserve - obtain the space that inserts may need
 * @t: open tree
 * @inserts: how many inserts must not run out of space
 *
 * An insert splits at most one node per level and pushes the root down at most
 * once.  Call this before the change that the insert belongs to, so that a lack
 * of space fails before anything has changed.  The reserve stays on the tree's
 * free list.
 *
 * Returns 0 or a negative error (-ENOSPC, -EDQUOT, ...).  After an error, the
 * tree is unchanged except for a longer free list.
 */
int itree_reserve(struct itree *t, u32 inserts)
{
	struct itree_root_info *info = node_info(&t->root);
	u32 need = nodes_for(t, inserts);
	int err;

	while (le32_to_cpu(info->r_free_count) < need) {
		err = grow_one(t);
		if (err)
			return err;
	}
	return 0;
}

/* --- insert --- */

struct insert {
	struct itree_cursor cur;
	struct itree_buf fresh[ITREE_MAX_DEPTH];
	u32 nfresh;		/* nodes taken from the free list */
	u32 used;		/* how many of these are in use */
	u32 top;		/* highest level that changes */
	u32 free_head;		/* head of the free list after the change */
};

/* Returns how many new nodes the insert needs, for splits and a new level. */
static int insert_plan(struct itree *t, struct insert *in)
{
	u32 level = 0, need = 0;

	while (level < in->cur.level &&
	       node_count(&in->cur.step[level].buf) >=
	       node_limit(&in->cur.step[level].buf)) {
		level++;
		need++;
	}
	in->top = level;
	if (level == in->cur.level &&
	    node_count(&t->root) >= node_limit(&t->root)) {
		if (in->cur.level + 1 >= ITREE_MAX_DEPTH)
			return -EOVERFLOW;
		need++;
	}
	return need;
}

/* Reads the free nodes that the plan needs, without taking them yet. */
static int insert_take(struct itree *t, struct insert *in, u32 need)
{
	struct itree_root_info *info = node_info(&t->root);
	int err;

	in->free_head = le32_to_cpu(info->r_free_head);
	if (le32_to_cpu(info->r_free_count) < need)
		return -ENOSPC;
	while (in->nfresh < need) {
		struct itree_buf *b = &in->fresh[in->nfresh];
		u32 i;

		err = itree_read_free(t, in->free_head, b);
		if (err)
			return err;
		in->nfresh++;
		in->free_head = le32_to_cpu(node_head(b)->h_next);
		for (i = 0; i < in->nfresh; i++)
			if (in->fresh[i].lblk == in->free_head)
				return itree_corrupt(t, "loop in free list",
						     b->lblk);
	}
	if (!in->free_head != (le32_to_cpu(info->r_free_count) == need))
		return itree_corrupt(t, "bad length of free list",
				     ITREE_SEG_START);
	return 0;
}

static int insert_access(struct itree *t, struct insert *in)
{
	u32 i;
	int err = t->ops->access(t, &t->root);

	for (i = 0; !err && i <= in->top && i < in->cur.level; i++)
		err = t->ops->access(t, &in->cur.step[i].buf);
	for (i = 0; !err && i < in->nfresh; i++)
		err = t->ops->access(t, &in->fresh[i]);
	return err;
}

/*
 * Two directories of a hostile image may share a node.  Each changes it under
 * its own lock, so the node may change between the plan and the change.  To
 * stay inside the block, each move uses @level of the plan and a count that is
 * read once, not the node's current fields.
 */
static int node_changed(struct itree *t, const struct itree_buf *b)
{
	t->torn = true;
	return itree_corrupt(t, "node changed during an update", b->lblk);
}

/* Is the node still on @level, and do @count entries fit into it? */
static bool node_fits(const struct itree *t, const struct itree_buf *b,
		      u32 level, u32 count)
{
	return node_level(b) == level &&
	       count <= itree_limit(t->block_size, node_is_root(b), level);
}

static struct itree_index_entry *level_entry(const struct itree_buf *b,
					     u32 level, u32 pos)
{
	return (void *)((char *)node_entries(b) +
			pos * level_entry_size(level));
}

/* Opens a gap of one entry at @pos of a node on @level, and fills it. */
int itree_node_put_entry(struct itree *t, struct itree_buf *b, u32 level,
			 u32 pos, u64 key, u32 child)
{
	u32 count = node_count_once(b);
	struct itree_index_entry *e;

	if (pos > count || !node_fits(t, b, level, count + 1))
		return node_changed(t, b);
	e = level_entry(b, level, pos);
	memmove(level_entry(b, level, pos + 1), e,
		(count - pos) * level_entry_size(level));
	node_set_count(b, count + 1);
	e->i_ino = cpu_to_le32(ITREE_KEY_INO(key));
	e->i_hash = cpu_to_le32(ITREE_KEY_HASH(key));
	if (level)
		e->i_child = cpu_to_le32(child);
	return 0;
}

/*
 * Makes the tree one level higher when the full root has to take an entry:
 * moves the contents of the root into a node of their own, which has more room.
 */
static int push_root_down(struct itree *t, struct insert *in)
{
	struct itree_buf *b = &in->fresh[in->used];
	struct itree_root_info saved = *node_info(&t->root);
	u32 level = in->cur.level, count = node_count_once(&t->root);
	struct itree_step *top;

	if (level + 1 >= ITREE_MAX_DEPTH || in->used >= in->nfresh ||
	    !node_fits(t, &t->root, level, count))
		return node_changed(t, &t->root);
	itree_node_init(t, b, ITREE_MAGIC, level);
	memcpy(node_entries(b), node_entries(&t->root),
	       count * level_entry_size(level));
	node_set_count(b, count);

	itree_node_init(t, &t->root, ITREE_MAGIC, level + 1);
	*node_info(&t->root) = saved;
	node_set_count(&t->root, 1);
	node_set_key(&t->root, 0, 0);
	node_set_child(&t->root, 0, b->lblk);

	/* The cursor goes through the new node, which it now holds. */
	top = &in->cur.step[level + 1];
	memset(top, 0, sizeof(*top));
	top->buf = t->root;
	top->hi = ~0ULL;
	in->cur.step[level].buf = *b;
	itree_buf_clear(b);
	in->used++;
	in->cur.level++;
	in->top++;
	return itree_node_dirty(t, &in->cur.step[level].buf, 0);
}

/* Would the insert append to the whole tree? */
static bool at_right_edge(const struct itree_cursor *cur)
{
	u32 level;

	if (cur->step[0].pos < node_count(&cur->step[0].buf))
		return false;
	for (level = 1; level <= cur->level; level++)
		if (cur->step[level].pos + 1 <
		    node_count(&cur->step[level].buf))
			return false;
	return true;
}

/*
 * Splits the full node at @level and inserts an entry at @pos.  An insert
 * behind all keys starts a new node, so that files created in inode order leave
 * full nodes behind.  The new node starts with a few entries: otherwise a file
 * that is created and deleted repeatedly at this place would split and free a
 * node each time.  Returns the entry for the parent in *@key and *@child.
 */
static int split_node(struct itree *t, struct insert *in, u32 level, u32 pos,
		      bool append, u64 *key, u32 *child)
{
	struct itree_buf *left = &in->cur.step[level].buf;
	struct itree_buf *right = &in->fresh[in->used++];
	u32 count = node_count_once(left);
	u32 half = append ? count - count / 32 : count / 2;
	u64 sep;
	int err;

	if (!count || !node_fits(t, left, level, count))
		return node_changed(t, left);
	itree_node_init(t, right, ITREE_MAGIC, level);
	memcpy(node_entries(right), level_entry(left, level, half),
	       (count - half) * level_entry_size(level));
	node_set_count(right, count - half);
	node_set_count(left, half);
	if (append || pos > half)
		err = itree_node_put_entry(t, right, level, pos - half, *key,
					   *child);
	else
		err = itree_node_put_entry(t, left, level, pos, *key, *child);

	sep = node_key(right, 0);
	if (level)
		node_set_key(right, 0, 0);
	*key = sep;
	*child = right->lblk;
	t->splits++;
	err = itree_node_dirty(t, left, err);
	return itree_node_dirty(t, right, err);
}

static int insert_apply(struct itree *t, struct insert *in, u64 key)
{
	struct itree_root_info *info = node_info(&t->root);
	u32 free_count = le32_to_cpu(info->r_free_count);
	bool append = at_right_edge(&in->cur);
	u32 level, pos, child = 0;
	int err = 0, err2;

	info->r_free_head = cpu_to_le32(in->free_head);
	info->r_free_count = cpu_to_le32(free_count - in->nfresh);
	root_add(t, 1);
	if (in->top == in->cur.level &&
	    node_count(&t->root) >= node_limit(&t->root))
		err = push_root_down(t, in);

	for (level = 0; !t->torn && level <= in->cur.level; level++) {
		struct itree_step *s = &in->cur.step[level];

		/* In a parent, the new child comes after the split one. */
		pos = level ? s->pos + 1 : s->pos;
		if (node_count(&s->buf) < node_limit(&s->buf)) {
			err2 = itree_node_put_entry(t, &s->buf, level, pos,
						    key, child);
			if (!err)
				err = err2;
			if (level < in->cur.level)
				err = itree_node_dirty(t, &s->buf, err);
			break;
		}
		if (in->used >= in->nfresh) {
			err2 = node_changed(t, &s->buf);
			if (!err)
				err = err2;
			break;
		}
		err2 = split_node(t, in, level, pos, append, &key, &child);
		if (!err)
			err = err2;
	}
	/* With fewer splits than planned, a node would be lost. */
	if (!err && in->used != in->nfresh)
		err = node_changed(t, &t->root);
	return itree_node_dirty(t, &t->root, err);
}

/**
 * itree_insert - add a key
 * @t: open tree
 * @key: need not be new: equal keys are kept as often as they are inserted
 *
 * Never allocates: takes nodes from the free list, which itree_reserve() fills.
 * Returns 0 or a negative error: -ENOSPC without a reserve, -EOVERFLOW at the
 * greatest depth.
 */
int itree_insert(struct itree *t, u64 key)
{
	struct insert in;
	int ret;

	in.nfresh = 0;
	in.used = 0;
	ret = itree_descend(t, key, ITREE_AFTER, &in.cur);
	if (ret)
		return ret;
	ret = insert_plan(t, &in);
	if (ret >= 0)
		ret = insert_take(t, &in, ret);
	if (!ret)
		ret = insert_access(t, &in);
	if (!ret)
		ret = insert_apply(t, &in, key);
	while (in.nfresh)
		itree_put(t, &in.fresh[--in.nfresh]);
	itree_cursor_release(&in.cur);
	return ret;
}

/* --- delete --- */

enum action {
	KEEP,		/* only remove an entry from the node */
	REMOVE,		/* the node becomes empty: free it */
	INTO_LEFT,	/* move the other entries into the left neighbour */
	FROM_RIGHT,	/* take in the right neighbour and free it */
};

struct delete_level {
	enum action action;
	u32 pos;		/* entry that leaves the node */
	struct itree_buf sibling;
};

struct delete {
	struct itree_cursor cur;
	struct delete_level level[ITREE_MAX_DEPTH];
	u32 top;		/* highest level that changes */
	struct itree_buf *only;	/* if set, the root's only child, which moves
				 * into the root
				 */
	struct itree_buf other;	/* holds it if no other buf does */
};

/* Reads the neighbour at @pos of the parent and checks it as a descent does. */
static int read_sibling(struct itree_cursor *cur, u32 level, u32 pos,
			struct itree_buf *out)
{
	struct itree_cursor side;
	int err;

	memset(&side, 0, sizeof(side));
	side.t = cur->t;
	side.level = cur->level;
	side.step[level + 1] = cur->step[level + 1];
	side.step[level + 1].pos = pos;
	if (node_child(&side.step[level + 1].buf, pos) ==
	    cur->step[level].buf.lblk)
		return itree_corrupt(cur->t, "two entries for one child",
				     cur->step[level + 1].buf.lblk);
	err = itree_read_child(&side, level + 1);
	if (!err)
		*out = side.step[level].buf;
	return err;
}

/* Can the node at @level, down to @left entries, join a neighbour? */
static int plan_merge(struct delete *d, u32 level, u32 left)
{
	struct itree_cursor *cur = &d->cur;
	struct itree_step *s = &cur->step[level], *up = s + 1;
	struct delete_level *l = &d->level[level];
	u32 most = merge_most(node_limit(&s->buf));
	int err;

	if (left >= merge_below(&s->buf))
		return 0;
	if (up->pos) {
		err = read_sibling(cur, level, up->pos - 1, &l->sibling);
		if (err)
			return err;
		if (node_count(&l->sibling) + left < most) {
			l->action = INTO_LEFT;
			return 0;
		}
		itree_put(cur->t, &l->sibling);
	}
	if (up->pos + 1 < node_count(&up->buf)) {
		err = read_sibling(cur, level, up->pos + 1, &l->sibling);
		if (err)
			return err;
		if (node_count(&l->sibling) + left < most) {
			l->action = FROM_RIGHT;
			return 0;
		}
		itree_put(cur->t, &l->sibling);
	}
	return 0;
}

/* Decides from the leaf up what to do with each node. */
static int delete_plan(struct delete *d)
{
	struct itree_cursor *cur = &d->cur;
	u32 level, left;
	int err;

	d->level[0].pos = cur->step[0].pos;
	for (level = 0; level < cur->level; level++) {
		struct delete_level *l = &d->level[level];
		struct itree_step *s = &cur->step[level];

		left = node_count(&s->buf) - 1;
		if (!left) {
			l->action = REMOVE;
		} else {
			err = plan_merge(d, level, left);
			if (err)
				return err;
		}
		if (l->action == KEEP)
			break;
		/* Choose the entry of the parent to remove. */
		l[1].pos = s[1].pos + (l->action == FROM_RIGHT);
	}
	d->top = level;
	return 0;
}

/*
 * Plans to make the tree one level lower if the root will have a single child
 * that fits into it with room to spare.
 */
static int plan_collapse(struct itree *t, struct delete *d)
{
	u32 top = d->cur.level, left, count;
	struct itree_buf *node, *only;
	struct delete_level *l;
	int err;

	if (!top)
		return 0;
	left = node_count(&t->root);
	if (d->top == top)
		left--;
	if (left != 1)
		return 0;
	node = &d->cur.step[top - 1].buf;
	l = &d->level[top - 1];
	left = node_count(node) - (d->top >= top - 1);
	switch (l->action) {
	case KEEP:
		only = node;
		count = left;
		break;
	case FROM_RIGHT:
		only = node;
		count = left + node_count(&l->sibling);
		break;
	case INTO_LEFT:
		only = &l->sibling;
		count = left + node_count(only);
		break;
	default:
		only = &d->other;
		err = read_sibling(&d->cur, top - 1,
				   d->cur.step[top].pos ? 0 : 1, only);
		if (err)
			return err;
		count = node_count(only);
	}
	if (count <= merge_most(itree_limit(t->block_size, true, top - 1)))
		d->only = only;
	return 0;
}

static int delete_access(struct itree *t, struct delete *d)
{
	int err = t->ops->access(t, &t->root);
	u32 i;

	for (i = 0; !err && i <= d->top && i < d->cur.level; i++) {
		err = t->ops->access(t, &d->cur.step[i].buf);
		if (!err && d->level[i].sibling.data)
			err = t->ops->access(t, &d->level[i].sibling);
	}
	if (!err && d->only)
		err = t->ops->access(t, d->only);
	return err;
}

/* Removes the entry at @pos from a node. */
static int node_remove(struct itree *t, struct itree_buf *b, u32 level,
		       u32 pos)
{
	u32 count = node_count_once(b);
	struct itree_index_entry *e;

	if (pos >= count || !node_fits(t, b, level, count))
		return node_changed(t, b);
	e = level_entry(b, level, pos);
	memmove(e, level_entry(b, level, pos + 1),
		(count - 1 - pos) * level_entry_size(level));
	node_set_count(b, count - 1);
	if (level && !pos && count > 1) {
		e->i_ino = 0;
		e->i_hash = 0;
	}
	return 0;
}

/* Appends all of @right to @left; @sep is the separator between them. */
static int node_join(struct itree *t, struct itree_buf *left,
		     struct itree_buf *right, u32 level, u64 sep)
{
	u32 nl = node_count_once(left), nr = node_count_once(right);

	if (!node_fits(t, right, level, nr) ||
	    !node_fits(t, left, level, nl + nr))
		return node_changed(t, left);
	if (level)
		node_set_key(right, 0, sep);
	memcpy(level_entry(left, level, nl), node_entries(right),
	       nr * level_entry_size(level));
	node_set_count(left, nl + nr);
	return 0;
}

static int apply_level(struct itree *t, struct delete *d, u32 level)
{
	struct delete_level *l = &d->level[level];
	struct itree_step *s = &d->cur.step[level];
	struct itree_buf *up = &s[1].buf;
	int err;

	err = node_remove(t, &s->buf, level, l->pos);
	if (err)
		goto out;
	switch (l->action) {
	case KEEP:
		break;
	case REMOVE:
		free_push(t, &s->buf);
		break;
	case INTO_LEFT:
		err = node_join(t, &l->sibling, &s->buf, level,
				node_key(up, s[1].pos));
		if (!err)
			free_push(t, &s->buf);
		break;
	case FROM_RIGHT:
		err = node_join(t, &s->buf, &l->sibling, level,
				node_key(up, s[1].pos + 1));
		if (!err)
			free_push(t, &l->sibling);
		break;
	}
	if (l->action != KEEP)
		t->merges++;
out:
	err = itree_node_dirty(t, &s->buf, err);
	if (l->sibling.data)
		err = itree_node_dirty(t, &l->sibling, err);
	return err;
}

static int apply_collapse(struct itree *t, struct delete *d)
{
	struct itree_root_info saved = *node_info(&t->root);
	u32 level = d->cur.level - 1, count = node_count_once(d->only);

	if (!node_fits(t, d->only, level, count) ||
	    count > itree_limit(t->block_size, true, level))
		return node_changed(t, d->only);
	itree_node_init(t, &t->root, ITREE_MAGIC, level);
	*node_info(&t->root) = saved;
	memcpy(node_entries(&t->root), node_entries(d->only),
	       count * level_entry_size(level));
	node_set_count(&t->root, count);
	free_push(t, d->only);
	t->merges++;
	return itree_node_dirty(t, d->only, 0);
}

static int delete_apply(struct itree *t, struct delete *d)
{
	struct itree_root_info saved;
	u32 level;
	int err = 0, err2;

	root_add(t, -1);
	for (level = 0; level < d->cur.level && level <= d->top; level++) {
		err2 = apply_level(t, d, level);
		if (!err)
			err = err2;
	}
	if (d->top == d->cur.level) {
		err2 = node_remove(t, &t->root, d->cur.level,
				   d->level[d->cur.level].pos);
		if (!err)
			err = err2;
	}
	if (d->only) {
		err2 = apply_collapse(t, d);
		if (!err)
			err = err2;
	} else if (!node_count(&t->root) && d->cur.level) {
		/* The last key is gone: the root is an empty leaf again. */
		saved = *node_info(&t->root);
		itree_node_init(t, &t->root, ITREE_MAGIC, 0);
		*node_info(&t->root) = saved;
	}
	return itree_node_dirty(t, &t->root, err);
}

/**
 * itree_delete - delete a key
 * @t: open tree
 * @key: if the tree has several such keys, one of them is deleted
 *
 * Needs no space.  Returns 0, -ENOENT if there is no such key, or a negative
 * error.
 */
int itree_delete(struct itree *t, u64 key)
{
	struct delete d;
	u32 i;
	int ret;

	memset(&d, 0, sizeof(d));
	ret = itree_seek(t, key, &d.cur);
	if (ret == ITREE_END || (!ret && itree_cursor_key(&d.cur) != key))
		ret = -ENOENT;
	if (!ret && !node_info(&t->root)->r_keys)
		ret = itree_corrupt(t, "fewer keys counted than there are",
				    ITREE_SEG_START);
	if (!ret)
		ret = delete_plan(&d);
	if (!ret)
		ret = plan_collapse(t, &d);
	if (!ret)
		ret = delete_access(t, &d);
	if (!ret)
		ret = delete_apply(t, &d);
	itree_put(t, &d.other);
	for (i = 0; i < ITREE_MAX_DEPTH; i++)
		itree_put(t, &d.level[i].sibling);
	itree_cursor_release(&d.cur);
	return ret;
}
