/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The itree's files are written for the newest kernel.  This header provides
 * the functions that they call and Linux 6.12 lacks.  fs/ext4/Makefile includes
 * it before the files that need it, and never before ext4's own.
 */
#ifndef _EXT4_ITREE_COMPAT_H
#define _EXT4_ITREE_COMPAT_H

#include <linux/buffer_head.h>
#include <linux/crc32c.h>
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/list_lru.h>
#include <linux/pagemap.h>
#include <linux/shrinker.h>
#include <linux/wait.h>

#include "ext4.h"

#define d_alias		d_u.d_alias

#define ext4_chksum(crc, data, len)	crc32c(crc, data, len)

/* 6.12 has it for the blocks of a page, which are not fewer than one. */
static inline int itree_compat_trans_extent(struct inode *inode, int blocks)
{
	return ext4_writepage_trans_blocks(inode);
}

#define ext4_chunk_trans_extent		itree_compat_trans_extent

/* The sequence number at @seq, which 6.12 does not have, is not returned. */
static inline int itree_compat_es_lookup(struct inode *inode, ext4_lblk_t lblk,
					 ext4_lblk_t *next,
					 struct extent_status *es, u64 *seq)
{
	return ext4_es_lookup_extent(inode, lblk, next, es);
}

#define ext4_es_lookup_extent		itree_compat_es_lookup

static inline unsigned long inode_state_read(struct inode *inode)
{
	lockdep_assert_held(&inode->i_lock);
	return inode->i_state;
}

static inline unsigned long inode_state_read_once(struct inode *inode)
{
	return READ_ONCE(inode->i_state);
}

static inline struct dentry *try_lookup_noperm(struct qstr *name,
					       struct dentry *base)
{
	return d_hash_and_lookup(base, name);
}

/*
 * 6.12 wants a wait queue from the caller and uses it until the look-up ends.
 * The queue must outlive this block, so it is allocated in the stack frame of
 * the calling function.
 */
#define d_alloc_parallel(parent, name)					\
({									\
	wait_queue_head_t *__wq = __builtin_alloca(sizeof(*__wq));	\
									\
	init_waitqueue_head(__wq);					\
	d_alloc_parallel(parent, name, __wq);				\
})

/* 6.12 drops a reference here, too.  Later kernels leave it to the caller. */
static inline void itree_compat_end_read(struct buffer_head *bh, int uptodate)
{
	get_bh(bh);
	end_buffer_read_sync(bh, uptodate);
}

#define end_buffer_read_sync	itree_compat_end_read

/*
 * 6.12 takes invalidate_lock in this function; later kernels want the caller to
 * hold it.  The only caller takes the lock, calls this, and unlocks.  So unlock
 * before the call, and let the caller's unlock do nothing.
 */
static inline void itree_compat_readahead(struct readahead_control *ractl,
					  unsigned long pages,
					  unsigned long mark)
{
	filemap_invalidate_unlock_shared(ractl->mapping);
	page_cache_ra_unbounded(ractl, pages, mark);
}

static inline void itree_compat_unlocked(struct address_space *mapping)
{
}

#define page_cache_ra_unbounded			itree_compat_readahead
#define filemap_invalidate_unlock_shared	itree_compat_unlocked

/* 6.12 passes the number that is looked for as unsigned long. */
struct itree_compat_match {
	int	(*match)(struct inode *inode, u64 ino, void *data);
	void	*data;
};

static inline int itree_compat_match(struct inode *inode, unsigned long ino,
				     void *arg)
{
	struct itree_compat_match *m = arg;

	return m->match(inode, ino, m->data);
}

static inline struct inode *
itree_compat_find(struct super_block *sb, u64 ino,
		  int (*match)(struct inode *, u64, void *), void *data)
{
	struct itree_compat_match m = { match, data };

	return find_inode_nowait(sb, ino, itree_compat_match, &m);
}

#define find_inode_nowait	itree_compat_find

/* 6.12 passes the lock of the list, too. */
struct itree_compat_walk {
	enum lru_status	(*isolate)(struct list_head *item,
				   struct list_lru_one *list, void *arg);
	void		*arg;
};

static inline enum lru_status itree_compat_isolate(struct list_head *item,
						   struct list_lru_one *list,
						   spinlock_t *lock, void *arg)
{
	struct itree_compat_walk *w = arg;

	return w->isolate(item, list, w->arg);
}

static inline unsigned long
itree_compat_shrink(struct list_lru *lru, struct shrink_control *sc,
		    enum lru_status (*isolate)(struct list_head *,
					       struct list_lru_one *, void *),
		    void *arg)
{
	struct itree_compat_walk w = { isolate, arg };

	return list_lru_shrink_walk(lru, sc, itree_compat_isolate, &w);
}

#define list_lru_shrink_walk	itree_compat_shrink

#endif	/* _EXT4_ITREE_COMPAT_H */
