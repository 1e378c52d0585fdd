// SPDX-License-Identifier: GPL-2.0-only
/*
 * How readers learn of renames: the passes over a directory that have begun,
 * and the names that have got another inode since.
 *
 * rename() over a name, RENAME_EXCHANGE and RENAME_WHITEOUT move a name that
 * exists all the time to another place in inode order.  A pass between the old
 * place and the new one would miss it.  So a directory that is being read keeps
 * one log of these names for all its readers: a writer adds the name once,
 * however many readers there are.  A pass skips the names that were logged
 * since it began and returns them at its end, in hash order, which a rename
 * does not change.  A full log drops its oldest names; an allocation that fails
 * drops all of them.  Passes that began before a dropped name was logged return
 * the whole directory again, and lose nothing.
 *
 * A reader that pauses keeps the log in memory.  A name in it is charged to the
 * control group of the task that moved it.  When that group or the machine
 * needs memory, a shrinker drops the names that were logged first.
 *
 * The log holds places in hash order, not names: names at the same place are
 * returned together.
 *
 * A pass outlives the open file.  File servers in user space open a directory
 * for each request and seek to a position that they got earlier.  The position
 * contains the number of its pass (itree_pos.c), so the next file can continue
 * that pass.  If it has been forgotten, a new pass in hash order takes over.
 */
#include <linux/bitmap.h>
#include <linux/fs.h>
#include <linux/list_lru.h>
#include <linux/rbtree.h>
#include <linux/random.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* Names in the log of a directory: 1.3 MiB. */
#define LOG_MAX		16384U
/* Names dropped at a time, with the lock held. */
#define LOG_BATCH	64U
/* Passes that a directory remembers, and those of them that have ended. */
#define PASSES_MAX	64U
#define OVER_MAX	4U
/*
 * If ANEW_MIN readers have opened the directory to continue at a position, new
 * passes get hash order until ANEW_FOR after the last of them.
 */
#define ANEW_FOR	(600 * HZ)
#define ANEW_MIN	2U
/* Sweeps of a directory that memory does not hold help little: limit them. */
#define SWEEP_EVERY	(10 * HZ)
/* Hashes of names that were added while they are watched: 4 KiB. */
#define ADDED_ORDER	15U
#define ADDED_BITS	BIT(ADDED_ORDER)
/* A pass that has been idle for so long needs no log. */
#define PASS_IDLE	(600 * HZ)

struct moved {
	struct rb_node	node;
	struct list_head age;		/* the oldest first */
	struct list_head reclaim;	/* in the list of the shrinker */
	struct ext4_itree_readers *readers;
	u32		hash;
	u32		minor;		/* 0 if names are encrypted */
	u64		when;		/* the last time, by the log's clock */
};

/* A directory's registry; lives as long as the inode is in memory. */
struct ext4_itree_readers {
	struct ext4_itree_dir dir;
	spinlock_t	lock;		/* of all that follows */
	struct rb_root	log;
	struct list_head ages;
	u64		clock;		/* names logged, or lost, so far */
	u64		lost;		/* the log lacks some up to this time */
	struct list_head passes;	/* least recently used first */
	u32		nr_passes;
	u32		nr_over;
	u32		nr_open;	/* files in the middle of a pass */
	unsigned long	used;		/* when one was last, in jiffies */
	u32		last_id;
	u32		doubts;		/* times that the tree was found bad */
	u32		anew;		/* files that started at a position */
	unsigned long	anew_at;
	unsigned long	*added;		/* ADDED_BITS, by hash, of this epoch */
	u32		nr_added;
	u32		epoch;		/* goes up whenever bits are lost */
	bool		swept;		/* at swept_at */
	unsigned long	swept_at;
};

static struct kmem_cache *moved_cache;
/* The names of all logs, those logged first at the front. */
static struct list_lru moved_names;
static struct shrinker *moved_shrinker;

/* --- the registry --- */

static struct ext4_itree_readers *readers_of(struct inode *dir)
{
	struct ext4_itree_dir *d = ext4_itree_dir(dir);

	return d ? container_of(d, struct ext4_itree_readers, dir) : NULL;
}

static struct ext4_itree_readers *make_readers(struct inode *dir)
{
	struct ext4_itree_readers *r = readers_of(dir);

	if (r)
		return r;
	r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!r)
		return NULL;
	spin_lock_init(&r->lock);
	INIT_LIST_HEAD(&r->passes);
	INIT_LIST_HEAD(&r->ages);
	r->log = RB_ROOT;
	/* Positions of an earlier registry should not look like ours. */
	r->last_id = get_random_u32_below(PASS_IDS);
	if (cmpxchg_release(&EXT4_I(dir)->i_itree_dir, NULL, &r->dir)) {
		kfree(r);
		return readers_of(dir);
	}
	return r;
}

/**
 * ext4_itree_make_dir - get or allocate a directory's state besides its inode
 * @dir: directory, with a reference to its inode
 *
 * Returns NULL without memory.  The state is freed with the inode.
 */
struct ext4_itree_dir *ext4_itree_make_dir(struct inode *dir)
{
	struct ext4_itree_readers *r = make_readers(dir);

	return r ? &r->dir : NULL;
}

/* Removes a name from the log.  Passes that began before see it in r->lost. */
static void log_remove(struct ext4_itree_readers *r, struct moved *m)
{
	list_del(&m->age);
	rb_erase(&m->node, &r->log);
	WRITE_ONCE(r->dir.nr_moved, r->dir.nr_moved - 1);
	r->lost = max(r->lost, m->when);
}

static struct moved *drop_oldest(struct ext4_itree_readers *r)
{
	struct moved *m = list_first_entry(&r->ages, struct moved, age);

	list_lru_del_obj(&moved_names, &m->reclaim);
	log_remove(r, m);
	return m;
}

/*
 * Drops the names that have been logged so far.  Writers may log others
 * meanwhile.
 */
static void drop_log(struct ext4_itree_readers *r)
{
	struct moved *m, *next;
	u64 until;
	u32 nr;

	spin_lock(&r->lock);
	until = r->clock;
	do {
		LIST_HEAD(gone);

		for (nr = 0; nr < LOG_BATCH && !list_empty(&r->ages) &&
		     list_first_entry(&r->ages, struct moved, age)->when <=
		     until; nr++)
			list_add(&drop_oldest(r)->age, &gone);
		spin_unlock(&r->lock);
		list_for_each_entry_safe(m, next, &gone, age)
			kmem_cache_free(moved_cache, m);
		cond_resched();
		spin_lock(&r->lock);
	} while (nr == LOG_BATCH);
	spin_unlock(&r->lock);
}

static void put_pass(struct ext4_itree_pass *pass)
{
	if (refcount_dec_and_test(&pass->refs))
		kfree(pass);
}

static void forget_pass(struct ext4_itree_readers *r,
			struct ext4_itree_pass *pass)
{
	list_del_init(&pass->list);
	r->nr_passes--;
	r->nr_over -= pass->over;
	put_pass(pass);
}

/* Marks a pass as ended; the last few are remembered for seekdir(). */
static void end_pass(struct ext4_itree_readers *r, struct ext4_itree_pass *pass)
{
	if (list_empty(&pass->list) || pass->over)
		return;
	pass->over = true;
	if (++r->nr_over <= OVER_MAX)
		return;
	list_for_each_entry(pass, &r->passes, list) {
		if (pass->over) {
			forget_pass(r, pass);
			return;
		}
	}
}

/**
 * ext4_itree_forget_readers - free the readers of an inode that is evicted
 * @dir: any inode
 */
void ext4_itree_forget_readers(struct inode *dir)
{
	struct ext4_itree_readers *r = readers_of(dir);
	struct ext4_itree_pass *pass, *next;

	if (!r)
		return;
	EXT4_I(dir)->i_itree_dir = NULL;
	list_for_each_entry_safe(pass, next, &r->passes, list)
		forget_pass(r, pass);
	drop_log(r);
	bitmap_free(r->added);
	kfree(r->dir.streams);
	kfree(r);
}

/* --- the log --- */

/* The first name at or behind a place. */
static struct moved *log_from(struct ext4_itree_readers *r, u32 hash, u32 minor)
{
	struct rb_node *p = r->log.rb_node;
	struct moved *m, *best = NULL;

	while (p) {
		m = rb_entry(p, struct moved, node);
		if (m->hash < hash || (m->hash == hash && m->minor < minor)) {
			p = p->rb_right;
		} else {
			best = m;
			p = p->rb_left;
		}
	}
	return best;
}

static void log_insert(struct ext4_itree_readers *r, struct moved *new)
{
	struct rb_node **p = &r->log.rb_node, *parent = NULL;

	while (*p) {
		struct moved *m = rb_entry(*p, struct moved, node);

		parent = *p;
		if (new->hash < m->hash ||
		    (new->hash == m->hash && new->minor < m->minor))
			p = &parent->rb_left;
		else
			p = &parent->rb_right;
	}
	rb_link_node(&new->node, parent, p);
	rb_insert_color(&new->node, &r->log);
	list_add_tail(&new->age, &r->ages);
	list_lru_add_obj(&moved_names, &new->reclaim);
	WRITE_ONCE(r->dir.nr_moved, r->dir.nr_moved + 1);
}

/* Does a pass need the log? */
static bool wants_log(struct ext4_itree_readers *r)
{
	return r->nr_open || (r->nr_passes > r->nr_over &&
			      time_before(jiffies, r->used + PASS_IDLE));
}

/**
 * ext4_itree_readers_renumber - log a name that has got another inode
 * @dir: i_rwsem held exclusively
 * @de: the changed entry
 */
void ext4_itree_readers_renumber(struct inode *dir, struct ext4_dir_entry_2 *de)
{
	struct ext4_itree_readers *r = readers_of(dir);
	struct moved *m, *new = NULL;
	bool want, logged = false;
	u32 hash, minor;
	u8 version;

	if (!r)
		return;
	spin_lock(&r->lock);
	want = wants_log(r);
	spin_unlock(&r->lock);
	/* A charge that fails costs a pass; it should not cost a process. */
	if (want && !ext4_itree_hash_version(dir, &version) &&
	    !ext4_itree_hash_entry(dir, version, de, &hash, &minor))
		new = kmem_cache_alloc_lru(moved_cache, &moved_names, GFP_NOFS |
					   __GFP_NORETRY | __GFP_NOWARN);
	spin_lock(&r->lock);
	r->clock++;
	if (new) {
		logged = true;
		new->readers = r;
		INIT_LIST_HEAD(&new->reclaim);
		new->hash = hash;
		new->minor = IS_ENCRYPTED(dir) ? 0 : minor;
		m = log_from(r, new->hash, new->minor);
		if (m && m->hash == new->hash && m->minor == new->minor) {
			m->when = r->clock;
			list_move_tail(&m->age, &r->ages);
		} else {
			new->when = r->clock;
			log_insert(r, new);
			new = r->dir.nr_moved > LOG_MAX ? drop_oldest(r) : NULL;
		}
	} else {
		r->lost = r->clock;
	}
	spin_unlock(&r->lock);
	if (new)
		kmem_cache_free(moved_cache, new);
	if (!logged)
		drop_log(r);
}

/* Has the log dropped a name since the pass began? */
static bool has_lost(const struct ext4_itree_readers *r,
		     const struct ext4_itree_pass *pass)
{
	return pass->whole || r->lost > pass->began;
}

/**
 * ext4_itree_next_moved - find the next name that a pass has skipped
 * @dir: directory
 * @pass: of it
 * @hash: place in hash order to look from, set to the name's
 * @minor: likewise
 *
 * Returns false if there are no more.  If the log has dropped names, the next
 * one may be any: returns true and leaves the place as it is.
 */
bool ext4_itree_next_moved(struct inode *dir, struct ext4_itree_pass *pass,
			   u32 *hash, u32 *minor)
{
	struct ext4_itree_readers *r = readers_of(dir);
	struct moved *m;
	bool any;

	spin_lock(&r->lock);
	any = has_lost(r, pass);
	if (any)
		goto unlock;
	m = log_from(r, *hash, IS_ENCRYPTED(dir) ? 0 : *minor);
	while (m && m->when <= pass->began)
		m = rb_entry_safe(rb_next(&m->node), struct moved, node);
	if (m && (m->hash != *hash || m->minor > *minor)) {
		*hash = m->hash;
		*minor = m->minor;
	}
	any = m;
unlock:
	spin_unlock(&r->lock);
	return any;
}

/**
 * ext4_itree_has_moved - may a pass have skipped this name?
 * @dir: directory
 * @pass: of it
 * @hash: of the name
 * @minor: likewise
 *
 * If the log has dropped names, it may have skipped any.
 */
bool ext4_itree_has_moved(struct inode *dir, struct ext4_itree_pass *pass,
			  u32 hash, u32 minor)
{
	struct ext4_itree_readers *r = readers_of(dir);
	struct moved *m;
	bool moved;

	if (IS_ENCRYPTED(dir))
		minor = 0;
	spin_lock(&r->lock);
	m = log_from(r, hash, minor);
	moved = has_lost(r, pass) ||
		(m && m->hash == hash && m->minor == minor &&
		 m->when > pass->began);
	spin_unlock(&r->lock);
	return moved;
}

/* Has a pass skipped any name of this hash? */
static bool has_hash(struct ext4_itree_readers *r, struct ext4_itree_pass *pass,
		     u32 hash)
{
	struct moved *m;
	bool has = false;

	spin_lock(&r->lock);
	for (m = log_from(r, hash, 0); m && m->hash == hash && !has;
	     m = rb_entry_safe(rb_next(&m->node), struct moved, node))
		has = m->when > pass->began;
	spin_unlock(&r->lock);
	return has;
}

/**
 * ext4_itree_comes_later - does the pass return this name at its end?
 * @s: scan in inode order, of a directory with names that have moved
 * @n: name that it is about to return
 */
bool ext4_itree_comes_later(struct ext4_itree_scan *s, const struct scan_name *n)
{
	struct ext4_itree_readers *r = readers_of(s->dir);
	u32 hash = ITREE_KEY_HASH(n->key), minor;

	if (n->key <= KEY_DOTDOT)
		return false;
	/* The key contains the hash: most names need not be hashed again. */
	if (!has_hash(r, s->pass, hash))
		return false;
	/* Names of the window are decrypted and cannot be hashed. */
	if (IS_ENCRYPTED(s->dir))
		return true;
	if (ext4_itree_hash_name(s->dir, s->hash_version, n->name, n->len,
				 &hash, &minor))
		return false;
	return ext4_itree_has_moved(s->dir, s->pass, hash, minor);
}

/* --- reclaim of the log --- */

static enum lru_status drop_moved(struct list_head *item,
				  struct list_lru_one *list, void *arg)
{
	struct moved *m = container_of(item, struct moved, reclaim);
	struct ext4_itree_readers *r = m->readers;

	/* Others take the lock of the list inside this one. */
	if (!spin_trylock(&r->lock))
		return LRU_SKIP;
	list_lru_isolate(list, item);
	log_remove(r, m);
	spin_unlock(&r->lock);
	list_add(&m->age, arg);
	return LRU_REMOVED;
}

static unsigned long count_moved(struct shrinker *shrink,
				 struct shrink_control *sc)
{
	return list_lru_shrink_count(&moved_names, sc);
}

static unsigned long shrink_moved(struct shrinker *shrink,
				  struct shrink_control *sc)
{
	struct moved *m, *next;
	LIST_HEAD(gone);
	unsigned long nr;

	nr = list_lru_shrink_walk(&moved_names, sc, drop_moved, &gone);
	list_for_each_entry_safe(m, next, &gone, age)
		kmem_cache_free(moved_cache, m);
	return nr;
}

int __init ext4_itree_open_init(void)
{
	int err = -ENOMEM;

	moved_cache = kmem_cache_create("ext4_itree_moved",
					sizeof(struct moved), 0, SLAB_ACCOUNT |
					SLAB_RECLAIM_ACCOUNT, NULL);
	if (!moved_cache)
		return err;
	moved_shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE |
					SHRINKER_MEMCG_AWARE, "ext4-itree-log");
	if (!moved_shrinker)
		goto free_cache;
	err = list_lru_init_memcg(&moved_names, moved_shrinker);
	if (err)
		goto free_shrinker;
	moved_shrinker->count_objects = count_moved;
	moved_shrinker->scan_objects = shrink_moved;
	shrinker_register(moved_shrinker);
	return 0;
free_shrinker:
	shrinker_free(moved_shrinker);
free_cache:
	kmem_cache_destroy(moved_cache);
	return err;
}

void ext4_itree_open_exit(void)
{
	shrinker_free(moved_shrinker);
	list_lru_destroy(&moved_names);
	kmem_cache_destroy(moved_cache);
}

/* --- names added --- */

static u32 added_bit(u32 hash)
{
	return hash >> (32 - ADDED_ORDER);
}

/**
 * ext4_itree_watch_added - start to record which names are added
 * @dir: with a scan that is open, i_rwsem held
 *
 * Returns an epoch for ext4_itree_may_be_added(), or 0 without memory.
 */
u32 ext4_itree_watch_added(struct inode *dir)
{
	struct ext4_itree_readers *r = readers_of(dir);
	unsigned long *spare = NULL;
	u32 epoch = 0;

	if (!READ_ONCE(r->added))
		spare = bitmap_zalloc(ADDED_BITS,
				      GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	spin_lock(&r->lock);
	if (!r->added) {
		swap(r->added, spare);
		r->nr_added = 0;
		r->epoch++;
	} else if (r->nr_added > ADDED_BITS / 4 ||
		   (r->nr_added && r->nr_open == 1)) {
		/* Other scans do without until their next window. */
		bitmap_zero(r->added, ADDED_BITS);
		r->nr_added = 0;
		r->epoch++;
	}
	if (r->added)
		epoch = r->epoch;
	spin_unlock(&r->lock);
	bitmap_free(spare);
	return epoch;
}

/**
 * ext4_itree_readers_added - record a name that was added or got another inode
 * @dir: i_rwsem held exclusively
 * @hash: of the name
 */
void ext4_itree_readers_added(struct inode *dir, u32 hash)
{
	struct ext4_itree_readers *r = readers_of(dir);

	if (!r || !READ_ONCE(r->added))
		return;
	spin_lock(&r->lock);
	if (r->added && !__test_and_set_bit(added_bit(hash), r->added))
		r->nr_added++;
	spin_unlock(&r->lock);
}

/**
 * ext4_itree_readers_lose_added - names may be added without a record
 * @dir: i_rwsem held exclusively
 */
void ext4_itree_readers_lose_added(struct inode *dir)
{
	struct ext4_itree_readers *r = readers_of(dir);

	if (!r)
		return;
	spin_lock(&r->lock);
	r->epoch++;
	spin_unlock(&r->lock);
}

/**
 * ext4_itree_may_be_added - may a name of this hash have been added?
 * @dir: with a scan that is open, i_rwsem held
 * @epoch: from ext4_itree_watch_added(), to ask for names added since then
 * @hash: of the name
 */
bool ext4_itree_may_be_added(struct inode *dir, u32 epoch, u32 hash)
{
	struct ext4_itree_readers *r = readers_of(dir);
	bool may;

	if (!epoch)
		return true;
	spin_lock(&r->lock);
	may = r->epoch != epoch || !r->added ||
	      test_bit(added_bit(hash), r->added);
	spin_unlock(&r->lock);
	return may;
}

/* --- passes --- */

/**
 * ext4_itree_begin_pass - begin a pass over a directory in inode order
 * @dir: i_rwsem held
 *
 * Returns NULL without memory, or if readers open the directory for each call.
 * The reader then gets hash order.
 */
struct ext4_itree_pass *ext4_itree_begin_pass(struct inode *dir)
{
	struct ext4_itree_readers *r = make_readers(dir);
	struct ext4_itree_pass *pass;

	if (!r)
		return NULL;
	pass = kzalloc(sizeof(*pass), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!pass)
		return NULL;
	spin_lock(&r->lock);
	if (r->anew >= ANEW_MIN && time_before(jiffies, r->anew_at + ANEW_FOR)) {
		spin_unlock(&r->lock);
		kfree(pass);
		return NULL;
	}
	refcount_set(&pass->refs, 2);
	r->last_id = r->last_id % (PASS_IDS - 1) + 1;
	pass->id = r->last_id;
	pass->began = r->clock;
	pass->doubts = r->doubts;
	pass->end = ~0ULL;
	list_add_tail(&pass->list, &r->passes);
	if (++r->nr_passes > PASSES_MAX)
		forget_pass(r, list_first_entry(&r->passes,
						struct ext4_itree_pass, list));
	r->nr_open++;
	r->used = jiffies;
	spin_unlock(&r->lock);
	return pass;
}

/**
 * ext4_itree_find_pass - continue a pass that another file began
 * @dir: i_rwsem held
 * @id: number of the pass
 */
struct ext4_itree_pass *ext4_itree_find_pass(struct inode *dir, u32 id)
{
	struct ext4_itree_readers *r = readers_of(dir);
	struct ext4_itree_pass *pass, *found = NULL;

	if (!r)
		return NULL;
	spin_lock(&r->lock);
	list_for_each_entry(pass, &r->passes, list) {
		if (pass->id != id)
			continue;
		found = pass;
		refcount_inc(&found->refs);
		list_move_tail(&found->list, &r->passes);
		r->nr_open++;
		r->used = jiffies;
		break;
	}
	spin_unlock(&r->lock);
	return found;
}

/**
 * ext4_itree_leave_pass - stop following a pass
 * @dir: directory
 * @pass: from ext4_itree_begin_pass() or ext4_itree_find_pass()
 * @over: the pass has reached its end
 */
void ext4_itree_leave_pass(struct inode *dir, struct ext4_itree_pass *pass,
			   bool over)
{
	struct ext4_itree_readers *r = readers_of(dir);
	unsigned long *added = NULL;
	bool last = false;

	spin_lock(&r->lock);
	r->used = jiffies;
	if (over)
		end_pass(r, pass);
	/* The last one clears the log. */
	if (!--r->nr_open) {
		swap(r->added, added);
		last = r->nr_passes == r->nr_over;
	}
	spin_unlock(&r->lock);
	put_pass(pass);
	if (last)
		drop_log(r);
	bitmap_free(added);
}

/**
 * ext4_itree_pass_whole - must all names be returned again, in hash order?
 * @dir: i_rwsem held
 * @pass: of the directory, at its end in inode order
 */
bool ext4_itree_pass_whole(struct inode *dir, struct ext4_itree_pass *pass)
{
	struct ext4_itree_readers *r = readers_of(dir);
	bool whole;

	spin_lock(&r->lock);
	whole = has_lost(r, pass);
	spin_unlock(&r->lock);
	return whole;
}

/**
 * ext4_itree_note_anew - note that a file starts at a position
 * @dir: directory
 */
void ext4_itree_note_anew(struct inode *dir)
{
	struct ext4_itree_readers *r = make_readers(dir);

	if (!r)
		return;
	spin_lock(&r->lock);
	if (time_after_eq(jiffies, r->anew_at + ANEW_FOR))
		r->anew = 0;
	r->anew++;
	r->anew_at = jiffies;
	spin_unlock(&r->lock);
}

/**
 * ext4_itree_may_sweep - is it time to read all that a directory needs?
 * @dir: directory
 */
bool ext4_itree_may_sweep(struct inode *dir)
{
	struct ext4_itree_readers *r = make_readers(dir);
	bool may;

	if (!r)
		return false;
	spin_lock(&r->lock);
	may = !r->swept || time_after(jiffies, r->swept_at + SWEEP_EVERY);
	if (may) {
		r->swept = true;
		r->swept_at = jiffies;
	}
	spin_unlock(&r->lock);
	return may;
}

/* --- bad trees --- */

/**
 * ext4_itree_readers_doubt - tell the readers of a directory that its tree is
 * bad
 * @dir: directory
 *
 * Keys that they have read so far may be wrong as well: names may have been
 * skipped, and the last key may not be the last.
 */
void ext4_itree_readers_doubt(struct inode *dir)
{
	struct ext4_itree_readers *r = readers_of(dir);

	if (!r)
		return;
	spin_lock(&r->lock);
	r->doubts++;
	spin_unlock(&r->lock);
}

/* Has the tree been found bad since the pass began, or since it was settled? */
bool ext4_itree_in_doubt(const struct ext4_itree_scan *s)
{
	return READ_ONCE(readers_of(s->dir)->doubts) != READ_ONCE(s->pass->doubts);
}

/**
 * ext4_itree_settle_doubt - continue a pass without the tree
 * @s: scan of the pass
 * @lost: names may have been missed
 */
void ext4_itree_settle_doubt(struct ext4_itree_scan *s, bool lost)
{
	struct ext4_itree_readers *r = readers_of(s->dir);

	spin_lock(&r->lock);
	s->pass->doubts = r->doubts;
	s->pass->whole |= lost;
	s->pass->end = ~0ULL;
	spin_unlock(&r->lock);
}
