// SPDX-License-Identifier: GPL-2.0-only
/*
 * The log of changes to a directory whose itree is being built, and code that
 * all steps of a build share.  See itree_online.c for the steps.
 */
#include <linux/fs.h>
#include <linux/memcontrol.h>
#include <linux/mount.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include "ext4.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"

/* Changes in one chunk of the log: about a page. */
#define LOG_KEYS	((4096 - sizeof(struct list_head) - 8) / sizeof(u64))
/* The build is given up if more changes are logged but not yet applied. */
#define LOG_MAX		(4U << 20)
/* Credits that one node of a load or one change of a round may take. */
#define STEP_CREDITS	48

struct log_chunk {
	struct list_head list;
	u32	nr;
	u64	key[LOG_KEYS];		/* bit 0: the name is gone */
};

/* --- for changes of the directory, i_rwsem held exclusively --- */

/**
 * ext4_itree_builder_version - hash version of a directory being built
 * @dir: directory for which ext4_itree_building() holds
 */
u8 ext4_itree_builder_version(struct inode *dir)
{
	return ext4_itree_builder(dir)->hash_version;
}

/**
 * ext4_itree_builder_stop - make the build of a directory's tree fail
 * @dir: any directory, i_rwsem held exclusively
 * @err: error that ends the build
 */
void ext4_itree_builder_stop(struct inode *dir, int err)
{
	struct ext4_itree_builder *b = ext4_itree_builder(dir);

	if (b && !b->err)
		WRITE_ONCE(b->err, err);
}

/* Charged to the builder: the writer has not asked for a build. */
static struct log_chunk *alloc_chunk(struct ext4_itree_builder *b)
{
	struct mem_cgroup *old = set_active_memcg(b->memcg);
	struct log_chunk *c;

	c = kmalloc(sizeof(*c), GFP_NOFS | __GFP_ACCOUNT | __GFP_NORETRY |
		    __GFP_NOWARN);
	set_active_memcg(old);
	return c;
}

/**
 * ext4_itree_log - log a change for the builder
 * @dir: directory for which ext4_itree_building() holds
 * @key: of the name; EXT4_ITREE_BAD_KEY stops the build
 * @gone: the name was removed; otherwise it was added
 */
void ext4_itree_log(struct inode *dir, u64 key, bool gone)
{
	struct ext4_itree_builder *b = ext4_itree_builder(dir);
	struct log_chunk *c;

	if (key == EXT4_ITREE_BAD_KEY)
		ext4_itree_builder_stop(dir, -EFSCORRUPTED);
	if (b->err || ITREE_KEY_HASH(key) >= b->cursor)
		return;
	c = list_empty(&b->log) ? NULL :
	    list_last_entry(&b->log, struct log_chunk, list);
	if (!c || c->nr == LOG_KEYS) {
		c = NULL;
		if (b->logged < LOG_MAX)
			c = alloc_chunk(b);
		if (!c) {
			ext4_itree_builder_stop(dir, b->logged < LOG_MAX ?
						-ENOMEM : -EAGAIN);
			return;
		}
		c->nr = 0;
		list_add_tail(&c->list, &b->log);
	}
	c->key[c->nr++] = key | gone;
	b->logged++;
}

/* Empties a log. */
void ext4_itree_free_log(struct list_head *log)
{
	struct log_chunk *c, *tmp;

	list_for_each_entry_safe(c, tmp, log, list)
		kfree(c);
	INIT_LIST_HEAD(log);
}

/* --- for all steps of a build --- */

/**
 * ext4_itree_check_stop - should the build end here?
 * @b: builder
 *
 * Returns 0 or the error to end with: -EINTR for any signal.
 */
int ext4_itree_check_stop(struct ext4_itree_builder *b)
{
	if (signal_pending(current))
		return -EINTR;
	if (ext4_forced_shutdown(b->dir->i_sb))
		return -EIO;
	if (READ_ONCE(EXT4_SB(b->dir->i_sb)->s_itree_switching))
		return -EBUSY;
	/* The last check holds i_rwsem, so earlier ones may miss an error. */
	return READ_ONCE(b->err);
}

/**
 * ext4_itree_let_freeze - let the file system be frozen
 * @b: builder; no locks and no handle held
 *
 * Sleeps while the file system is frozen.  Returns 0 or a negative error;
 * b->can_write then tells whether anything may still be written.
 */
int ext4_itree_let_freeze(struct ext4_itree_builder *b)
{
	int err;

	cond_resched();
	if (b->dir->i_sb->s_writers.frozen == SB_UNFROZEN)
		return 0;
	mnt_drop_write_file(b->file);
	b->can_write = false;
	err = mnt_want_write_file(b->file);
	b->can_write = !err;
	return err;
}

/**
 * ext4_itree_start - start a handle for steps of a build
 * @dir: directory
 *
 * Returns the handle or an ERR_PTR.  Start another one when
 * ext4_itree_used_up() returns true.
 */
handle_t *ext4_itree_start(struct inode *dir)
{
	journal_t *journal = EXT4_SB(dir->i_sb)->s_journal;
	int credits = 256;

	if (journal)
		credits = clamp(journal->j_max_transaction_buffers / 4,
				STEP_CREDITS + 8, credits);
	return ext4_journal_start(dir, EXT4_HT_DIR, credits);
}

/* Has the handle too little room for one more step? */
bool ext4_itree_used_up(handle_t *handle)
{
	return ext4_handle_valid(handle) &&
	       jbd2_handle_buffer_credits(handle) < STEP_CREDITS;
}

/* --- catching up --- */

static int apply_key(struct ext4_itree *et, u64 key)
{
	int err;

	if (key & 1)
		err = itree_delete(&et->t, key & ~1ULL);
	else
		err = itree_reserve(&et->t, 1) ?: itree_insert(&et->t, key);
	return err == -ENOENT ? -EFSCORRUPTED : err;
}

/* A place in the log. */
struct log_pos {
	struct list_head *log;
	struct log_chunk *chunk;
	u32	at;
};

static bool log_next(struct log_pos *p, u64 *key)
{
	if (p->chunk && p->at == p->chunk->nr) {
		list_del(&p->chunk->list);
		kfree(p->chunk);
		p->chunk = NULL;
	}
	if (!p->chunk) {
		if (list_empty(p->log))
			return false;
		p->chunk = list_first_entry(p->log, struct log_chunk, list);
		p->at = 0;
	}
	*key = p->chunk->key[p->at++];
	return true;
}

/* Applies as much of the log as one handle can take.  Returns 1 at its end. */
static int apply_some(struct ext4_itree_builder *b, struct log_pos *p)
{
	handle_t *handle = ext4_itree_start(b->dir);
	struct ext4_itree et;
	u64 key;
	int err, err2;

	if (IS_ERR(handle))
		return PTR_ERR(handle);
	err = ext4_itree_open(&et, handle, b->dir);
	if (err)
		goto stop;
	while (!err) {
		if (!log_next(p, &key)) {
			err = 1;
			break;
		}
		err = apply_key(&et, key);
		if (ext4_itree_used_up(handle))
			break;
		cond_resched();
	}
	ext4_itree_close(&et);
stop:
	err2 = ext4_journal_stop(handle);
	return err2 && err >= 0 ? err2 : err;
}

/**
 * ext4_itree_apply_log - apply logged changes to the tree
 * @b: builder
 * @log: from ext4_itree_take_log(); empty afterwards
 * @locked: i_rwsem is held
 *
 * Returns 0 or a negative error, after which the tree must not be used.
 */
int ext4_itree_apply_log(struct ext4_itree_builder *b, struct list_head *log,
			 bool locked)
{
	struct log_pos p = { .log = log };
	int err = list_empty(log);

	while (!err) {
		err = ext4_itree_check_stop(b);
		if (!err && !locked)
			err = ext4_itree_let_freeze(b);
		if (!err)
			err = apply_some(b, &p);
	}
	ext4_itree_free_log(log);
	return min(err, 0);
}

/* Takes the log; i_rwsem held exclusively. */
void ext4_itree_take_log(struct ext4_itree_builder *b, struct list_head *log)
{
	list_replace_init(&b->log, log);
	b->args->ia_logged += b->logged;
	b->logged = 0;
}
