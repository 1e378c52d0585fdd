// SPDX-License-Identifier: GPL-2.0-only
/*
 * readdir in inode order.
 *
 * A scan works in windows: it takes the next run of keys, visits the
 * directory's blocks once for all of them, and hands the names out in the
 * order of the keys.  Windows start small, so that a stateless reader that
 * opens the directory anew for each call pays little, and grow while the
 * directory does not change.  A change makes the scan forget its window, as
 * ext4's own readdir forgets its names.
 *
 * The position of a name is (inode << 31) | (hash >> 1); "." is 0, ".." is 1.
 */
#include <linux/fs.h>
#include <linux/iversion.h>
#include <linux/slab.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* --- names that change their inode under a scan --- */

static void free_moved(struct list_head *moved)
{
	struct moved_name *m, *tmp;

	list_for_each_entry_safe(m, tmp, moved, list) {
		list_del(&m->list);
		kfree(m);
	}
}

/* Under i_lock. */
static void queue_moved(struct ext4_itree_scan *s, struct ext4_dir_entry_2 *de,
			const struct dx_hash_info *hinfo)
{
	struct moved_name *m = NULL;

	/*
	 * Twice the same name is allowed, but not twice the same memory: a
	 * long queue makes the scan go round again instead.
	 */
	if (s->nr_moved < MOVED_MAX)
		m = kmalloc(sizeof(*m) + de->name_len,
			    GFP_NOWAIT | __GFP_NOWARN | __GFP_ACCOUNT);
	if (!m) {
		s->lost = true;
		return;
	}
	m->ino = le32_to_cpu(de->inode);
	m->len = de->name_len;
	m->type = get_dtype(s->dir->i_sb, de->file_type);
	m->hinfo = *hinfo;
	memcpy(m->name, de->name, m->len);
	list_add_tail(&m->list, &s->moved);
	s->nr_moved++;
}

/**
 * ext4_itree_scans_renumber - a name has got another inode: tell open scans
 * @dir: i_rwsem held exclusively
 * @de: the changed entry
 * @old_ino: its inode before
 *
 * rename() over a name, RENAME_EXCHANGE and RENAME_WHITEOUT give a name that
 * exists all the time another place in inode order.  A scan that has not
 * reached the old place and will not come by the new one would miss it, so it
 * gets the name in a queue.
 */
void ext4_itree_scans_renumber(struct inode *dir, struct ext4_dir_entry_2 *de,
			       u32 old_ino)
{
	struct dx_hash_info hinfo = { };
	struct ext4_itree_scan *s;
	u64 old_key, new_key;
	bool hashed;
	u8 version;

	if (list_empty_careful(&EXT4_I(dir)->i_itree_scans))
		return;
	/* Without its hash, the name is queued whenever that may be right. */
	hashed = !ext4_itree_hash_version(dir, &version) &&
		 !ext4_itree_hash_entry(dir, version, de, &hinfo.hash,
					&hinfo.minor_hash);
	old_key = ITREE_KEY(old_ino, hashed ? hinfo.hash : ~0U);
	new_key = ITREE_KEY(le32_to_cpu(de->inode), hashed ? hinfo.hash : 0);
	spin_lock(&dir->i_lock);
	list_for_each_entry(s, &EXT4_I(dir)->i_itree_scans, list) {
		if (old_key < s->next || (hashed && old_key > s->end))
			continue;
		if (new_key >= s->next && new_key <= s->end)
			continue;
		queue_moved(s, de, &hinfo);
	}
	spin_unlock(&dir->i_lock);
}

/**
 * ext4_itree_scans_doubt - the tree of a directory is bad: tell open scans
 * @dir: directory
 *
 * What they have read off the tree so far may be wrong as well: names may have
 * been passed by, and the last key may not be the last.
 */
void ext4_itree_scans_doubt(struct inode *dir)
{
	struct ext4_itree_scan *s;

	spin_lock(&dir->i_lock);
	list_for_each_entry(s, &EXT4_I(dir)->i_itree_scans, list)
		s->doubt = true;
	spin_unlock(&dir->i_lock);
}

/* Hands out queued names; returns 1 when the reader's buffer is full. */
static int emit_moved(struct ext4_itree_scan *s, struct dir_context *ctx)
{
	struct fscrypt_str crypt = FSTR_INIT(NULL, 0);
	bool ci = IS_CASEFOLDED(s->dir);
	struct moved_name *m, *tmp;
	int ret = 0;

	if (list_empty(&s->moved))
		return 0;
	if (IS_ENCRYPTED(s->dir)) {
		ret = fscrypt_fname_alloc_buffer(EXT4_NAME_LEN, &crypt);
		if (ret)
			return ret;
	}
	/* Writers, who add to the queue, are kept out by i_rwsem. */
	list_for_each_entry_safe(m, tmp, &s->moved, list) {
		struct fscrypt_str name = FSTR_INIT(m->name, m->len);
		struct fscrypt_str out = crypt;
		u32 hash = ci ? m->hinfo.hash : 0;
		u32 minor = ci ? m->hinfo.minor_hash : 0;

		if (IS_ENCRYPTED(s->dir)) {
			ret = fscrypt_fname_disk_to_usr(s->dir, hash, minor,
							&name, &out);
			if (ret)
				break;
			name = out;
		}
		if (!dir_emit(ctx, name.name, name.len, m->ino, m->type)) {
			ret = 1;
			break;
		}
		list_del(&m->list);
		kfree(m);
		s->nr_moved--;
	}
	fscrypt_fname_free_buffer(&crypt);
	return ret;
}

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

static void read_ahead(struct ext4_itree_scan *s)
{
	struct super_block *sb = s->dir->i_sb;
	u32 low = AHEAD_BLOCKS / 2 * EXT4_SB(sb)->s_inodes_per_block;
	struct scan_name *n;
	u32 left, step;

	s->ahead = max(s->ahead, s->cur);
	left = s->nr - s->ahead;
	/* Ask for more when half of what was asked for has been used up. */
	if (!s->stats || !left || s->ahead - s->cur > low)
		return;
	n = &s->names[s->ahead];
	step = max(min(left, WINDOW_MAX) / SAMPLES, 1U);
	if (ext4_itree_cached(sb, &n->ino, min(left, SAMPLES),
			      step * sizeof(*n))) {
		s->ahead += min(left, WINDOW_MIN);
		return;
	}
	/*
	 * Whoever looks at inodes looks names up, which takes the directory's
	 * blocks at random where no dentries are made, and inode tables push
	 * them out where memory is short: what is gone is read again together,
	 * the rest stays longer.  With dentries, only the next window will
	 * want them.
	 */
	if (!s->prime)
		ext4_itree_ahead_dir(s->dir, 0);
	else if (!s->last)
		ext4_itree_keep_dir(s->dir);
	s->ahead += ext4_itree_ahead_inodes(sb, &n->ino, left, sizeof(*n),
					    AHEAD_BLOCKS);
}

/* --- the scan --- */

static struct ext4_itree_scan *scan_alloc(struct inode *dir)
{
	struct ext4_itree_scan *s;

	s = kzalloc(sizeof(*s), GFP_KERNEL_ACCOUNT);
	if (!s)
		return NULL;
	INIT_LIST_HEAD(&s->list);
	INIT_LIST_HEAD(&s->moved);
	s->dir = dir;
	return s;
}

/* Takes the scan off the directory's list; writers then pass it by. */
static void scan_close(struct ext4_itree_scan *s)
{
	spin_lock(&s->dir->i_lock);
	if (s->open)
		list_del_init(&s->list);
	s->open = false;
	spin_unlock(&s->dir->i_lock);
}

/**
 * ext4_itree_scan_free - end a scan for good
 * @scan: may be NULL
 */
void ext4_itree_scan_free(struct ext4_itree_scan *scan)
{
	if (!scan)
		return;
	scan_close(scan);
	free_moved(&scan->moved);
	ext4_itree_drop_window(scan);
	kvfree(scan->names);
	kfree(scan);
}

/* The largest key there is: what comes above it later, is new. */
static u64 last_key(struct ext4_itree_scan *s, struct itree_info *info)
{
	struct ext4_itree et;
	u64 key = ~0ULL;
	int ret;

	memset(info, 0, sizeof(*info));
	if (!ext4_itree_usable(s->dir))
		return key;
	ret = ext4_itree_open(&et, NULL, s->dir);
	if (!ret) {
		ret = itree_last(&et.t, &key);
		itree_get_info(&et.t, info);
		ext4_itree_close(&et);
	}
	if (ret < 0 && ret != -ENOMEM)
		ext4_itree_bad(s->dir, ret, &et.t);
	return ret == ITREE_END ? KEY_DOTDOT : key;
}

/* Starts at @pos; what the scan knew of an earlier pass is void. */
static void scan_start(struct ext4_itree_scan *s, loff_t pos)
{
	struct itree_info info;
	u64 end = last_key(s, &info);

	free_moved(&s->moved);
	ext4_itree_drop_window(s);
	spin_lock(&s->dir->i_lock);
	s->next = pos_to_key(pos);
	s->end = end;
	s->nr_moved = 0;
	s->lost = false;
	s->doubt = false;
	if (!s->open)
		list_add(&s->list, &EXT4_I(s->dir)->i_itree_scans);
	s->open = true;
	spin_unlock(&s->dir->i_lock);
	s->want = WINDOW_MIN;
	s->run_len = 0;
	s->nr_samples = 0;
	s->made = 0;
	s->counting = !pos && info.blocks;
	s->total = info.keys;
	s->first = max(pos_to_key(pos), KEY_DOTDOT + 1);
	s->counted = 0;
	s->counted_to = KEY_DOTDOT + 1;
	s->start_version = inode_query_iversion(s->dir);
	if (!pos)
		ext4_itree_ahead_dir(s->dir, info.blocks);
}

/* The reader went elsewhere, by seekdir(). */
static void scan_seek(struct ext4_itree_scan *s, loff_t pos)
{
	spin_lock(&s->dir->i_lock);
	s->next = pos_to_key(pos);
	spin_unlock(&s->dir->i_lock);
	ext4_itree_drop_window(s);
	s->want = WINDOW_MIN;
	s->run_len = 0;
}

/* Has this name been returned before the window was filled anew? */
static bool returned(struct ext4_itree_scan *s, const struct scan_name *n)
{
	return s->run_len && n->key == s->run_key &&
	       ext4_itree_cmp_text(n->name, n->len, s->run_name,
				   s->run_len) <= 0;
}

/* Notes that the name at s->cur has been returned and goes on to the next. */
static void advance(struct ext4_itree_scan *s)
{
	struct scan_name *n = &s->names[s->cur++];

	if (s->cur < s->nr && s->names[s->cur].key == n->key) {
		s->run_key = n->key;
		s->run_len = n->len;
		memcpy(s->run_name, n->name, n->len);
		s->next = n->key;
	} else {
		s->run_len = 0;
		s->next = n->key + 1;
	}
	ext4_itree_note_name(s, n, s->cur);
}

/* At the end of the window: is there a next one?  Returns 1 if so. */
static int next_window(struct file *file, struct ext4_itree_scan *s)
{
	int err;

	if (s->valid) {
		if (!s->last && s->win_hi < s->end) {
			s->next = s->win_hi + 1;
			s->run_len = 0;
		} else if (s->lost || READ_ONCE(s->doubt)) {
			/* Names were lost to the queue or the tree. */
			scan_start(s, 0);
		} else {
			return 0;
		}
	}
	err = ext4_itree_fill_window(file, s);
	if (err)
		return err;
	/* A directory without a tree tells its last key only now. */
	if (s->last && s->end == ~0ULL)
		s->end = s->nr ? s->names[s->nr - 1].key : 0;
	return 1;
}

/* Returns names from where the scan is until the reader has enough. */
static int emit_names(struct file *file, struct dir_context *ctx,
		      struct ext4_itree_scan *s)
{
	struct scan_name *n;
	int ret;

	while (!fatal_signal_pending(current)) {
		if (!s->valid || s->cur >= s->nr) {
			ret = next_window(file, s);
			if (ret < 0)
				return ret;
			if (!ret) {
				ctx->pos = EXT4_HTREE_EOF_64BIT;
				scan_close(s);
				/* Who keeps it open need not keep the names. */
				ext4_itree_drop_window(s);
				return 0;
			}
			continue;
		}
		read_ahead(s);
		n = &s->names[s->cur];
		if (n->key > s->end) {
			s->cur = s->nr;
			s->last = true;
			continue;
		}
		if (!returned(s, n)) {
			ctx->pos = key_to_pos(n->key);
			if (!dir_emit(ctx, n->name, n->len, n->ino, n->type))
				return 0;
			ext4_itree_prime(s, file);
		}
		advance(s);
	}
	return -ERESTARTSYS;
}

/**
 * ext4_itree_readdir - readdir in inode order
 * @file: open directory, 64-bit positions, i_rwsem held
 * @ctx: as for any iterate_shared()
 * @scanp: the open file's scan, NULL before the first call
 *
 * Returns every name that exists from the start of the scan to its end at
 * least once, exactly once if it does not change its inode.  Returns 0 or a
 * negative error; an unusable tree is none.
 */
int ext4_itree_readdir(struct file *file, struct dir_context *ctx,
		       struct ext4_itree_scan **scanp)
{
	struct inode *dir = file_inode(file);
	struct ext4_itree_scan *s = *scanp;
	int ret;

	if (ctx->pos == EXT4_HTREE_EOF_64BIT)
		return 0;
	if (!s) {
		s = scan_alloc(dir);
		if (!s)
			return -ENOMEM;
		*scanp = s;
	}
	if (!s->open || !ctx->pos) {
		scan_start(s, ctx->pos);
	} else if (ctx->pos != s->last_pos) {
		scan_seek(s, ctx->pos);
	} else if (s->valid && !inode_eq_iversion(dir, s->version)) {
		ext4_itree_drop_window(s);
		s->want = WINDOW_MIN;
	}
	ext4_itree_watch_reader(s);
	ret = emit_moved(s, ctx);
	if (!ret)
		ret = emit_names(file, ctx, s);
	s->last_pos = ctx->pos;
	return ret < 0 ? ret : 0;
}

#ifdef CONFIG_EXT4_KUNIT_TESTS
#include "itree-test.c"
#endif
