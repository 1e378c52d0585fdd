// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reading small files ahead of readers that read a directory in inode order.
 *
 * Files are read from start to end, so readahead knows which pages come next.
 * A directory with a tree has an order of reading as well: inode order.
 * Backups, copies and searches read one small file after the other in that
 * order.  Each file is a request of its own, in an aged directory anywhere on
 * the disk.
 *
 * This detector is modelled on mm/readahead.c.  It looks at the first read of
 * each small file.  A streak of such reads that had to wait, ascending and
 * close together in the directory's tree, is a reader to follow.  The files of
 * the next keys are then read in the order of the disk, neighbours in one
 * request.  When the reader has used most of such a run, a longer one follows,
 * up to a share of the memory of the reader's control group.  A reader that
 * leaves the order, or whose files are evicted before it reads them, is not
 * followed any longer.
 *
 * The reader itself reads the run, at the end of its read, with no lock of the
 * file held: memory, I/O priority and I/O limits are those of the reader.  It
 * only tries the directory's i_rwsem, and never waits for the disk with it.
 */
#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "ext4.h"
#include "ext4_extents.h"
#include "itree.h"
#include "itree_files.h"
#include "itree_glue.h"
#include "itree_scan.h"

#include <trace/events/ext4.h>

/* Readers of one directory that are followed at a time. */
#define STREAMS		4U
/* A reader is followed after so many reads in a row that had to wait. */
#define STREAK		8U
/*
 * In a streak, one in so many names has to be read.  Reads in another order
 * sometimes ascend as well, but skip most of the names.
 */
#define STREAK_SPARSE	4U
/* A streak over more inode numbers is not worth a look into the tree. */
#define STREAK_SPAN	2048U
/* A read this far beyond a reader's last one belongs to another reader. */
#define STREAM_NEAR	8192U
/* Keys that one run takes. */
#define RUN_MIN		(2 * STREAK)
#define RUN_MAX		262144U
/*
 * A run of so many keys or more is followed by one four times as long, a
 * shorter one by one twice as long.  In an aged directory, longer runs cost
 * less for each file, so a slow start would be most of the whole cost.
 */
#define RUN_SURE	1024U
/* A run may take this part of the memory: a quarter. */
#define RUN_SHARE	4
/* Memory of an inode and its dentry, without pages. */
#define INODE_BYTES	(sizeof(struct ext4_inode_info) + sizeof(struct dentry))
/* The next run is due when so much of this one is left: an eighth. */
#define LEFT_SHARE	8
/* One in so many reads of a run may miss, besides STREAK of them. */
#define MISSED_SHARE	64
/* Times that a reader waits for inode tables or the tree to come in. */
#define TRIES_MAX	4U
/* Keys that are taken under i_rwsem without a pause. */
#define TAKE_KEYS	4096U
/*
 * A run that takes longer is followed by a shorter one: the read() that starts
 * it returns only after all requests have been submitted.  Meanwhile clients of
 * knfsd wait for a reply.
 */
#define LONG_RUN	(current->flags & PF_KTHREAD ? HZ : 30 * HZ)
/* Bytes after which a run reschedules and checks for signals. */
#define PIECE_BYTES	BIT(20)

/* --- the detector --- */

/*
 * A reader, as seen from the inode numbers of the small files it starts to
 * read.
 */
struct ext4_itree_stream {
	u32	first;		/* where the streak or the last run began */
	u32	last;		/* the highest one so far */
	u32	streak;		/* reads that went up and had to wait */
	u32	end;		/* files below have been read ahead, or 0 */
	u32	mark;		/* the read that starts the next run */
	u32	due;		/* files read ahead below the mark */
	u32	used;		/* reads since then, found in memory ... */
	u32	missed;		/* ... and not */
	u32	run;		/* keys that the next run takes ... */
	u32	most;		/* ... and may take, as memory showed */
	u32	tries;		/* runs in a row without inodes in memory */
	u32	age;
	bool	busy;		/* its next run is being read */
};

/* The readers of a directory. */
struct ext4_itree_streams {
	spinlock_t	lock;		/* of all that follows */
	u32		clock;
	u32		used;		/* files of runs that were used */
	struct ext4_itree_stream stream[STREAMS];
};

/* Returns how far @ino is from the stream, ~0 if it is not part of it. */
static u32 distance(const struct ext4_itree_stream *s, u32 ino)
{
	u32 top = max(s->last, s->end);

	if (!s->first || ino < s->first || (ino > top && ino - top > STREAM_NEAR))
		return ~0U;
	return ino > s->last ? ino - s->last : s->last - ino;
}

/* Returns the reader that reads @ino, or the one that a new one replaces. */
static struct ext4_itree_stream *find_stream(struct ext4_itree_streams *t,
					     u32 ino, bool *found)
{
	struct ext4_itree_stream *s, *best = NULL, *oldest = NULL;
	u32 least = ~0U, d;

	for (s = t->stream; s < t->stream + STREAMS; s++) {
		d = distance(s, ino);
		if (d < least) {
			least = d;
			best = s;
		}
		if (!s->busy && (!oldest || t->clock - s->age >
					    t->clock - oldest->age))
			oldest = s;
	}
	*found = best;
	return best ?: oldest;
}

static void start_streak(struct ext4_itree_stream *s, u32 ino)
{
	s->first = ino;
	s->last = ino;
	s->streak = 1;
	s->end = 0;
	s->tries = 0;
	s->run = RUN_MIN;
	s->most = RUN_MAX;
}

/* Has the reader used the last run?  Sets the length of the next. */
static bool run_paid(struct ext4_itree_stream *s)
{
	u32 reads = s->used + s->missed;

	if (s->tries)
		return s->tries <= TRIES_MAX;
	if (reads < s->due / 2)
		return false;
	/* Files evicted before use: the run was too large for memory. */
	if (s->missed > STREAK + reads / MISSED_SHARE)
		s->most = max(s->run - s->run / 4, RUN_MIN);
	s->run = min(s->run * (s->run < RUN_SURE ? 2 : 4), s->most);
	return true;
}

/**
 * stream_note - note that a small file is read from its start
 * @t: readers of its directory, locked
 * @ino: the file's inode number
 * @miss: the read has to wait for the disk
 *
 * Returns the reader if the next run is due.  The reader is then busy until
 * stream_go_on() or stream_stop().
 */
static struct ext4_itree_stream *stream_note(struct ext4_itree_streams *t,
					     u32 ino, bool miss)
{
	bool found;
	struct ext4_itree_stream *s = find_stream(t, ino, &found);

	if (!found) {
		if (s && miss) {
			start_streak(s, ino);
			s->age = ++t->clock;
		}
		return NULL;
	}
	s->age = ++t->clock;
	if (s->end) {
		/* A miss beyond the run is not an evicted file. */
		s->used += !miss;
		t->used += !miss && ino < s->end;
		s->missed += miss && ino < s->end;
		s->last = max(s->last, ino);
		if (s->busy || ino < s->mark)
			return NULL;
		if (!run_paid(s)) {
			start_streak(s, ino);
			return NULL;
		}
	} else {
		if (!miss || ino <= s->last)
			return NULL;
		s->last = ino;
		if (++s->streak < STREAK || s->busy)
			return NULL;
		if (ino - s->first > STREAK_SPAN) {
			start_streak(s, ino);
			return NULL;
		}
	}
	s->busy = true;
	return s;
}

/**
 * stream_go_on - note that a run has been read ahead
 * @s: its reader, locked
 * @from: inode number that the run began with
 * @end: inode number behind the run
 * @mark: inode number whose read starts the next run
 * @due: files of the run below the mark
 *
 * While one thread of the reader reads ahead, others continue.  Files that they
 * have passed meanwhile are not due any more.
 */
static void stream_go_on(struct ext4_itree_stream *s, u32 from, u32 end,
			 u32 mark, u32 due)
{
	if (s->last >= mark)
		due = 0;
	else if (s->last >= from)
		due = div_u64((u64)due * (mark - s->last), mark - from + 1);
	s->busy = false;
	s->first = s->last;
	s->end = end;
	s->mark = mark;
	s->due = due;
	s->used = 0;
	s->missed = 0;
	s->tries = 0;
}

/**
 * stream_wait - retry a run whose inodes are not in memory yet
 * @s: its reader, locked
 * @end: inode number that the run begins with
 *
 * The run is due again some files later.
 */
static void stream_wait(struct ext4_itree_stream *s, u32 end)
{
	u32 tries = s->tries + 1;

	stream_go_on(s, end, end, s->last + STREAK, 0);
	s->tries = tries;
}

/**
 * stream_stop - stop following a reader
 * @s: the reader, locked
 *
 * Following it again takes a new streak.
 */
static void stream_stop(struct ext4_itree_stream *s)
{
	s->busy = false;
	start_streak(s, s->last);
}

/* --- a run --- */

struct run_file {
	ext4_fsblk_t pblk;	/* of its first block; 0: leave it out */
	u32	ino;
	u32	bytes;		/* whole pages, and whole blocks */
};

struct file_run {
	struct inode	*dir;
	struct run_file	*file;
	u32		nr;
	u32		end;	/* inode number to continue with */
	u32		mark;
	u32		due;
	bool		full;	/* the budget is used up */
	u32		files;	/* that were read, ... */
	u64		bytes;	/* ... and their pages */
};

/* Bytes that a run may take. */
static u64 run_budget(struct super_block *sb)
{
	u64 bytes = (u64)ext4_itree_memory() / RUN_SHARE << PAGE_SHIFT;

	return min_t(u64, bytes, READ_ONCE(EXT4_SB(sb)->s_itree_ahead_max));
}

/* As ext4_itree_take_inodes(), but takes none if i_rwsem is contended. */
static u32 take_inodes(struct inode *dir, u64 *next, u32 *ino, u32 max,
		       u32 group)
{
	u32 nr;

	if (!inode_trylock_shared(dir))
		return 0;
	nr = ext4_itree_take_inodes(dir, next, ino, max, group);
	inode_unlock_shared(dir);
	return nr;
}

/*
 * Did the streak read enough of the files between its first and its last?
 * Reads in another order that ascend by chance did not.
 */
static bool streak_dense(struct inode *dir, u32 first, u32 last)
{
	u64 next = ITREE_KEY(first, 0);
	u32 ino[STREAK * STREAK_SPARSE];
	u32 nr = take_inodes(dir, &next, ino, ARRAY_SIZE(ino), 1);

	if (!nr)
		ext4_itree_start_tree(dir);
	return nr && (nr < ARRAY_SIZE(ino) || ino[nr - 1] >= last);
}

/* Finds where the data of a small file begins, from its raw inode. */
static void look_at_inode(struct super_block *sb, struct ext4_inode *raw,
			  struct run_file *f)
{
	struct ext4_extent_header *eh = (struct ext4_extent_header *)raw->i_block;
	u32 flags = le32_to_cpu(raw->i_flags);
	u64 size = ext4_isize(sb, raw);

	if (!S_ISREG(le16_to_cpu(raw->i_mode)) || !raw->i_links_count ||
	    !size || size > EXT4_ITREE_SMALL_FILE ||
	    !(flags & EXT4_EXTENTS_FL) || flags & EXT4_INLINE_DATA_FL ||
	    eh->eh_magic != EXT4_EXT_MAGIC || eh->eh_depth || !eh->eh_entries)
		return;
	f->pblk = ext4_ext_pblock(EXT_FIRST_EXTENT(eh));
	f->bytes = round_up(size, max(PAGE_SIZE, sb->s_blocksize));
}

/*
 * Looks at the inodes whose table blocks are in memory, up to the first that is
 * not, or until their files use up the budget.
 */
static void look_at_files(struct file_run *r)
{
	struct super_block *sb = r->dir->i_sb;
	struct buffer_head *bh = NULL;
	u64 budget = run_budget(sb), bytes = 0;
	u32 i, block, last = ~0U, at;

	for (i = 0; i < r->nr; i++) {
		block = (r->file[i].ino - 1) / EXT4_SB(sb)->s_inodes_per_block;
		if (block != last) {
			brelse(bh);
			bh = ext4_itree_cached_itable(sb, r->file[i].ino);
			last = block;
			cond_resched();
		}
		if (!bh)
			break;
		at = (r->file[i].ino - 1) % EXT4_INODES_PER_GROUP(sb) %
		     EXT4_SB(sb)->s_inodes_per_block;
		look_at_inode(sb, (struct ext4_inode *)
			      (bh->b_data + at * EXT4_INODE_SIZE(sb)),
			      &r->file[i]);
		if (r->file[i].pblk)
			bytes += r->file[i].bytes + INODE_BYTES;
		r->full = bytes > budget;
		if (r->full)
			break;
	}
	brelse(bh);
	if (i < r->nr)
		r->end = r->file[i].ino;
	r->nr = i;
}

/* Takes up to @max inode numbers from @from on. */
static void take_files(struct file_run *r, u32 from, u32 max)
{
	u32 *ino, nr, i;

	r->file = kvcalloc(max, sizeof(*r->file),
			   GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	ino = kvmalloc_array(TAKE_KEYS, sizeof(*ino),
			     GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!r->file || !ino)
		goto out;
	r->end = from;
	while (r->nr < max) {
		u32 want = min(max - r->nr, TAKE_KEYS);
		u64 next = ITREE_KEY(r->end, 0);

		nr = take_inodes(r->dir, &next, ino, want, 1);
		for (i = 0; i < nr; i++)
			r->file[r->nr++].ino = ino[i];
		if (nr)
			r->end = ino[nr - 1] + 1;
		if (nr < want)
			break;
		cond_resched();
	}
out:
	kvfree(ino);
}

static int cmp_files(const void *a, const void *b)
{
	const struct run_file *x = a, *y = b;

	/* The longest runs take a few million comparisons. */
	cond_resched();
	return x->pblk < y->pblk ? -1 : x->pblk > y->pblk;
}

/* May this inode be read ahead?  Nothing of it is in memory yet. */
static bool wants_ahead(struct inode *inode)
{
	loff_t size = i_size_read(inode);

	return S_ISREG(inode->i_mode) && size &&
	       size <= EXT4_ITREE_SMALL_FILE && !inode->i_mapping->nrpages &&
	       !IS_DAX(inode) && !ext4_has_inline_data(inode) &&
	       (!IS_ENCRYPTED(inode) || fscrypt_has_encryption_key(inode));
}

/*
 * Starts reading a file.  Skips inodes that are being read or evicted, and
 * those whose invalidate_lock is held exclusively.
 */
static void read_file(struct file_run *r, const struct run_file *f)
{
	struct super_block *sb = r->dir->i_sb;
	struct file_ra_state ra = { };
	struct inode *inode;
	u32 pages;

	if (ext4_itree_inode_busy(sb, f->ino))
		return;
	/* A key of the tree is no more trustworthy than a file handle. */
	inode = ext4_iget(sb, f->ino, EXT4_IGET_HANDLE);
	if (IS_ERR(inode))
		return;
	if (wants_ahead(inode) &&
	    filemap_invalidate_trylock_shared(inode->i_mapping)) {
		DEFINE_READAHEAD(ractl, NULL, &ra, inode->i_mapping, 0);

		/* It may have grown since. */
		pages = DIV_ROUND_UP_ULL(min_t(loff_t, i_size_read(inode),
					       EXT4_ITREE_SMALL_FILE),
					 PAGE_SIZE);
		page_cache_ra_unbounded(&ractl, pages, 0);
		filemap_invalidate_unlock_shared(inode->i_mapping);
		r->files++;
		r->bytes += (u64)pages << PAGE_SHIFT;
	}
	iput(inode);
}

/* Reads the files of a run in the order of the disk. */
static void read_files(struct file_run *r)
{
	ext4_fsblk_t next = 0;
	struct blk_plug plug;
	u64 piece = 0;
	u32 i;

	blk_start_plug(&plug);
	for (i = 0; i < r->nr; i++) {
		const struct run_file *f = &r->file[i];

		if (!f->pblk)
			continue;
		/*
		 * Plug only neighbours: requests that do not merge may be
		 * submitted in reverse order.
		 */
		if (f->pblk != next || r->bytes - piece >= PIECE_BYTES) {
			blk_finish_plug(&plug);
			if (r->bytes - piece >= PIECE_BYTES) {
				if (fatal_signal_pending(current))
					return;
				piece = r->bytes;
			}
			cond_resched();
			blk_start_plug(&plug);
		}
		read_file(r, f);
		next = f->pblk + (f->bytes >> r->dir->i_blkbits);
	}
	blk_finish_plug(&plug);
}

/*
 * Starts reading the inode tables that the next run will look at, and the tree
 * if it is not in memory: not all readers list the directory first.
 */
static void read_tables(struct inode *dir, u32 from, u32 keys)
{
	u32 per_block = EXT4_SB(dir->i_sb)->s_inodes_per_block;
	u64 next = ITREE_KEY(from, 0);
	u32 *ino, nr, want;

	ino = kvmalloc_array(TAKE_KEYS, sizeof(*ino),
			     GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!ino)
		return;
	keys = DIV_ROUND_UP(keys, per_block);
	while (keys && next) {
		want = min(keys, TAKE_KEYS);
		nr = take_inodes(dir, &next, ino, want, per_block);
		if (!nr)
			break;
		ext4_itree_ahead_inodes(dir->i_sb, ino, nr, sizeof(*ino), ~0U);
		keys -= want;
		cond_resched();
	}
	kvfree(ino);
	if (!next)
		ext4_itree_start_tree(dir);
}

/* Reads files ahead from @from on, up to the first inode not in memory. */
static void read_run(struct file_run *r, u32 from, u32 keys)
{
	u32 i;

	take_files(r, from, keys);
	look_at_files(r);
	if (!r->nr) {
		/* The next try should find the inodes in memory. */
		read_tables(r->dir, from, keys);
		kvfree(r->file);
		return;
	}
	i = r->nr - r->nr / LEFT_SHARE - 1;
	r->mark = r->file[i].ino;
	while (i--)
		r->due += !!r->file[i].pblk;
	sort(r->file, r->nr, sizeof(*r->file), cmp_files, NULL);
	read_files(r);
	kvfree(r->file);
	read_tables(r->dir, r->end, 2 * keys);
	trace_ext4_itree_ahead(r->dir, from, r->nr, r->files, r->bytes);
	ext4_itree_count(r->dir->i_sb, EXT4_ITREE_AHEAD_RUNS, 1);
	ext4_itree_count(r->dir->i_sb, EXT4_ITREE_AHEAD_FILES, r->files);
	ext4_itree_count(r->dir->i_sb, EXT4_ITREE_AHEAD_BYTES, r->bytes);
}

static struct ext4_itree_streams *make_streams(struct inode *dir)
{
	struct ext4_itree_dir *d = ext4_itree_make_dir(dir);
	struct ext4_itree_streams *t;

	if (!d)
		return NULL;
	/* Pairs with the cmpxchg_release() below. */
	t = smp_load_acquire(&d->streams);
	if (t)
		return t;
	t = kzalloc(sizeof(*t), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!t)
		return NULL;
	spin_lock_init(&t->lock);
	if (cmpxchg_release(&d->streams, NULL, t)) {
		kfree(t);
		/* Another task was faster: pairs with its cmpxchg_release(). */
		t = smp_load_acquire(&d->streams);
	}
	return t;
}

/* Hits are of interest only while there is a run they may belong to. */
static void set_interest(struct inode *dir, const struct ext4_itree_streams *t)
{
	bool runs = false;
	u32 i;

	for (i = 0; i < STREAMS; i++)
		runs |= !!t->stream[i].end;
	if (runs == !!ext4_test_inode_state(dir, EXT4_STATE_ITREE_AHEAD))
		return;
	if (runs)
		ext4_set_inode_state(dir, EXT4_STATE_ITREE_AHEAD);
	else
		ext4_clear_inode_state(dir, EXT4_STATE_ITREE_AHEAD);
}

static void note_read(struct inode *dir, u32 ino, bool miss)
{
	struct ext4_itree_streams *t = make_streams(dir);
	struct file_run r = { .dir = dir };
	struct ext4_itree_stream *s;
	u32 first, last, from, keys, used = 0;
	unsigned long begun = jiffies;
	bool streak, ahead;

	if (!t)
		return;
	spin_lock(&t->lock);
	s = stream_note(t, ino, miss);
	swap(used, t->used);
	if (!s) {
		set_interest(dir, t);
		spin_unlock(&t->lock);
		goto count;
	}
	streak = !s->end;
	first = s->first;
	last = s->last;
	from = max(s->end, last + 1);
	keys = s->run;
	spin_unlock(&t->lock);

	ahead = !streak || streak_dense(dir, first, last);
	if (ahead)
		read_run(&r, from, keys);

	spin_lock(&t->lock);
	if (!ahead || (r.nr && !r.files)) {
		stream_stop(s);
	} else if (!r.nr) {
		stream_wait(s, from);
	} else {
		stream_go_on(s, from, r.end, r.mark, r.due);
		if (r.full)
			s->run = max(r.nr, RUN_MIN);
		if (time_after(jiffies, begun + LONG_RUN))
			s->most = max(r.nr / 4, RUN_MIN);
	}
	set_interest(dir, t);
	spin_unlock(&t->lock);
count:
	if (used)
		ext4_itree_count(dir->i_sb, EXT4_ITREE_AHEAD_USED, used);
}

/**
 * ext4_itree_file_read - note that a file has been read from its start
 * @file: the open file, small (EXT4_ITREE_SMALL_FILE)
 * @miss: nothing of it was in memory
 *
 * Reads files of the same directory ahead if the reader reads them in inode
 * order.  Called with no lock of the file held.
 */
void ext4_itree_file_read(struct file *file, bool miss)
{
	struct dentry *parent;
	struct inode *dir;
	bool look;

	/* Most reads end here: no reader to follow, and no streak begins. */
	rcu_read_lock();
	dir = d_inode_rcu(READ_ONCE(file->f_path.dentry->d_parent));
	look = dir && ext4_dir_has_itree(dir) &&
	       (miss || ext4_test_inode_state(dir, EXT4_STATE_ITREE_AHEAD));
	rcu_read_unlock();
	if (!look || file->f_mode & FMODE_RANDOM ||
	    !inode_to_bdi(file_inode(file))->ra_pages)
		return;
	parent = dget_parent(file->f_path.dentry);
	dir = d_inode(parent);
	if (S_ISDIR(dir->i_mode) && ext4_itree_usable(dir))
		note_read(dir, file_inode(file)->i_ino, miss);
	dput(parent);
}

#ifdef CONFIG_EXT4_KUNIT_TESTS
#include "itree_files-test.c"
#endif
