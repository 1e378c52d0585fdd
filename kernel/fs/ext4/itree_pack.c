// SPDX-License-Identifier: GPL-2.0-only
/*
 * Packing a directory in use.  ext4 adds blocks to a directory and never frees
 * one, so a queue that once held a million names stays slow for ever.
 *
 * One pass in hash order joins neighbouring leaves of the htree, and then
 * neighbouring index blocks, that fit into one block together.  The block that
 * this empties takes the contents of the directory's last block, and the last
 * block is freed.  All of that is one transaction, so after a crash each block
 * of the directory has its place in the htree.
 *
 * A name keeps its hash and its inode.  Positions of readers, including those
 * of NFS clients, consist of these and stay valid, and a tree need not change.
 * Readers that visit the blocks in their logical order would miss names that
 * move to lower blocks, so packing waits for them, see ext4_itree_visit_all().
 *
 * A step never waits for the disk.  If a block is not in memory, the step ends
 * before it has changed anything, and the block is read without the lock.
 */
#include <linux/buffer_head.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/iversion.h>
#include <linux/ktime.h>
#include <linux/mount.h>
#include <linux/quotaops.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include "ext4.h"
#include "ext4_extents.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"

/* A call returns after so many milliseconds, to allow progress and pauses. */
#define CALL_MS		100
/* Steps in one hold of i_rwsem: each joins two blocks or moves on by one. */
#define STEPS		16U
/* Blocks to pin that have been read for a step. */
#define PINS		16U
/*
 * How full a block may get, so that the next new names do not split it at once.
 * e2fsck -D leaves as much room.
 */
#define FULL(room)	((room) * 4 / 5)
/* Returned by a step that cannot continue until pack->missing is read. */
#define MISSING		1

struct htree_path {
	struct ext4_htree_node node[EXT4_HTREE_LEVEL];
	u32		bottom;
};

struct pack {
	struct inode	*dir;
	struct ext4_itree_dir *d;
	u32		cursor;		/* hash that the pass has reached */
	bool		done;
	bool		changed;
	u32		room;		/* for entries in a leaf */
	/* Filled before the last block is freed, as it may then be reused. */
	char		*copy;		/* of the last block */
	char		*joined;	/* what goes into the block that stays */

	ext4_lblk_t	missing;	/* has to be read */
	bool		tail;		/* as must be what freeing it needs */
	struct buffer_head *pins[PINS];
	u32		nr_pins;
	/* Memory holds all that is needed to free blocks of this range. */
	ext4_lblk_t	tail_lo;
	ext4_lblk_t	tail_hi;
	struct buffer_head *bitmap;
};

static ext4_lblk_t blocks_of(struct inode *dir)
{
	return dir->i_size >> dir->i_blkbits;
}

/* --- the index --- */

/* The hash field of the first entry holds limit and count of the block. */
static void set_count(struct ext4_htree_entry *first, u32 count)
{
	((__le16 *)first)[1] = cpu_to_le16(count);
}

/*
 * Gets a block of the directory and verifies it.  Returns NULL if it has to be
 * read, and errors by ERR_PTR().
 */
static struct buffer_head *get_block(struct pack *p, ext4_lblk_t block)
{
	struct buffer_head *bh;

	if (block >= blocks_of(p->dir))
		return ERR_PTR(-EFSCORRUPTED);
	bh = ext4_itree_cached_block(p->dir, block);
	if (IS_ERR(bh)) {
		p->missing = block;
		return NULL;
	}
	if (!bh)
		return ERR_PTR(-EFSCORRUPTED);
	if (buffer_verified(bh))
		return bh;
	brelse(bh);
	bh = ext4_read_any_dirblock(p->dir, block);
	return bh ? bh : ERR_PTR(-EFSCORRUPTED);
}

/* Returns 0, MISSING or an error. */
static int open_node(struct pack *p, ext4_lblk_t block,
		     struct ext4_htree_node *n)
{
	struct buffer_head *bh = get_block(p, block);

	if (IS_ERR(bh))
		return PTR_ERR(bh);
	if (!bh)
		return MISSING;
	if (ext4_htree_parse(p->dir, bh, block, n))
		return 0;
	brelse(bh);
	n->bh = NULL;
	return -EFSCORRUPTED;
}

static void close_path(struct htree_path *path)
{
	u32 l;

	for (l = 0; l < EXT4_HTREE_LEVEL; l++)
		brelse(path->node[l].bh);
}

/* Finds the leaf of a hash.  Call close_path() whatever this returns. */
static int walk(struct pack *p, u32 hash, struct htree_path *path)
{
	struct ext4_htree_node *n = path->node;
	ext4_lblk_t block = 0;
	int err;

	memset(path, 0, sizeof(*path));
	while (1) {
		err = open_node(p, block, n);
		if (err)
			return err;
		if (!block)
			path->bottom = n->levels;
		while (n->at + 1 < n->count && ext4_htree_hash(n, n->at + 1) <= hash)
			n->at++;
		block = ext4_htree_child(n, n->at);
		if (n == &path->node[path->bottom])
			return 0;
		if (!block)
			return -EFSCORRUPTED;
		n++;
	}
}

/* --- leaves --- */

static struct ext4_dir_entry_2 *next_entry(struct inode *dir,
					   struct ext4_dir_entry_2 *de)
{
	return (struct ext4_dir_entry_2 *)
		((char *)de + ext4_rec_len_from_disk(de->rec_len,
						     dir->i_sb->s_blocksize));
}

/* Sums up the space that the names of a leaf need. */
static int measure(struct pack *p, struct buffer_head *bh, u32 *bytes)
{
	struct ext4_dir_entry_2 *de = (struct ext4_dir_entry_2 *)bh->b_data;
	char *base = bh->b_data;

	*bytes = 0;
	for (; (char *)de < base + p->room; de = next_entry(p->dir, de)) {
		if (ext4_check_dir_entry(p->dir, NULL, de, bh, base, p->room,
					 (char *)de - base))
			return -EFSCORRUPTED;
		if (de->inode)
			*bytes += ext4_dir_rec_len(de->name_len, p->dir);
	}
	return 0;
}

/*
 * Moves the names in @from to @to, without gaps.  Both may be in the same leaf.
 * Returns where the next name goes, and sets @last to the last one.
 */
static char *move_names(struct pack *p, char *from, char *to,
			struct ext4_dir_entry_2 **last)
{
	struct ext4_dir_entry_2 *de = (struct ext4_dir_entry_2 *)from, *next;
	u32 size = p->dir->i_sb->s_blocksize, len;

	for (; (char *)de < from + p->room; de = next) {
		next = next_entry(p->dir, de);
		if (!de->inode)
			continue;
		len = ext4_dir_rec_len(de->name_len, p->dir);
		memmove(to, de, len);
		*last = (struct ext4_dir_entry_2 *)to;
		(*last)->rec_len = ext4_rec_len_to_disk(len, size);
		to += len;
	}
	return to;
}

/* In p->joined, which holds the contents of the leaf that stays. */
static void join_leaves(struct pack *p, char *gone)
{
	struct ext4_dir_entry_2 *last = NULL;
	char *to = move_names(p, p->joined, p->joined, &last);

	move_names(p, gone, to, &last);
	if (!last) {
		last = (struct ext4_dir_entry_2 *)p->joined;
		last->inode = 0;
		last->name_len = 0;
	}
	last->rec_len = ext4_rec_len_to_disk(p->joined + p->room - (char *)last,
					     p->dir->i_sb->s_blocksize);
}

/* --- the index block that points to a block --- */

static bool points_to(const struct ext4_htree_node *n, ext4_lblk_t block,
		      u32 *at)
{
	for (*at = 0; *at < n->count; (*at)++)
		if (ext4_htree_child(n, *at) == block)
			return true;
	return false;
}

struct search {
	ext4_lblk_t	block;		/* wanted */
	u32		levels;		/* of the htree */
	bool		found;
	ext4_lblk_t	holder;
	u32		level;		/* of the holder, 0: the root */
};

/* Searches the index block @at and those below it. */
static int search_holder(struct pack *p, struct search *s, ext4_lblk_t at,
			 u32 level)
{
	struct ext4_htree_node n;
	u32 i;
	int err;

	err = open_node(p, at, &n);
	if (err)
		return err;
	if (!level)
		s->levels = n.levels;
	s->found = points_to(&n, s->block, &i);
	s->holder = at;
	s->level = level;
	for (i = 0; !err && !s->found && level < s->levels && i < n.count; i++)
		err = ext4_htree_child(&n, i) ?
		      search_holder(p, s, ext4_htree_child(&n, i), level + 1) :
		      -EFSCORRUPTED;
	brelse(n.bh);
	return err;
}

static bool first_hash(struct pack *p, struct buffer_head *bh, u32 *hash)
{
	struct ext4_dir_entry_2 *de = (struct ext4_dir_entry_2 *)bh->b_data;
	char *base = bh->b_data;
	u8 version;

	if (ext4_itree_hash_version(p->dir, &version))
		return false;
	for (; (char *)de < base + p->room; de = next_entry(p->dir, de)) {
		u32 len = ext4_rec_len_from_disk(de->rec_len, bh->b_size);

		/* It may be an index block. */
		if (len < ext4_dir_rec_len(1, NULL) ||
		    len > base + p->room - (char *)de)
			return false;
		if (de->inode && de->name_len &&
		    ext4_dir_rec_len(de->name_len, p->dir) <= len)
			return !ext4_itree_hash_entry(p->dir, version, de,
						      hash, NULL);
	}
	return false;
}

/*
 * Finds the index block that points to @block, whose contents are in @bh, by
 * the hash of its first name.  That fails for an index block, and for a leaf
 * that is empty or continues a hash: then searches the whole index.  Sets @leaf
 * if @block is a leaf.
 */
static int find_holder(struct pack *p, ext4_lblk_t block,
		       struct buffer_head *bh, struct ext4_htree_node *holder,
		       bool *leaf)
{
	struct search s = { .block = block };
	struct htree_path path;
	u32 hash, i;
	int err;

	if (first_hash(p, bh, &hash)) {
		err = walk(p, hash, &path);
		if (!err && points_to(&path.node[path.bottom], block, &i)) {
			*holder = path.node[path.bottom];
			get_bh(holder->bh);
			*leaf = true;
			close_path(&path);
			return 0;
		}
		close_path(&path);
		if (err)
			return err;
	}
	err = search_holder(p, &s, 0, 0);
	if (err)
		return err;
	/* Nothing points to the block: e2fsck reports more about that. */
	if (!s.found)
		return -EFSCORRUPTED;
	*leaf = s.level == s.levels;
	return open_node(p, s.holder, holder);
}

/* --- one change --- */

/*
 * Joins the blocks of the entries @at and @at + 1 of @parent.  Or the root
 * takes the contents of its only child, and the htree loses a level.
 */
struct change {
	struct ext4_htree_node *parent;
	u32		at;
	bool		leaves;
	bool		collapse;
	struct buffer_head *left;
	struct buffer_head *right;	/* with collapse: the child */

	/* The block that goes, and the last one, which takes its place. */
	struct buffer_head *keep;
	struct buffer_head *gone;
	ext4_lblk_t	gone_block;
	ext4_lblk_t	last;
	bool		move;
	bool		move_leaf;
	struct ext4_htree_node holder;
};

static void choose_block(struct change *c)
{
	ext4_lblk_t left = ext4_htree_child(c->parent, c->at), right;

	if (c->collapse) {
		c->keep = c->parent->bh;
		c->gone = c->right;
		c->gone_block = left;
		return;
	}
	right = ext4_htree_child(c->parent, c->at + 1);
	c->keep = left < right ? c->left : c->right;
	c->gone = left < right ? c->right : c->left;
	c->gone_block = max(left, right);
}

/* Returns the entries of an index block in p->joined, the copy of it. */
static struct ext4_htree_entry *joined_entries(struct pack *p,
					       const struct ext4_htree_node *n)
{
	return (struct ext4_htree_entry *)
		(p->joined + ((char *)n->e - n->bh->b_data));
}

/* Puts the entries of both index blocks into p->joined, in their order. */
static void join_nodes(struct pack *p, struct change *c)
{
	struct ext4_htree_node left, right;
	struct ext4_htree_entry *to;

	ext4_htree_parse(p->dir, c->left, ext4_htree_child(c->parent, c->at), &left);
	ext4_htree_parse(p->dir, c->right,
			 ext4_htree_child(c->parent, c->at + 1), &right);
	to = joined_entries(p, c->keep == c->left ? &left : &right);
	/* Keep the first entry's hash: it is limit and count of that block. */
	to[0].block = left.e[0].block;
	memcpy(to + 1, left.e + 1, (left.count - 1) * sizeof(*to));
	memcpy(to + left.count, right.e, right.count * sizeof(*to));
	to[left.count].hash = c->parent->e[c->at + 1].hash;
	set_count(to, left.count + right.count);
}

static void collapse(struct pack *p, struct change *c)
{
	struct ext4_htree_entry *to = joined_entries(p, c->parent);
	struct ext4_htree_node child;

	ext4_htree_parse(p->dir, c->right, c->gone_block, &child);
	to[0].block = child.e[0].block;
	memcpy(to + 1, child.e + 1, (child.count - 1) * sizeof(*to));
	set_count(to, child.count);
	p->joined[24 + 6]--;
}

static void join(struct pack *p, struct change *c)
{
	memcpy(p->joined, c->keep->b_data, p->dir->i_sb->s_blocksize);
	if (c->leaves)
		join_leaves(p, c->gone->b_data);
	else if (c->collapse)
		collapse(p, c);
	else
		join_nodes(p, c);
}

static void remove_entry(struct ext4_htree_node *n, u32 at)
{
	memmove(n->e + at, n->e + at + 1,
		(n->count - at - 1) * sizeof(*n->e));
	set_count(n->e, --n->count);
}

/* Makes @n refer to @bh, to which the contents of its block have moved. */
static void moved_to(struct pack *p, struct ext4_htree_node *n,
		     struct buffer_head *bh)
{
	get_bh(bh);
	brelse(n->bh);
	ext4_htree_parse(p->dir, bh, n->block, n);
}

static int dirty(handle_t *handle, struct inode *dir, struct buffer_head *bh,
		 bool leaf)
{
	return leaf ? ext4_handle_dirty_dirblock(handle, dir, bh) :
		      ext4_handle_dirty_dx_node(handle, dir, bh);
}

/* Changes the blocks.  The last one has been freed, so this must not fail. */
static int apply(handle_t *handle, struct pack *p, struct change *c)
{
	struct inode *dir = p->dir;
	struct ext4_htree_node *parent = c->parent;
	u32 at = c->at, i;
	int err, err2;

	memcpy(c->keep->b_data, p->joined, dir->i_sb->s_blocksize);
	if (c->move) {
		/* The holder of the pointer to the last block may be @gone. */
		if (c->holder.bh == c->gone) {
			c->holder.block = c->collapse ? 0 : c->holder.block;
			moved_to(p, &c->holder, c->keep);
		}
		memcpy(c->gone->b_data, p->copy, dir->i_sb->s_blocksize);
		set_buffer_verified(c->gone);
		if (parent->block == c->last)
			moved_to(p, parent, c->gone);
	}
	if (!c->collapse) {
		if (ext4_htree_child(parent, at) == c->gone_block)
			parent->e[at].block = parent->e[at + 1].block;
		remove_entry(parent, at + 1);
	}
	err = dirty(handle, dir, c->keep, c->leaves);
	if (!err)
		err = dirty(handle, dir, parent->bh, false);
	if (c->move) {
		ext4_htree_parse(p->dir, c->holder.bh, c->holder.block,
				 &c->holder);
		if (!points_to(&c->holder, c->last, &i))
			return -EFSCORRUPTED;
		c->holder.e[i].block = cpu_to_le32(c->gone_block);
		if (!err)
			err = dirty(handle, dir, c->gone, c->move_leaf);
		if (!err)
			err = dirty(handle, dir, c->holder.bh, false);
	}
	i_size_write(dir, (loff_t)c->last << dir->i_blkbits);
	EXT4_I(dir)->i_disksize = dir->i_size;
	inode_inc_iversion(dir);
	err2 = ext4_mark_inode_dirty(handle, dir);
	return err ? err : err2;
}

/* Frees the last block.  Returns an error only if it is still mapped. */
static int free_last(struct inode *dir, ext4_lblk_t last)
{
	struct ext4_map_blocks map = { .m_lblk = last, .m_len = 1 };
	int err = ext4_itree_free_range(dir, last, last);

	if (err && !ext4_map_blocks(NULL, dir, &map, 0))
		err = 0;
	return err;
}

/*
 * Credits for five blocks, the inode, and what ext4_ext_remove_space() needs to
 * free a block: with less, it would continue in another transaction.
 */
static handle_t *start(struct inode *dir)
{
	int depth = ext_depth(dir);
	int groups = 1 + EXT_INIT_MAX_LEN / EXT4_BLOCKS_PER_GROUP(dir->i_sb);
	int credits = 6 + 7 + 2 * groups + depth + 1 +
		      EXT4_MAXQUOTAS_TRANS_BLOCKS(dir->i_sb);
	int revoke = ext4_free_metadata_revoke_credits(dir->i_sb, depth + 2) +
		     ext4_free_data_revoke_credits(dir, 1);

	return ext4_journal_start_with_revoke(dir, EXT4_HT_DIR, credits,
					      revoke);
}

static int get_access(handle_t *handle, struct pack *p, struct change *c)
{
	struct super_block *sb = p->dir->i_sb;
	struct buffer_head *bh[] = { c->keep, c->parent->bh,
				     c->move ? c->gone : NULL,
				     c->move ? c->holder.bh : NULL };
	int err = 0, i;

	for (i = 0; !err && i < ARRAY_SIZE(bh); i++)
		if (bh[i])
			err = ext4_journal_get_write_access(handle, sb, bh[i],
							    EXT4_JTR_NONE);
	return err;
}

static int commit(struct pack *p, struct change *c)
{
	handle_t *handle = start(p->dir);
	int err, err2;

	if (IS_ERR(handle))
		return PTR_ERR(handle);
	ext4_fc_mark_ineligible(p->dir->i_sb, EXT4_FC_REASON_FALLOC_RANGE,
				handle);
	err = get_access(handle, p, c);
	if (!err)
		err = free_last(p->dir, c->last);
	if (!err) {
		err = apply(handle, p, c);
		if (err)
			ext4_std_error(p->dir->i_sb, err);
		p->changed = true;
	}
	err2 = ext4_journal_stop(handle);
	return err ? err : err2;
}

/* Makes the change if memory holds all that it needs. */
static int change(struct pack *p, struct change *c)
{
	struct buffer_head *bh;
	int err = 0;

	c->last = blocks_of(p->dir) - 1;
	choose_block(c);
	bh = get_block(p, c->last);
	if (IS_ERR_OR_NULL(bh))
		return bh ? PTR_ERR(bh) : MISSING;
	if (c->last < p->tail_lo || c->last > p->tail_hi) {
		p->missing = c->last;
		p->tail = true;
		err = MISSING;
	} else if (c->gone_block != c->last) {
		c->move = true;
		err = find_holder(p, c->last, bh, &c->holder, &c->move_leaf);
		memcpy(p->copy, bh->b_data, p->dir->i_sb->s_blocksize);
	}
	brelse(bh);
	if (!err) {
		join(p, c);
		err = commit(p, c);
	}
	if (c->move)
		brelse(c->holder.bh);
	return err;
}

/* --- the pass --- */

/*
 * Gets a leaf and the space that its names need.  Without checksums, an index
 * block looks like a leaf without names.
 */
static int open_leaf(struct pack *p, ext4_lblk_t block,
		     struct buffer_head **bh, u32 *bytes)
{
	struct ext4_htree_node index;
	struct buffer_head *leaf;

	leaf = block ? get_block(p, block) : ERR_PTR(-EFSCORRUPTED);
	if (IS_ERR_OR_NULL(leaf))
		return leaf ? PTR_ERR(leaf) : MISSING;
	*bh = leaf;
	if (ext4_htree_parse(p->dir, leaf, block, &index))
		return -EFSCORRUPTED;
	return measure(p, leaf, bytes);
}

/* Joins the leaf at the cursor and the next one, or moves on to that. */
static int step_leaf(struct pack *p, struct ext4_htree_node *n)
{
	struct change c = { .parent = n, .at = n->at, .leaves = true };
	u32 left, right, next = ext4_htree_hash(n, n->at + 1);
	int err;

	if (ext4_htree_child(n, n->at) == ext4_htree_child(n, n->at + 1))
		return -EFSCORRUPTED;
	err = open_leaf(p, ext4_htree_child(n, n->at), &c.left, &left);
	if (!err)
		err = open_leaf(p, ext4_htree_child(n, n->at + 1), &c.right, &right);
	if (!err && left + right <= FULL(p->room))
		err = change(p, &c);
	else if (!err)
		p->cursor = next;
	brelse(c.right);
	brelse(c.left);
	return err;
}

/* Joins a finished index block and the one before it, if they fit. */
static int step_node(struct pack *p, struct ext4_htree_node *parent,
		     struct ext4_htree_node *n, bool *joined)
{
	struct change c = { .parent = parent, .at = parent->at - 1,
			    .right = n->bh };
	struct ext4_htree_node left;
	int err;

	*joined = false;
	if (!parent->at)
		return 0;
	err = open_node(p, ext4_htree_child(parent, c.at), &left);
	if (err)
		return err;
	if (left.count + n->count <= FULL(left.limit)) {
		c.left = left.bh;
		/* The last leaf there and the first one here are neighbours. */
		p->cursor = left.count > 1 ? ext4_htree_hash(&left, left.count - 1) :
			    c.at ? ext4_htree_hash(parent, c.at) : 0;
		err = change(p, &c);
		*joined = true;
	}
	brelse(left.bh);
	return err;
}

static int step_root(struct pack *p, struct htree_path *path)
{
	struct ext4_htree_node *root = &path->node[0];
	struct change c = { .parent = root, .collapse = true,
			    .right = path->node[1].bh };

	if (path->bottom && root->count == 1 &&
	    path->node[1].count <= FULL(root->limit))
		return change(p, &c);
	p->done = true;
	return 0;
}

/* Returns 0, MISSING or an error. */
static int step(struct pack *p)
{
	struct ext4_htree_node *n;
	struct htree_path path;
	bool joined = false;
	u32 l, cursor = p->cursor;
	int err;

	err = walk(p, p->cursor, &path);
	for (l = path.bottom + 1; !err && !joined && l--;) {
		n = &path.node[l];
		if (l == path.bottom && n->at + 1 < n->count) {
			err = step_leaf(p, n);
			break;
		}
		if (n->at + 1 < n->count) {
			p->cursor = ext4_htree_hash(n, n->at + 1);
			break;
		}
		if (l)
			err = step_node(p, n - 1, n, &joined);
		else
			err = step_root(p, &path);
	}
	close_path(&path);
	if (err)
		p->cursor = cursor;
	return err;
}

static void drop_pins(struct pack *p)
{
	while (p->nr_pins)
		brelse(p->pins[--p->nr_pins]);
}

static int steps(struct pack *p)
{
	u32 i;
	int err;

	inode_lock(p->dir);
	err = ext4_itree_check_dir(p->dir);
	if (!err && atomic_read(&p->d->visits)) {
		inode_unlock(p->dir);
		msleep_interruptible(10);
		return 0;
	}
	for (i = 0; !err && !p->done && i < STEPS; i++) {
		if (i && rwsem_is_contended(&p->dir->i_rwsem))
			break;
		err = step(p);
	}
	inode_unlock(p->dir);
	if (!err)
		drop_pins(p);
	return err;
}

/* Reads what freeing a block needs: the extent tree's blocks and a bitmap. */
static int load_tail(struct pack *p, ext4_lblk_t last)
{
	struct inode *dir = p->dir;
	struct ext4_ext_path *path;
	ext4_grpblk_t offset;
	ext4_group_t group;
	ext4_fsblk_t pblk = 0;
	ext4_lblk_t first = 0;
	struct ext4_extent *ex;

	down_write(&EXT4_I(dir)->i_data_sem);
	ext4_discard_preallocations(dir);
	path = ext4_find_extent(dir, last, NULL, EXT4_EX_NOCACHE);
	if (!IS_ERR(path)) {
		ex = path[ext_depth(dir)].p_ext;
		first = ex ? le32_to_cpu(ex->ee_block) : 0;
		if (ex && last >= first &&
		    last < first + ext4_ext_get_actual_len(ex))
			pblk = ext4_ext_pblock(ex) + last - first;
		ext4_free_ext_path(path);
	}
	up_write(&EXT4_I(dir)->i_data_sem);
	if (IS_ERR(path))
		return PTR_ERR(path);
	/* The directory has changed meanwhile: let the next step see. */
	if (!pblk)
		return 0;
	ext4_get_group_no_and_offset(dir->i_sb, pblk, &group, &offset);
	brelse(p->bitmap);
	p->bitmap = ext4_read_block_bitmap(dir->i_sb, group);
	if (IS_ERR(p->bitmap)) {
		int err = PTR_ERR(p->bitmap);

		p->bitmap = NULL;
		return err;
	}
	p->tail_hi = last;
	p->tail_lo = max_t(s64, first,
			   (s64)last - EXT4_C2B(EXT4_SB(dir->i_sb), offset));
	return 0;
}

/* Reads the block that a step needs. */
static int load(struct pack *p)
{
	struct buffer_head *pin = NULL;
	bool tail = p->tail;
	int err;

	p->tail = false;
	inode_lock_shared(p->dir);
	err = ext4_itree_check_dir(p->dir);
	if (!err)
		err = ext4_itree_load(p->dir, p->missing, &pin);
	inode_unlock_shared(p->dir);
	if (p->nr_pins == PINS)
		drop_pins(p);
	if (pin)
		p->pins[p->nr_pins++] = pin;
	return !err && tail ? load_tail(p, p->missing) : err;
}

static int pack_for_a_while(struct pack *p)
{
	ktime_t end = ktime_add_ms(ktime_get(), CALL_MS);
	int err;

	/* Leaves are read in random order: read them ahead if they fit. */
	if (!p->cursor)
		ext4_itree_ahead_dir(p->dir, 0);
	do {
		err = steps(p);
		if (err == MISSING)
			err = load(p);
		cond_resched();
	} while (!err && !p->done && !signal_pending(current) &&
		 ktime_before(ktime_get(), end));
	drop_pins(p);
	brelse(p->bitmap);
	return err;
}

static int begin(struct pack *p)
{
	int err;

	inode_lock(p->dir);
	err = ext4_itree_check_dir(p->dir);
	if (!err && IS_IMMUTABLE(p->dir))
		err = -EPERM;
	if (!err && (p->d->builder || p->d->packing))
		err = -EBUSY;
	if (!err)
		p->d->packing = true;
	inode_unlock(p->dir);
	return err;
}

static void end(struct pack *p)
{
	inode_lock(p->dir);
	p->d->packing = false;
	inode_unlock(p->dir);
}

/**
 * ext4_itree_pack - pack a directory in use for a while
 * @file: the open directory
 * @a: ia_from and ia_next, the hashes to start and to continue with
 *
 * Sleeps.  Holds i_rwsem for short times and never while it waits for the disk.
 * Returns 0, with EXT4_ITREE_MORE if there is more to do, also at a signal, or
 * a negative error as listed in itree_ioctl.h.  Each change is a transaction of
 * its own, so an error loses nothing.
 */
int ext4_itree_pack(struct file *file, struct ext4_itree_args *a)
{
	struct inode *dir = file_inode(file);
	struct super_block *sb = dir->i_sb;
	struct pack p = {
		.dir = dir,
		.d = ext4_itree_make_dir(dir),
		.cursor = a->ia_from,
		.tail_lo = 1,		/* none */
		.room = sb->s_blocksize,
	};
	int err;

	if (ext4_has_feature_metadata_csum(sb))
		p.room -= sizeof(struct ext4_dir_entry_tail);
	p.copy = kvmalloc(2 * sb->s_blocksize, GFP_KERNEL_ACCOUNT);
	if (!p.d || !p.copy) {
		kvfree(p.copy);
		return -ENOMEM;
	}
	p.joined = p.copy + sb->s_blocksize;
	err = mnt_want_write_file(file);
	if (err)
		goto out;
	err = dquot_initialize(dir);
	if (!err)
		err = begin(&p);
	if (!err) {
		err = pack_for_a_while(&p);
		end(&p);
	}
	mnt_drop_write_file(file);
	a->ia_next = p.cursor;
	if (p.changed)
		a->ia_state |= EXT4_ITREE_CHANGED;
	if (!p.done)
		a->ia_state |= EXT4_ITREE_MORE;
out:
	kvfree(p.copy);
	return err;
}
