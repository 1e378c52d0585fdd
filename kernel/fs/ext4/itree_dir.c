// SPDX-License-Identifier: GPL-2.0-only
/*
 * Keeping a directory's itree in step with the directory.
 *
 * An operation has three steps.  ext4_itree_reserve() obtains all space the
 * tree may need; it may fail a create before anything has changed, but never a
 * rename.  Then the directory entry changes, and the tree follows in the same
 * handle.  That last step must not fail: if it is impossible, the tree is
 * dropped, which costs speed but never a name.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "ext4.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"

#include <trace/events/ext4.h>

/*
 * Journal credits of one insert: a path of ITREE_MAX_DEPTH nodes and as many
 * new ones, the root, and two mapped chunks of the segment (inode, bitmap,
 * group descriptor and extent blocks each).
 */
#define INSERT_CREDITS	(2 * ITREE_MAX_DEPTH + 1 + 2 * 8)
/* Of one delete: a node and a neighbour a level, the root. */
#define DELETE_CREDITS	(2 * ITREE_MAX_DEPTH + 1)

/* Blocks read ahead of a pass over all of a large directory. */
#define AHEAD		256U
/* Blocks to visit before waiters for i_rwsem have their turn. */
#define HOLD_BLOCKS	8U

static_assert(EXT4_ITREE_NR_STATS ==
	      ARRAY_SIZE(((struct ext4_sb_info *)0)->s_itree_stats));

void ext4_itree_count(struct super_block *sb, enum ext4_itree_stat stat, u32 n)
{
	struct percpu_counter *count = &EXT4_SB(sb)->s_itree_stats[stat];

	/* Replay of fast commits comes before the counters. */
	if (n && percpu_counter_initialized(count))
		percpu_counter_add(count, n);
}

/**
 * ext4_dir_has_itree - does this directory have a tree to maintain?
 * @dir: any inode
 */
bool ext4_dir_has_itree(struct inode *dir)
{
	return ext4_test_inode_flag(dir, EXT4_INODE_ITREE) &&
	       ext4_has_feature_itree(dir->i_sb) && S_ISDIR(dir->i_mode) &&
	       ext4_test_inode_flag(dir, EXT4_INODE_EXTENTS) &&
	       ext4_test_inode_flag(dir, EXT4_INODE_INDEX);
}

/**
 * ext4_itree_credits - journal credits that the tree adds to an operation
 * @dir: directory in which the operation adds, deletes or replaces a name
 *
 * Enough for the worst operation on one directory, RENAME_WHITEOUT within it.
 */
int ext4_itree_credits(struct inode *dir)
{
	if (!ext4_dir_has_itree(dir))
		return 0;
	return 2 * (INSERT_CREDITS + DELETE_CREDITS);
}

/**
 * ext4_itree_bad - report a tree that cannot be read or breaks a rule
 * @dir: its directory; i_rwsem held
 * @err: -EIO, -EFSCORRUPTED, -EFSBADCRC
 * @t: the tree, with the reason if it has one, or NULL
 *
 * The directory does not need its tree, so this is not an ext4_error(): neither
 * errors=remount-ro nor errors=panic applies.  The log names the directory and
 * the block, and the superblock records that a check is due.
 */
void ext4_itree_bad(struct inode *dir, int err, const struct itree *t)
{
	const char *why = t && t->why ? t->why : "cannot be read";
	u32 lblk = t && t->why ? t->why_lblk : ITREE_SEG_START;

	ext4_set_inode_state(dir, EXT4_STATE_ITREE_BAD);
	ext4_itree_readers_doubt(dir);
	if (ext4_forced_shutdown(dir->i_sb))
		return;
	ext4_warning_inode(dir, "itree block %u: %s (error %d); ignored, run e2fsck",
			   lblk - ITREE_SEG_START, why, err);
	ext4_inode_check_due(dir, -err, __func__, __LINE__);
}

/**
 * ext4_itree_drop - take the tree away from a directory
 * @handle: of the operation that cannot keep the tree
 * @dir: i_rwsem held exclusively
 * @why: for the log, or NULL if the error has been logged
 *
 * The blocks of the segment stay with the directory, unused, until it is
 * removed or e2fsck frees them or builds a new tree there.
 */
void ext4_itree_drop(handle_t *handle, struct inode *dir, const char *why)
{
	/* The htree may be given up; no tree can be built without one. */
	ext4_itree_builder_stop(dir, -EFSCORRUPTED);
	if (!ext4_test_inode_flag(dir, EXT4_INODE_ITREE))
		return;
	if (why)
		ext4_warning_inode(dir, "itree dropped: %s; e4itree build makes a new one",
				   why);
	trace_ext4_itree_drop(dir);
	ext4_itree_readers_lose_added(dir);
	ext4_itree_count(dir->i_sb, EXT4_ITREE_DROPS, 1);
	ext4_clear_inode_flag(dir, EXT4_INODE_ITREE);
	ext4_clear_inode_state(dir, EXT4_STATE_ITREE_ROOM);
	ext4_set_inode_state(dir, EXT4_STATE_ITREE_NOBUILD);
	if (ext4_mark_inode_dirty(handle, dir))
		ext4_std_error(dir->i_sb, -EIO);
}

static bool itree_fatal(int err)
{
	return err == -EFSCORRUPTED || err == -EFSBADCRC || err == -EIO;
}

static bool no_space(int err)
{
	return err == -ENOSPC || err == -EDQUOT;
}

/* Drops a tree that cannot follow the directory, which has changed already. */
static void drop_failed(handle_t *handle, struct inode *dir, int err,
			const struct itree *t)
{
	if (itree_fatal(err)) {
		ext4_itree_bad(dir, err, t);
		ext4_itree_drop(handle, dir, NULL);
	} else {
		ext4_itree_drop(handle, dir, err == -ENOMEM ? "out of memory" :
				no_space(err) ? "no space for its nodes" :
				"it cannot take the change");
	}
}

/* Drops a tree that readdir, which has no handle, could only mark as bad. */
static bool drop_if_bad(handle_t *handle, struct inode *dir)
{
	if (!ext4_test_inode_state(dir, EXT4_STATE_ITREE_BAD))
		return false;
	ext4_itree_drop(handle, dir, NULL);
	ext4_clear_inode_state(dir, EXT4_STATE_ITREE_BAD);
	return true;
}

/* Obtains space; drops a tree that cannot be used.  Returns other errors. */
static int reserve(handle_t *handle, struct inode *dir, u32 inserts)
{
	struct ext4_itree et;
	int err;

	if (!inserts || !ext4_dir_has_itree(dir) || drop_if_bad(handle, dir))
		return 0;
	/* The usual case, in which a create opens the tree only once. */
	if (inserts == 1 && ext4_test_inode_state(dir, EXT4_STATE_ITREE_ROOM))
		return 0;
	err = ext4_itree_open(&et, handle, dir);
	if (!err) {
		err = itree_reserve(&et.t, inserts);
		ext4_itree_close(&et);
	}
	if (!err)
		return 0;
	if (!et.t.torn && !itree_fatal(err) && err != -ENOMEM)
		return err;
	drop_failed(handle, dir, err, &et.t);
	return 0;
}

/**
 * ext4_itree_reserve - obtain the space that a new name's key may need
 * @handle: of the operation, with ext4_itree_credits()
 * @dir: i_rwsem held exclusively
 * @inserts: names that get a new key
 *
 * Returns 0 or the error to fail the operation with: -ENOSPC, -EDQUOT, or an
 * aborted journal.  A tree that cannot be used is dropped without an error.
 * With "noitree", no operation fails for lack of space for the tree.
 */
int ext4_itree_reserve(handle_t *handle, struct inode *dir, u32 inserts)
{
	int err = reserve(handle, dir, inserts);

	return no_space(err) && test_opt2(dir->i_sb, NOITREE) ? 0 : err;
}

/**
 * ext4_itree_reserve_rename - obtain the space that a rename's keys may need
 * @handle: of the rename, with ext4_itree_credits()
 * @old_dir: directory of the old name
 * @old_stays: the old name stays and gets a new inode
 * @new_dir: directory of the new name
 *
 * Best effort.  Programs save mails and files by rename, and stock ext4 needs
 * no space to give a name another inode.  If there is no room for the tree,
 * ext4_itree_renumber() or ext4_itree_add() drops it.
 */
void ext4_itree_reserve_rename(handle_t *handle, struct inode *old_dir,
			       bool old_stays, struct inode *new_dir)
{
	if (old_dir == new_dir) {
		reserve(handle, old_dir, 1 + old_stays);
		return;
	}
	reserve(handle, old_dir, old_stays);
	reserve(handle, new_dir, 1);
}

/* --- names and their keys --- */

/**
 * ext4_itree_hash_version - hash version of a directory's names
 * @dir: directory
 * @version: set to that of the htree's root, or to the file system's own for
 *	directories without an htree
 */
int ext4_itree_hash_version(struct inode *dir, u8 *version)
{
	struct buffer_head *bh;
	u8 found;

	*version = ext4_hash_in_dirent(dir) ? DX_HASH_SIPHASH :
		   EXT4_SB(dir->i_sb)->s_def_hash_version;
	if (!ext4_test_inode_flag(dir, EXT4_INODE_INDEX) ||
	    ext4_has_inline_data(dir))
		return 0;
	bh = ext4_read_any_dirblock(dir, 0);
	if (IS_ERR_OR_NULL(bh))
		return bh ? PTR_ERR(bh) : -EFSCORRUPTED;
	/* "." takes 12 bytes, ".." 12, then comes the dx_root_info. */
	found = ((u8 *)bh->b_data)[24 + 4];
	brelse(bh);
	/*
	 * Look-ups ignore an htree whose root is damaged.  Any hash will do to
	 * sort the names.
	 */
	if (found <= DX_HASH_TEA && !ext4_hash_in_dirent(dir))
		*version = found;
	return 0;
}

/**
 * ext4_itree_hash_name - hash a name that is not encrypted as an htree does
 * @dir: directory
 * @version: from ext4_itree_hash_version()
 * @name: in the directory
 * @len: of the name
 * @hash: major hash, bit 0 clear
 * @minor: may be NULL
 */
int ext4_itree_hash_name(struct inode *dir, u8 version, const char *name,
			 u32 len, u32 *hash, u32 *minor)
{
	struct dx_hash_info hinfo = { .hash_version = version };
	int err;

	if (hinfo.hash_version <= DX_HASH_TEA)
		hinfo.hash_version += EXT4_SB(dir->i_sb)->s_hash_unsigned;
	hinfo.seed = EXT4_SB(dir->i_sb)->s_hash_seed;
	err = ext4fs_dirhash(dir, name, len, &hinfo);
	if (err < 0)
		return err;
	*hash = hinfo.hash & ~1;
	if (minor)
		*minor = hinfo.minor_hash;
	return 0;
}

/**
 * ext4_itree_hash_entry - hash a directory entry as its htree does
 * @dir: directory
 * @de: entry in it
 * @version: from ext4_itree_hash_version()
 * @hash: major hash, bit 0 clear
 * @minor: may be NULL
 */
int ext4_itree_hash_entry(struct inode *dir, u8 version,
			  struct ext4_dir_entry_2 *de, u32 *hash, u32 *minor)
{
	if (!ext4_hash_in_dirent(dir))
		return ext4_itree_hash_name(dir, version, de->name,
					    de->name_len, hash, minor);
	*hash = EXT4_DIRENT_HASH(de) & ~1;
	if (minor)
		*minor = EXT4_DIRENT_MINOR_HASH(de);
	return 0;
}

static bool is_dot(const struct ext4_dir_entry_2 *de)
{
	return de->name[0] == '.' &&
	       (de->name_len == 1 || (de->name_len == 2 && de->name[1] == '.'));
}

/*
 * Gets a directory block.  Returns NULL for one to skip: a hole or, for
 * readers, a block that cannot be read.  Readers release i_rwsem while they
 * wait for it.
 */
static struct buffer_head *visited_block(struct ext4_itree_visit *v,
					 ext4_lblk_t block)
{
	struct buffer_head *bh, *pin = NULL;
	int err = 0;

	if (v->shared) {
		if (++v->held > HOLD_BLOCKS &&
		    rwsem_is_contended(&v->dir->i_rwsem)) {
			v->held = 0;
			err = ext4_itree_relax(v->dir);
		}
		if (!err)
			err = ext4_itree_load(v->dir, block, &pin);
		if (err == -EIO)
			ext4_warning_inode(v->dir, "error %d reading directory block %u",
					   err, block);
	}
	/* Packing has freed it while i_rwsem was released. */
	if (!err && v->shared && block >= v->dir->i_size >> v->dir->i_blkbits) {
		brelse(pin);
		return NULL;
	}
	bh = err ? ERR_PTR(err) : ext4_read_any_dirblock(v->dir, block);
	brelse(pin);
	if (!v->shared || !IS_ERR(bh))
		return bh;
	err = PTR_ERR(bh);
	if (err != -EIO && err != -EFSBADCRC && err != -EFSCORRUPTED)
		return bh;
	v->unreadable = err;
	return NULL;
}

/**
 * ext4_itree_visit_block - call back for the names in a directory block
 * @v: the visit
 * @block: logical block of the directory
 *
 * Index blocks have none.  A bad entry ends the block, as in ext4's own
 * readdir, unless v->strict is set.  Returns 0, the result of v->name(), or a
 * negative error.
 */
int ext4_itree_visit_block(struct ext4_itree_visit *v, ext4_lblk_t block)
{
	struct inode *dir = v->dir;
	u32 blocksize = dir->i_sb->s_blocksize, lo, hi, ino, hash, minor, rlen;
	bool csum = ext4_has_feature_metadata_csum(dir->i_sb);
	struct ext4_dir_entry_2 *de;
	struct buffer_head *bh;
	char *top;
	u64 key;
	int err = 0;

	if (v->prepare)
		err = v->prepare(v, ext4_itree_block_names(dir->i_sb));
	if (err)
		return err;
	lo = ITREE_KEY_INO(v->lo);
	hi = ITREE_KEY_INO(v->hi);
	bh = visited_block(v, block);
	if (!bh && v->strict)
		return v->unreadable ?: -EFSCORRUPTED;
	if (IS_ERR_OR_NULL(bh))
		return PTR_ERR_OR_ZERO(bh);
	ext4_itree_count(dir->i_sb, EXT4_ITREE_VISITS, 1);
	top = bh->b_data + blocksize - ext4_dir_rec_len(0, csum ? NULL : dir);
	for (de = (struct ext4_dir_entry_2 *)bh->b_data; (char *)de < top;
	     de = (struct ext4_dir_entry_2 *)((char *)de + rlen)) {
		if (ext4_check_dir_entry(dir, NULL, de, bh, bh->b_data,
					 bh->b_size, (char *)de - bh->b_data)) {
			err = v->strict ? -EFSCORRUPTED : 0;
			break;
		}
		rlen = ext4_rec_len_from_disk(de->rec_len, blocksize);
		ino = le32_to_cpu(de->inode);
		if (!ino || ino < lo || ino > hi || (!block && is_dot(de)))
			continue;
		err = ext4_itree_hash_entry(dir, v->hash_version, de, &hash,
					    &minor);
		if (err)
			break;
		key = ITREE_KEY(ino, hash);
		if (key < v->lo || key > v->hi)
			continue;
		err = v->name(v, key, minor, de);
		if (err)
			break;
	}
	brelse(bh);
	return err;
}

static void ahead_of_visit(struct ext4_itree_visit *v, ext4_lblk_t block,
			   ext4_lblk_t blocks)
{
	if (blocks <= EXT4_ITREE_SORT_BLOCKS || block % AHEAD)
		return;
	if (v->shared)
		inode_unlock_shared(v->dir);
	ext4_itree_ahead_range(v->dir, block, min(blocks - block, AHEAD));
	if (v->shared)
		inode_lock_shared(v->dir);
}

static int visit_blocks(struct ext4_itree_visit *v)
{
	ext4_lblk_t blocks, block;
	int err;

	for (block = 0; ; block++) {
		blocks = v->dir->i_size >> v->dir->i_blkbits;
		if (block >= blocks)
			break;
		if (fatal_signal_pending(current))
			return -ERESTARTSYS;
		cond_resched();
		ahead_of_visit(v, block, blocks);
		err = ext4_itree_visit_block(v, block);
		if (err)
			return err;
	}
	return 0;
}

/**
 * ext4_itree_visit_all - call back for all names of a directory
 * @v: the visit; i_rwsem held
 *
 * Visits the blocks in their logical order.  A name that moves to another block
 * meanwhile is not missed: names move to new blocks, which come after all
 * others.  Only packing moves names to lower blocks, and it waits for visits to
 * end.  Returns 0, the result of v->name(), or a negative error.
 */
int ext4_itree_visit_all(struct ext4_itree_visit *v)
{
	struct ext4_itree_dir *d;
	int err;

	if (!v->shared)
		return visit_blocks(v);
	d = ext4_itree_make_dir(v->dir);
	if (!d)
		return -ENOMEM;
	atomic_inc(&d->visits);
	err = visit_blocks(v);
	atomic_dec(&d->visits);
	return err;
}

/* --- building --- */

struct gather {
	struct ext4_itree_visit visit;
	u64	*keys;
	u32	nr;
	u32	max;
};

static int gather_key(struct ext4_itree_visit *v, u64 key, u32 minor,
		      struct ext4_dir_entry_2 *de)
{
	struct gather *g = container_of(v, struct gather, visit);

	if (g->nr >= g->max)
		return -EFSCORRUPTED;
	g->keys[g->nr++] = key;
	return 0;
}

static int cmp_keys(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static int next_key(void *arg, u64 *key)
{
	struct gather *g = arg;

	*key = g->keys[g->nr++];
	return 0;
}

/* Blocks of a tree: root, full nodes, and nodes for the first insert. */
static u32 tree_blocks(struct inode *dir, u32 keys)
{
	return itree_bulk_blocks(dir->i_sb->s_blocksize, keys) + 3;
}

/*
 * Do so many blocks of a tree fit into the transaction and on the disk?
 * Reserved blocks do not count: a build that fails halfway would leave blocks
 * behind.
 */
static int make_room(handle_t *handle, struct inode *dir, u32 blocks)
{
	struct ext4_sb_info *sbi = EXT4_SB(dir->i_sb);

	if (ext4_journal_extend(handle, blocks, 0))
		return -EAGAIN;
	if (ext4_claim_free_clusters(sbi, blocks, 0))
		return -ENOSPC;
	percpu_counter_sub(&sbi->s_dirtyclusters_counter, blocks);
	return 0;
}

static int load_tree(handle_t *handle, struct inode *dir, struct gather *g)
{
	u32 keys = g->nr;
	struct ext4_itree et;
	int err;

	err = ext4_itree_format(&et, handle, dir, tree_blocks(dir, keys),
				g->visit.hash_version);
	if (err)
		return err;
	g->nr = 0;
	err = itree_bulk_load(&et.t, keys, next_key, g);
	ext4_itree_close(&et);
	return err;
}

static int gather_and_load(handle_t *handle, struct inode *dir, u32 *keys)
{
	u32 blocks = dir->i_size >> dir->i_blkbits;
	u32 max = blocks * (dir->i_sb->s_blocksize / ext4_dir_rec_len(1, dir));
	u32 guess = tree_blocks(dir, dir->i_size / EXT4_ITREE_LIKELY_ENTRY), more;
	struct gather g = { .visit = { .dir = dir, .hi = ~0ULL,
				       .name = gather_key }, .max = max };
	int err;

	/* Twice: each block may need its bitmap or group descriptor as well. */
	err = make_room(handle, dir, 2 * guess + 32);
	if (err)
		return err;
	g.keys = kvmalloc_array(max, sizeof(u64), GFP_NOFS | __GFP_NOWARN);
	if (!g.keys)
		return -EAGAIN;
	err = ext4_itree_hash_version(dir, &g.visit.hash_version);
	if (!err)
		err = ext4_itree_visit_all(&g.visit);
	more = err ? 0 : tree_blocks(dir, g.nr);
	if (more > guess)
		err = make_room(handle, dir, 2 * (more - guess));
	if (!err) {
		*keys = g.nr;
		sort(g.keys, g.nr, sizeof(u64), cmp_keys, NULL);
		err = load_tree(handle, dir, &g);
	}
	kvfree(g.keys);
	return err;
}

/*
 * Pins the blocks of the directory that are in memory, up to the first that is
 * not, so that the build reads none.  Returns how many.
 */
static u32 hold_blocks(struct inode *dir, struct buffer_head **bh, u32 blocks)
{
	u32 nr;

	for (nr = 0; nr < blocks; nr++) {
		bh[nr] = ext4_itree_cached_block(dir, nr);
		if (IS_ERR_OR_NULL(bh[nr]))
			break;
	}
	return nr;
}

/*
 * Builds the tree of a directory that has grown to EXT4_ITREE_MIN_BLOCKS, in
 * the handle of the create that made it grow; the flag comes last.  If the
 * build fails, the create goes on and the directory has no tree.  The build
 * reads nothing from the disk, so a create waits no longer than on stock ext4.
 */
static void build(handle_t *handle, struct inode *dir)
{
	u32 blocks = dir->i_size >> dir->i_blkbits, held, keys;
	struct buffer_head *bh[EXT4_ITREE_SORT_BLOCKS];
	int err = -EAGAIN;

	if (!ext4_itree_build_begin(dir->i_sb))
		return;
	held = hold_blocks(dir, bh, blocks);
	if (held == blocks)
		err = gather_and_load(handle, dir, &keys);
	while (held)
		brelse(bh[--held]);
	if (err) {
		ext4_itree_build_end(dir->i_sb);
		/*
		 * Retry later if the transaction was full, a block was not in
		 * memory, or the task is being killed.
		 */
		if (err != -EAGAIN && err != -ERESTARTSYS)
			ext4_set_inode_state(dir, EXT4_STATE_ITREE_NOBUILD);
		return;
	}
	ext4_set_inode_flag(dir, EXT4_INODE_ITREE);
	err = ext4_mark_inode_dirty(handle, dir);
	ext4_itree_build_end(dir->i_sb);
	if (err)
		ext4_std_error(dir->i_sb, err);
	ext4_itree_count(dir->i_sb, EXT4_ITREE_BUILDS, 1);
	trace_ext4_itree_build(dir, keys);
}

static bool should_build(struct inode *dir)
{
	u32 blocks = dir->i_size >> dir->i_blkbits;

	return blocks >= EXT4_ITREE_MIN_BLOCKS &&
	       blocks <= EXT4_ITREE_SORT_BLOCKS &&
	       ext4_has_feature_itree(dir->i_sb) &&
	       ext4_test_inode_flag(dir, EXT4_INODE_EXTENTS) &&
	       ext4_test_inode_flag(dir, EXT4_INODE_INDEX) &&
	       !ext4_test_inode_state(dir, EXT4_STATE_ITREE_NOBUILD) &&
	       !(EXT4_SB(dir->i_sb)->s_mount_state & EXT4_FC_REPLAY);
}

/* --- following changes of the directory --- */

/*
 * Notes for ext4_itree_reserve() whether there is room for one more key.
 * Deletes only add room, and ext4_itree_drop() clears the note.
 */
static int insert_key(struct ext4_itree *et, u64 key)
{
	int err = itree_insert(&et->t, key);

	if (!err && itree_has_room(&et->t))
		ext4_set_inode_state(et->dir, EXT4_STATE_ITREE_ROOM);
	else
		ext4_clear_inode_state(et->dir, EXT4_STATE_ITREE_ROOM);
	if (!err)
		ext4_itree_count(et->dir->i_sb, EXT4_ITREE_INSERTS, 1);
	return err;
}

static int delete_key(struct ext4_itree *et, u64 key)
{
	int err = itree_delete(&et->t, key);

	if (err == -ENOENT) {
		et->t.why = "the key of a name is missing";
		et->t.why_lblk = ITREE_SEG_START;
		err = -EFSCORRUPTED;
	}
	if (!err)
		ext4_itree_count(et->dir->i_sb, EXT4_ITREE_DELETES, 1);
	return err;
}

/*
 * Without space for the new key, removes the old one first: the node or the
 * entry that this frees may be enough.
 */
static int replace_key(struct ext4_itree *et, u64 old_key, u64 key)
{
	int err = insert_key(et, key);

	if (!err)
		return delete_key(et, old_key);
	if (err != -ENOSPC)
		return err;
	err = delete_key(et, old_key);
	return err ? err : insert_key(et, key);
}

/**
 * ext4_itree_add - add the key of a name that has been added
 * @dir: i_rwsem held exclusively
 * @handle: it was added in; ext4_itree_reserve() has been called
 * @ino: the name's inode
 * @hash: the name's hash in the htree
 *
 * Builds the tree when the directory has grown large enough for one.
 */
void ext4_itree_add(handle_t *handle, struct inode *dir, u32 ino, u32 hash)
{
	struct ext4_itree et;
	int err;

	ext4_itree_readers_added(dir, hash);
	if (ext4_itree_building(dir)) {
		ext4_itree_log(dir, ITREE_KEY(ino, hash & ~1), false);
		return;
	}
	if (!ext4_dir_has_itree(dir)) {
		if (should_build(dir))
			build(handle, dir);
		return;
	}
	err = ext4_itree_open(&et, handle, dir);
	if (!err) {
		err = insert_key(&et, ITREE_KEY(ino, hash & ~1));
		ext4_itree_close(&et);
	}
	if (err)
		drop_failed(handle, dir, err, &et.t);
}

/**
 * ext4_itree_entry_key - get a name's key before the name is removed or changed
 * @dir: i_rwsem held exclusively
 * @de: its entry
 *
 * Returns the key for ext4_itree_remove() or ext4_itree_renumber().
 */
u64 ext4_itree_entry_key(struct inode *dir, struct ext4_dir_entry_2 *de)
{
	struct itree_info info;
	struct ext4_itree et;
	u32 hash;
	int err;

	if (ext4_itree_building(dir)) {
		info.hash_version = ext4_itree_builder_version(dir);
	} else if (ext4_dir_has_itree(dir)) {
		err = ext4_itree_open(&et, NULL, dir);
		if (err) {
			/* Lack of memory drops the tree, but it is not bad. */
			if (err != -ENOMEM)
				ext4_itree_bad(dir, err, &et.t);
			return EXT4_ITREE_BAD_KEY;
		}
		itree_get_info(&et.t, &info);
		ext4_itree_close(&et);
	} else {
		return EXT4_ITREE_NO_KEY;
	}
	if (ext4_itree_hash_entry(dir, info.hash_version, de, &hash, NULL))
		return EXT4_ITREE_BAD_KEY;
	return ITREE_KEY(le32_to_cpu(de->inode), hash);
}

/**
 * ext4_itree_remove - remove the key of a name that has been removed
 * @dir: i_rwsem held exclusively
 * @handle: it was removed in
 * @key: from ext4_itree_entry_key()
 */
void ext4_itree_remove(handle_t *handle, struct inode *dir, u64 key)
{
	struct ext4_itree et;
	int err;

	if (key == EXT4_ITREE_NO_KEY)
		return;
	if (ext4_itree_building(dir)) {
		ext4_itree_log(dir, key, true);
		return;
	}
	if (!ext4_dir_has_itree(dir) || drop_if_bad(handle, dir))
		return;
	if (key == EXT4_ITREE_BAD_KEY) {
		ext4_itree_drop(handle, dir, "a name's key cannot be had");
		return;
	}
	err = ext4_itree_open(&et, handle, dir);
	if (!err) {
		err = delete_key(&et, key);
		ext4_itree_close(&et);
	}
	if (err)
		drop_failed(handle, dir, err, &et.t);
}

/**
 * ext4_itree_renumber - change the key of a name that has got another inode
 * @dir: i_rwsem held exclusively
 * @handle: it was changed in; ext4_itree_reserve() has been called
 * @de: the changed entry
 * @old_key: from ext4_itree_entry_key() before the change
 * @old_ino: its inode before the change
 *
 * Also tells readers, which may be past the name's new place.
 */
void ext4_itree_renumber(handle_t *handle, struct inode *dir,
			 struct ext4_dir_entry_2 *de, u64 old_key, u32 old_ino)
{
	u64 key = ITREE_KEY(le32_to_cpu(de->inode), ITREE_KEY_HASH(old_key));
	struct ext4_itree et;
	int err;

	if (!ext4_itree_orders(dir->i_sb) ||
	    le32_to_cpu(de->inode) == old_ino)
		return;
	ext4_itree_readers_renumber(dir, de);
	if (old_key == EXT4_ITREE_NO_KEY)
		return;
	ext4_itree_readers_added(dir, ITREE_KEY_HASH(old_key));
	if (ext4_itree_building(dir)) {
		if (old_key != EXT4_ITREE_BAD_KEY)
			ext4_itree_log(dir, key, false);
		ext4_itree_log(dir, old_key, true);
		return;
	}
	if (!ext4_dir_has_itree(dir) || drop_if_bad(handle, dir))
		return;
	if (old_key == EXT4_ITREE_BAD_KEY) {
		ext4_itree_drop(handle, dir, "a name's key cannot be had");
		return;
	}
	err = ext4_itree_open(&et, handle, dir);
	if (!err) {
		err = replace_key(&et, old_key, key);
		ext4_itree_close(&et);
	}
	if (err)
		drop_failed(handle, dir, err, &et.t);
}
