// SPDX-License-Identifier: GPL-2.0-only
/*
 * readdir in inode order.
 *
 * A scan works in windows: it takes the next run of keys, visits the
 * directory's blocks once for all of them, and returns the names in the order
 * of the keys.  Windows start small, so that readers that open the directory
 * for each call pay little, and grow as the reader continues.  With a tree, a
 * window survives changes: names are looked up again before they are returned.
 *
 * A scan is an open file's part of a pass (itree_open.c).
 */
#include <linux/fs.h>
#include <linux/iversion.h>
#include <linux/slab.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* Names to return before waiters for i_rwsem have their turn. */
#define HOLD_NAMES	256U

/* --- reading ahead --- */

/**
 * ext4_itree_cached - are most of these inodes in memory?
 * @sb: file system
 * @ino: their numbers
 * @nr: how many
 * @stride: bytes from one to the next
 */
bool ext4_itree_cached(struct super_block *sb, const u32 *ino, u32 nr,
		       size_t stride)
{
	u32 i, hits = 0;

	rcu_read_lock();
	for (i = 0; i < nr; i++) {
		hits += !!find_inode_by_ino_rcu(sb, *ino);
		ino = (const u32 *)((const char *)ino + stride);
	}
	rcu_read_unlock();
	return nr && hits >= (nr + 1) / 2;
}

/* Releases i_rwsem to read. */
static void read_ahead(struct ext4_itree_scan *s)
{
	struct super_block *sb = s->dir->i_sb;
	u32 low = AHEAD_BLOCKS / 2 * EXT4_SB(sb)->s_inodes_per_block;
	struct scan_name *n;
	u32 left, step;

	s->win.ahead = max(s->win.ahead, s->win.cur);
	left = s->win.nr - s->win.ahead;
	/* Read more once the reader has used half of the last request. */
	if (!s->reader.stats || !left || s->win.ahead - s->win.cur > low)
		return;
	n = &s->win.names[s->win.ahead];
	inode_unlock_shared(s->dir);
	step = max(min(left, WINDOW_MAX) / SAMPLES, 1U);
	if (ext4_itree_cached(sb, &n->ino, min(left, SAMPLES),
			      step * sizeof(*n))) {
		s->win.ahead += min(left, WINDOW_MIN);
		goto out;
	}
	/*
	 * Readers that look at inodes also look names up.  Without dentries,
	 * look-ups use the directory's blocks at random, and where memory is
	 * short, inode tables evict these blocks.  Evicted blocks are read
	 * again together, and the rest is marked as used.  With dentries, only
	 * the next window needs them.
	 */
	if (!s->reader.prime)
		ext4_itree_ahead_dir(s->dir, 0);
	else if (!s->win.last)
		ext4_itree_keep_dir(s->dir);
	s->win.ahead += ext4_itree_ahead_inodes(sb, &n->ino, left, sizeof(*n),
					    AHEAD_BLOCKS);
out:
	inode_lock_shared(s->dir);
}

/* --- the scan --- */

/**
 * ext4_itree_scan_free - free the scan of an open file
 * @scan: may be NULL
 */
void ext4_itree_scan_free(struct ext4_itree_scan *scan)
{
	if (!scan)
		return;
	ext4_itree_take_window(scan);
	if (scan->pass)
		ext4_itree_leave_pass(scan->dir, scan->pass, scan->over);
	ext4_itree_drop_window(scan);
	ext4_itree_drop_list(scan);
	kvfree(scan->win.names);
	ext4_itree_free_scan(scan);
}

/**
 * ext4_itree_scan_follow - let an open file follow a pass
 * @dir: its directory
 * @scanp: its scan, allocated if it is NULL
 * @pass: from ext4_itree_begin_pass() or ext4_itree_find_pass(), or NULL
 *
 * Returns 0, or -ENOMEM if there is no pass or no scan.
 */
int ext4_itree_scan_follow(struct inode *dir, struct ext4_itree_scan **scanp,
			   struct ext4_itree_pass *pass)
{
	struct ext4_itree_scan *s = *scanp;

	if (!pass)
		return -ENOMEM;
	if (!s) {
		s = ext4_itree_alloc_scan();
		if (!s) {
			ext4_itree_leave_pass(dir, pass, false);
			return -ENOMEM;
		}
		INIT_LIST_HEAD(&s->idle);
		s->dir = dir;
		*scanp = s;
	}
	if (s->pass)
		ext4_itree_leave_pass(dir, s->pass, s->over);
	s->pass = pass;
	s->started = false;
	s->over = false;
	return 0;
}

/* Returns the largest key.  Keys above it that appear later are new. */
static u64 last_key(struct ext4_itree_scan *s, struct itree_info *info)
{
	struct buffer_head *pin = NULL;
	struct ext4_itree et;
	u64 key = ~0ULL;
	int ret;

	memset(info, 0, sizeof(*info));
	do {
		if (!ext4_itree_usable(s->dir)) {
			brelse(pin);
			return ~0ULL;
		}
		ret = ext4_itree_open_nowait(&et, s->dir);
		if (!ret) {
			ret = itree_last(&et.t, &key);
			itree_get_info(&et.t, info);
			ext4_itree_close(&et);
		}
		brelse(pin);
		pin = NULL;
		if (ret == -EAGAIN)
			ret = ext4_itree_load(s->dir, et.missing, &pin) ?:
			      -EAGAIN;
	} while (ret == -EAGAIN && !fatal_signal_pending(current));
	brelse(pin);
	if (ret == -EAGAIN || ret == -ENOENT)
		return ~0ULL;
	if (ret < 0 && ret != -ENOMEM)
		ext4_itree_bad(s->dir, ret, &et.t);
	return ret == ITREE_END ? KEY_DOTDOT : key;
}

/* Starts at @pos, which is 0 unless another file began the pass. */
static void scan_start(struct ext4_itree_scan *s, loff_t pos)
{
	struct itree_info info;
	u64 end = last_key(s, &info);

	ext4_itree_drop_window(s);
	ext4_itree_drop_list(s);
	s->list.refused = false;
	s->next = pos_to_key(pos);
	if (!pos)
		s->pass->end = end;
	s->started = true;
	s->size.want = pos ? WINDOW_ANEW : WINDOW_MIN;
	s->run.len = 0;
	s->reader.nr_samples = 0;
	s->reader.made = 0;
	s->count = (struct scan_count){
		.on = !pos && info.blocks,
		.from = max(pos_to_key(pos), KEY_DOTDOT + 1),
		.total = info.keys,
		.seen_to = KEY_DOTDOT + 1,
		.version = inode_query_iversion(s->dir),
	};
	s->error = 0;
	if (!pos) {
		inode_unlock_shared(s->dir);
		ext4_itree_ahead_dir(s->dir, info.blocks);
		inode_lock_shared(s->dir);
	}
}

/* The reader has moved, by seekdir(). */
static void scan_seek(struct ext4_itree_scan *s, loff_t pos)
{
	s->next = pos_to_key(pos);
	ext4_itree_drop_window(s);
	s->size.want = WINDOW_ANEW;
	s->run.len = 0;
}

/* Was this name returned before the window was refilled? */
static bool returned(struct ext4_itree_scan *s, const struct scan_name *n)
{
	return s->run.len && n->key == s->run.key &&
	       ext4_itree_cmp_text(n->name, n->len, s->run.name,
				   s->run.len) <= 0;
}

/* Notes that the name at s->win.cur has been returned and moves to the next. */
static void advance(struct ext4_itree_scan *s)
{
	struct scan_name *n = &s->win.names[s->win.cur++];

	if (s->win.cur < s->win.nr && s->win.names[s->win.cur].key == n->key) {
		s->run.key = n->key;
		s->run.len = n->len;
		memcpy(s->run.name, n->name, n->len);
		s->next = n->key;
	} else {
		s->run.len = 0;
		s->next = n->key + 1;
	}
	ext4_itree_note_name(s, n, s->win.cur);
}

/* At the end of a window, fills the next one.  Returns 1 if there is one. */
static int next_window(struct file *file, struct ext4_itree_scan *s)
{
	int err;

	if (s->win.valid) {
		if (s->win.last || s->win.hi >= s->pass->end)
			return 0;
		s->next = s->win.hi + 1;
		s->run.len = 0;
	}
	err = ext4_itree_fill_window(file, s);
	if (err)
		return err;
	/* Without a tree, the last key is known only now. */
	if (s->win.last && s->pass->end == ~0ULL)
		s->pass->end = s->win.nr ? s->win.names[s->win.nr - 1].key : 0;
	return 1;
}

/* Lets waiters for i_rwsem have their turn now and then. */
static int mind_others(struct ext4_itree_scan *s)
{
	if (!(s->win.cur % HOLD_NAMES) && rwsem_is_contended(&s->dir->i_rwsem))
		return ext4_itree_relax(s->dir);
	return IS_DEADDIR(s->dir) ? -ENOENT : 0;
}

/* i_rwsem is held while names are emitted, so none moves meanwhile. */
static bool any_moved(const struct ext4_itree_scan *s)
{
	return READ_ONCE(ext4_itree_dir(s->dir)->nr_moved);
}

/* May the name at s->win.cur need a dentry? */
static bool primes(const struct ext4_itree_scan *s)
{
	return s->reader.prime &&
	       (s->reader.prime_run || s->win.cur >= s->reader.prime_to);
}

/*
 * Emits names from the scan's position on.  Returns 0 when the reader's buffer
 * is full, 1 after the last name in inode order.  If the directory changes
 * while i_rwsem is released, names stay valid unless their inode changes.
 */
static int emit_names(struct file *file, struct dir_context *ctx,
		      struct ext4_itree_scan *s, bool *gave)
{
	struct scan_name *n;
	int ret;

	while (!fatal_signal_pending(current)) {
		ret = mind_others(s);
		if (ret)
			return ret;
		if (!s->win.valid || s->win.cur >= s->win.nr) {
			/* All names will be returned again: stop here. */
			if (ext4_itree_pass_whole(s->dir, s->pass))
				return 1;
			ret = next_window(file, s);
			if (ret < 0)
				return ret;
			if (!ret)
				return 1;
			continue;
		}
		read_ahead(s);
		n = &s->win.names[s->win.cur];
		if (n->key > s->pass->end) {
			s->win.cur = s->win.nr;
			s->win.last = true;
			continue;
		}
		/* Most listings meet no change: save the calls for each name. */
		if (!inode_eq_iversion(s->dir, s->win.version))
			ext4_itree_check_names(s);
		if (n->len != NAME_GONE && !returned(s, n) &&
		    !(any_moved(s) && ext4_itree_comes_later(s, n))) {
			ctx->pos = key_to_pos(n->key, s->pass->id);
			if (!dir_emit(ctx, n->name, n->len, n->ino, n->type))
				return 0;
			*gave = true;
			if (primes(s))
				ext4_itree_prime(s, file);
		}
		advance(s);
	}
	return -ERESTARTSYS;
}

/* As ext4_itree_readdir(), while the shrinker cannot take the window. */
static int scan_readdir(struct file *file, struct dir_context *ctx,
			struct ext4_itree_scan *s)
{
	bool gave = false;
	int ret;

	if (!s->started || !ctx->pos) {
		scan_start(s, ctx->pos);
	} else if (ctx->pos != s->last_pos) {
		scan_seek(s, ctx->pos);
	} else if (s->win.valid && !inode_eq_iversion(s->dir, s->win.version) &&
		   !s->win.by_sweep &&
		   !(s->win.from_tree && ext4_itree_usable(s->dir))) {
		/* Without a tree, nothing tells which names still exist. */
		ext4_itree_drop_window(s);
		s->size.want = WINDOW_MIN;
	}
	ext4_itree_watch_reader(s);
	if (IS_DEADDIR(s->dir))
		return -ENOENT;
	ret = emit_names(file, ctx, s, &gave);
	/* A call that has returned names cannot return an error. */
	if (ret > 0 && s->error < 0) {
		ret = gave ? 0 : s->error;
		if (!gave)
			s->error = ERROR_TOLD;
	} else if (ret > 0) {
		/* The file may stay open for a long time: free the names. */
		ext4_itree_drop_window(s);
		ext4_itree_drop_list(s);
		/* The keys came from a tree that has turned out to be bad. */
		if (ext4_itree_in_doubt(s))
			ext4_itree_settle_doubt(s, true);
		ret = ext4_itree_end_inode_order(file, &ctx->pos);
	}
	s->last_pos = ctx->pos;
	return ret;
}

/**
 * ext4_itree_readdir - readdir in inode order
 * @file: open directory, 64-bit positions, i_rwsem held
 * @ctx: as for any iterate_shared()
 * @s: the open file's scan, from ext4_itree_choose_order()
 *
 * Returns every name that exists from the start of the pass to its end at least
 * once, and exactly once if its inode does not change.  Returns 0, a negative
 * error, or 1 if the reader continues in hash order; an unusable tree is not an
 * error.
 */
int ext4_itree_readdir(struct file *file, struct dir_context *ctx,
		       struct ext4_itree_scan *s)
{
	int ret;

	if (ctx->pos == EXT4_HTREE_EOF_64BIT)
		return 0;
	ext4_itree_take_window(s);
	ret = scan_readdir(file, ctx, s);
	ext4_itree_leave_window(s);
	return ret;
}

#ifdef CONFIG_EXT4_KUNIT_TESTS
#include "itree-test.c"
#endif
