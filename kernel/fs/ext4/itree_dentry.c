// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dentries for readers that look at the inodes of the names they get.
 *
 * Inode order is not hash order: such a reader looks each name up in another
 * leaf of the directory than the one before.  Where the directory does not
 * stay in memory, that is a read for nearly each name.  A scan knows name and
 * inode of what it returns, so it makes the dentries itself, as nfs and fuse
 * do for readdirplus, and look-ups end in the dcache.
 *
 * Readers do not announce that they will look at inodes.  The scan checks
 * whether the dentries it made last time were used.  The first dentries are
 * few, and readers that do not use them get none for a while.
 */
#include <linux/fs.h>
#include <linux/dcache.h>
#include <linux/namei.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* The most dentries that one call makes: a reader's buffer may be large. */
#define PRIME_MAX	8192U
/* Names that one check of the dcache stands for, and its samples. */
#define PRIME_RUN	256U
#define PRIME_LOOKS	4U
/* The same for a reader that has not used any yet. */
#define PRIME_TRIAL	64U
/* One in so many names is a sample: did the reader use its dentry? */
#define SAMPLE_EVERY	64U
/* The most calls to skip after dentries that were not used. */
#define WARY_MAX	15U

static void take_sample(struct scan_reader *r, u32 ino)
{
	r->samples[r->nr_samples++ % SAMPLES] = ino;
}

/**
 * ext4_itree_note_name - note that a name has been returned
 * @s: the scan
 * @n: the name
 * @nr: its place in the window
 */
void ext4_itree_note_name(struct ext4_itree_scan *s, const struct scan_name *n,
			  u32 nr)
{
	if (!s->reader.made && nr % SAMPLE_EVERY == 0 && n->key > KEY_DOTDOT)
		take_sample(&s->reader, n->ino);
}

/*
 * Has a sample of our dentries been used since?  The first dput() puts a dentry
 * on the LRU list, and the one after the first use marks it.  Dentries of other
 * names of the inode in this directory, which are not samples, are marked
 * anyway.
 */
static bool dentry_used(struct inode *dir, u32 ino)
{
	bool found = false, used = true;
	struct dentry *dentry;
	struct inode *inode;

	rcu_read_lock();
	inode = find_inode_by_ino_rcu(dir->i_sb, ino);
	if (!inode) {
		rcu_read_unlock();
		return false;
	}
	spin_lock(&inode->i_lock);
	/* i_dentry of an inode that is being freed holds something else. */
	if (inode_state_read(inode) & (I_FREEING | I_WILL_FREE))
		goto out;
	hlist_for_each_entry(dentry, &inode->i_dentry, d_alias) {
		spin_lock(&dentry->d_lock);
		if (d_inode(dentry->d_parent) == dir) {
			found = true;
			used &= !!(dentry->d_flags & DCACHE_REFERENCED);
		}
		spin_unlock(&dentry->d_lock);
	}
out:
	spin_unlock(&inode->i_lock);
	rcu_read_unlock();
	return found && used;
}

/*
 * Reclaim clears the mark of dentries that it scans.  So a reader that has used
 * its dentries before may seem idle once.
 */
static bool judge_reader(struct scan_reader *r, bool used)
{
	if (used || (r->used && !r->doubted)) {
		r->doubted = !used;
		r->used = true;
		r->wary = 0;
		return true;
	}
	r->doubted = false;
	r->used = false;
	r->wary = min(2 * r->wary + 1, WARY_MAX);
	r->pause = r->wary;
	return false;
}

/**
 * ext4_itree_watch_reader - check whether the reader looks at inodes
 * @s: the scan, at the start of a call
 *
 * If the last call made no dentries, checks whether the inodes are in memory.
 */
void ext4_itree_watch_reader(struct ext4_itree_scan *s)
{
	struct super_block *sb = s->dir->i_sb;
	struct scan_reader *r = &s->reader;
	u32 i, used = 0, nr = min(r->nr_samples, SAMPLES);

	if (nr && r->made) {
		for (i = 0; i < nr; i++)
			used += dentry_used(s->dir, r->samples[i]);
		r->stats = judge_reader(r, used >= (nr + 1) / 2);
	} else if (nr) {
		/* They may be older, and the reader may want only names. */
		r->stats = !r->pause && ext4_itree_cached(sb, r->samples, nr,
							  sizeof(u32));
		r->pause -= !!r->pause;
	}
	/* Look-ups in these directories do more than fill_dentry() does. */
	r->prime = r->stats && !IS_ENCRYPTED(s->dir) && !IS_CASEFOLDED(s->dir);
	r->prime_to = 0;
	r->made = 0;
	r->nr_samples = 0;
}

static struct dentry *find_dentry(struct dentry *parent,
				  const struct scan_name *n)
{
	struct qstr name = QSTR_INIT((const char *)n->name, n->len);

	return try_lookup_noperm(&name, parent);
}

/* Are most of the next names in the dcache? */
static bool have_dentries(struct ext4_itree_scan *s, struct dentry *parent)
{
	const struct scan_window *w = &s->win;
	u32 left = min(w->nr - w->cur, PRIME_RUN), nr = min(left, PRIME_LOOKS);
	u32 i, hits = 0;

	for (i = 0; i < nr; i++) {
		struct dentry *dentry;

		dentry = find_dentry(parent, &w->names[w->cur + i * left / nr]);
		if (IS_ERR_OR_NULL(dentry))
			continue;
		dput(dentry);
		hits++;
	}
	return hits >= (nr + 1) / 2;
}

static int match_busy(struct inode *inode, u64 ino, void *busy)
{
	if (inode->i_ino != ino)
		return 0;
	*(bool *)busy = inode_state_read_once(inode) &
			(I_NEW | I_FREEING | I_WILL_FREE);
	return -1;
}

/**
 * ext4_itree_inode_busy - check whether an inode is being read or evicted
 * @sb: file system
 * @ino: the inode's number
 *
 * ext4_iget() would wait for that.
 */
bool ext4_itree_inode_busy(struct super_block *sb, u32 ino)
{
	bool busy = false;

	find_inode_nowait(sb, ino, match_busy, &busy);
	return busy;
}

/* Does what a look-up does, but leaves errors to the reader's look-up. */
static bool fill_dentry(struct inode *dir, struct dentry *dentry, u32 ino)
{
	struct dentry *alias;
	struct inode *inode;

	if (!ext4_valid_inum(dir->i_sb, ino) || ino == dir->i_ino ||
	    ext4_itree_inode_busy(dir->i_sb, ino))
		return false;
	inode = ext4_iget(dir->i_sb, ino, EXT4_IGET_NORMAL);
	if (IS_ERR(inode))
		return false;
	alias = d_splice_alias(inode, dentry);
	if (IS_ERR(alias))
		return false;
	dput(alias);
	return true;
}

/*
 * Reclaim gives dentries that have been used a second chance.  Those of earlier
 * names have been used, so an unmarked new one would be reclaimed before them.
 */
static void mark_used(struct dentry *dentry)
{
	spin_lock(&dentry->d_lock);
	dentry->d_flags |= DCACHE_REFERENCED;
	spin_unlock(&dentry->d_lock);
}

static bool make_dentry(struct ext4_itree_scan *s, struct dentry *parent,
			const struct scan_name *n)
{
	struct qstr name = QSTR_INIT((const char *)n->name, n->len);
	struct dentry *dentry = try_lookup_noperm(&name, parent);
	u32 every = s->reader.used ? SAMPLE_EVERY : PRIME_TRIAL / SAMPLES;
	bool ok = true;

	if (!dentry)
		dentry = d_alloc_parallel(parent, &name);
	if (IS_ERR(dentry))
		return false;
	if (d_in_lookup(dentry)) {
		ok = fill_dentry(s->dir, dentry, n->ino);
		d_lookup_done(dentry);
		if (!ok)
			goto out;
		if (s->reader.made++ % every) {
			mark_used(dentry);
			goto out;
		}
		/* From here on, only names that got a dentry are samples. */
		if (s->reader.made == 1)
			s->reader.nr_samples = 0;
		take_sample(&s->reader, n->ino);
	}
out:
	dput(dentry);
	return ok;
}

/**
 * ext4_itree_prime - make the dentry of the name that has just been returned
 * @s: the scan, at that name, of a reader that looks names up
 * @file: its directory, i_rwsem held shared
 *
 * Best effort: only while no task waits to change the directory.  Otherwise the
 * look-up makes the dentry.
 */
void ext4_itree_prime(struct ext4_itree_scan *s, struct file *file)
{
	const struct scan_name *n = &s->win.names[s->win.cur];
	struct dentry *parent = file->f_path.dentry;

	if (n->key <= KEY_DOTDOT)
		return;
	if (s->win.cur >= s->reader.prime_to) {
		s->reader.prime_to = s->win.cur + PRIME_RUN;
		s->reader.prime_run = !have_dentries(s, parent) &&
			       ext4_itree_make_room(s->dir->i_sb,
						    PRIME_RUN);
	}
	if (!s->reader.prime_run || !ext4_itree_still_true(s))
		return;
	/* May release i_rwsem. */
	ext4_itree_load_inode(s->dir, n->ino);
	if (!ext4_itree_still_true(s))
		return;
	if (s->reader.made >= (s->reader.used ? PRIME_MAX : PRIME_TRIAL) ||
	    rwsem_is_contended(&s->dir->i_rwsem) || !make_dentry(s, parent, n))
		s->reader.prime = false;
}
