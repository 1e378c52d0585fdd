// SPDX-License-Identifier: GPL-2.0-only
/*
 * How many names the windows of scans may have.
 *
 * Each window of a large directory takes a visit of most of its blocks, so few
 * large windows cost less than many small ones: always in processor time, and
 * in reads if the directory does not stay in memory.  But names are kernel
 * memory that a reader can hold for as long as it likes.  So the size of
 * windows depends on the limit of the reader's control group, and that of all
 * windows together on the memory of the machine.  At that bound, a scan
 * continues with windows of WINDOW_MAX names, which every scan may have.
 *
 * How many names fit is estimated from earlier windows; the limit is in bytes.
 *
 * Without a tree, a scan may have a list of all keys (itree_window.c), which
 * counts like a window.
 *
 * Between the calls of a reader, its window and list can be reclaimed, like a
 * cache.  They are charged to the memory control group of the reader that began
 * the scan.  When that group or the machine needs memory, a shrinker drops the
 * least recently used first.  The next call fills a small window from the
 * reader's position.
 */
#include <linux/fs.h>
#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"
#include "itree_scan.h"

/*
 * One window may take a 16th of the memory, or half of that if the directory
 * stays in memory as well, which is then of more use.  All windows together may
 * take an eighth.
 */
#define ONE_SHARE	16
#define KEPT_SHARE	32
#define ALL_SHARE	8
/* A directory without a tree is sorted if it takes at most so many windows. */
#define MOST_WINDOWS	16U

static atomic_long_t borrowed = ATOMIC_LONG_INIT(0);

/**
 * ext4_itree_memory - how much memory a reader may count on
 *
 * Returns pages: the memory of the machine, or the least limit of the reader's
 * memory control group and its ancestors, to which pages and names are charged.
 */
unsigned long ext4_itree_memory(void)
{
	unsigned long pages = totalram_pages();
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	rcu_read_lock();
	memcg = mem_cgroup_from_task(current);
	while (memcg) {
		pages = min3(pages, READ_ONCE(memcg->memory.max),
			     READ_ONCE(memcg->memory.high));
		memcg = parent_mem_cgroup(memcg);
	}
	rcu_read_unlock();
#endif
	return pages;
}

/**
 * ext4_itree_make_room - reclaim memory before a run of inodes is read
 * @sb: file system
 * @inodes: how many, at most some hundred
 *
 * ext4 allocates inodes and the blocks of their tables with GFP_NOFS, which
 * cannot evict other inodes.  In a memory control group that is full of inodes,
 * such a charge finds nothing to reclaim and the OOM killer ends the reader.
 * Allocations that may evict inodes make room first, and are freed at once.
 *
 * May sleep in reclaim; takes no lock.  Returns false if there is no room; the
 * run is then better left to the reader's own look-ups.
 */
bool ext4_itree_make_room(struct super_block *sb, unsigned int inodes)
{
	size_t bytes = inodes * (sizeof(struct ext4_inode_info) +
				 sizeof(struct dentry) + EXT4_INODE_SIZE(sb));
	struct page *page, *next;
	LIST_HEAD(pages);
	bool ok = true;
	unsigned int i;

	/* Without a limit, page cache can be reclaimed in place of inodes. */
	if (ext4_itree_memory() >= totalram_pages())
		return true;
	for (i = 0; ok && i < DIV_ROUND_UP(bytes, PAGE_SIZE); i++) {
		page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_NORETRY |
				  __GFP_NOWARN);
		ok = !!page;
		if (page)
			list_add(&page->lru, &pages);
	}
	list_for_each_entry_safe(page, next, &pages, lru)
		__free_page(page);
	return ok;
}

/*
 * Bytes of a name in a window, without its text: its slot, and its key, of
 * which there are two copies while the window is filled.
 */
#define PLACE_BYTES	(sizeof(struct scan_name) + 2 * sizeof(u64))

/* Bytes of text per name.  For the first window, the size of an entry. */
static u32 text_bytes(const struct ext4_itree_scan *s)
{
	u64 bytes = s->dir->i_size, names = max(s->count.total, 1ULL);

	if (s->size.text_names) {
		bytes = s->size.text_bytes + s->size.text_bytes / 8;
		names = s->size.text_names;
	}
	return min_t(u64, div64_u64(bytes, names) + 1, EXT4_NAME_LEN);
}

/**
 * ext4_itree_window_limit - names that the windows of a scan may grow to
 * @s: the scan
 *
 * Returns WINDOW_MIN to WINDOW_LARGE.
 */
u32 ext4_itree_window_limit(const struct ext4_itree_scan *s)
{
	unsigned int share = ext4_itree_dir_kept(s->dir) ? KEPT_SHARE :
							    ONE_SHARE;

	return clamp_t(unsigned long, ext4_itree_memory() / share * PAGE_SIZE /
				      (PLACE_BYTES + text_bytes(s)),
		       WINDOW_MIN, WINDOW_LARGE);
}

/**
 * ext4_itree_list_limit - keys that the list of a scan may have
 *
 * See ext4_itree_borrow_list().
 */
u64 ext4_itree_list_limit(void)
{
	return (u64)ext4_itree_memory() / ONE_SHARE * (PAGE_SIZE / sizeof(u64));
}

/**
 * ext4_itree_sorts - are the names of a large directory sorted in memory?
 * @dir: directory without a tree, i_rwsem held
 *
 * The keys have to fit into a list.  As each window takes a visit of all
 * blocks, the blocks have to stay in memory and the windows have to be few.
 */
bool ext4_itree_sorts(struct inode *dir)
{
	u64 names = div_u64(dir->i_size, EXT4_ITREE_LIKELY_ENTRY);
	u64 room;

	if (!test_opt2(dir->i_sb, INODE_ORDER) ||
	    dir->i_size >> dir->i_blkbits > ext4_itree_ahead_limit())
		return false;
	room = (u64)ext4_itree_memory() / ONE_SHARE * PAGE_SIZE /
	       (PLACE_BYTES + EXT4_ITREE_LIKELY_ENTRY);
	return names <= ext4_itree_list_limit() &&
	       names <= MOST_WINDOWS * min_t(u64, room, WINDOW_LARGE);
}

static bool borrow(unsigned long bytes)
{
	if (atomic_long_add_return(bytes, &borrowed) <=
	    totalram_pages() / ALL_SHARE * PAGE_SIZE)
		return true;
	atomic_long_sub(bytes, &borrowed);
	return false;
}

/**
 * ext4_itree_borrow_room - reserve a window of more than WINDOW_MAX names
 * @s: the scan, with nothing borrowed; s->size.want says how many names
 *
 * Returns false if other scans have too much.
 */
bool ext4_itree_borrow_room(struct ext4_itree_scan *s)
{
	unsigned long names = min_t(u64, s->size.want,
				    max_t(u64, s->count.total, WINDOW_MAX));
	unsigned long text = names * text_bytes(s);
	unsigned long bytes = names * PLACE_BYTES + text;

	if (!borrow(bytes))
		return false;
	s->size.borrowed = bytes;
	s->size.text_room = text;
	return true;
}

/**
 * ext4_itree_return_room - undo ext4_itree_borrow_room()
 * @s: the scan, which need not have anything borrowed
 */
void ext4_itree_return_room(struct ext4_itree_scan *s)
{
	atomic_long_sub(s->size.borrowed, &borrowed);
	s->size.borrowed = 0;
	s->size.text_room = 0;
}

/**
 * ext4_itree_borrow_list - reserve room for another run of keys in the list
 * @s: the scan
 *
 * Returns false if other scans have too much.
 */
bool ext4_itree_borrow_list(struct ext4_itree_scan *s)
{
	unsigned long bytes = EXT4_ITREE_RUN_KEYS * sizeof(u64);

	if (!borrow(bytes))
		return false;
	s->list.borrowed += bytes;
	return true;
}

/* Detaches the list from the scan; the caller frees it. */
static struct ext4_itree_keys *take_list(struct ext4_itree_scan *s)
{
	struct ext4_itree_keys *list = s->list.keys;

	s->list.keys = NULL;
	atomic_long_sub(s->list.borrowed, &borrowed);
	s->list.borrowed = 0;
	return list;
}

static void free_list(struct ext4_itree_keys *list)
{
	if (list)
		ext4_itree_keys_free(list);
	kfree(list);
}

/**
 * ext4_itree_drop_list - drop the keys of a directory without a tree
 * @s: the scan, in a call or about to be freed
 */
void ext4_itree_drop_list(struct ext4_itree_scan *s)
{
	free_list(take_list(s));
}

/* --- reclaim --- */

static struct kmem_cache *scan_cache;
/* Scans with a window that are between calls, least recently used first. */
static struct list_lru idle_scans;
static struct shrinker *window_shrinker;

/* A window to be freed; overwrites its names. */
struct dropped {
	struct dropped	*next;
	struct text_chunk *text;
	struct ext4_itree_keys *list;
};

static_assert(sizeof(struct dropped) <= sizeof(struct scan_name));

/* Detaches the window of an idle scan; the lock of the LRU stops its reader. */
static enum lru_status drop_idle(struct list_head *item,
				 struct list_lru_one *list, void *arg)
{
	struct ext4_itree_scan *s = container_of(item, struct ext4_itree_scan,
						 idle);
	struct dropped **all = arg, *d = (struct dropped *)s->win.names;

	if (s->recent) {
		s->recent = false;
		return LRU_ROTATE;
	}
	list_lru_isolate(list, item);
	d->text = s->win.text;
	d->list = take_list(s);
	d->next = *all;
	*all = d;
	s->win.names = NULL;
	s->win.room = 0;
	s->win.text = NULL;
	s->size.want = WINDOW_ANEW;
	/* Frees nothing: all of it has been detached. */
	ext4_itree_drop_window(s);
	return LRU_REMOVED;
}

static unsigned long count_idle(struct shrinker *shrink,
				struct shrink_control *sc)
{
	return list_lru_shrink_count(&idle_scans, sc);
}

static unsigned long shrink_idle(struct shrinker *shrink,
				 struct shrink_control *sc)
{
	struct dropped *all = NULL, *d;
	unsigned long nr;

	nr = list_lru_shrink_walk(&idle_scans, sc, drop_idle, &all);
	while (all) {
		d = all;
		all = d->next;
		ext4_itree_free_text(d->text);
		free_list(d->list);
		kvfree(d);
	}
	return nr;
}

/**
 * ext4_itree_take_window - a call of the reader begins
 * @s: its scan
 *
 * From now on the shrinker leaves the window alone.
 */
void ext4_itree_take_window(struct ext4_itree_scan *s)
{
	list_lru_del_obj(&idle_scans, &s->idle);
	s->recent = true;
}

/**
 * ext4_itree_leave_window - a call of the reader ends
 * @s: its scan
 */
void ext4_itree_leave_window(struct ext4_itree_scan *s)
{
	if (s->win.names)
		list_lru_add_obj(&idle_scans, &s->idle);
	else
		ext4_itree_drop_list(s);
}

/* A scan, charged to the memory control group whose reclaim may drop it. */
struct ext4_itree_scan *ext4_itree_alloc_scan(void)
{
	return kmem_cache_alloc_lru(scan_cache, &idle_scans, GFP_KERNEL |
				    __GFP_ZERO | __GFP_NOWARN);
}

void ext4_itree_free_scan(struct ext4_itree_scan *s)
{
	kmem_cache_free(scan_cache, s);
}

int __init ext4_itree_init(void)
{
	int err = -ENOMEM;

	scan_cache = KMEM_CACHE(ext4_itree_scan, SLAB_ACCOUNT);
	if (!scan_cache)
		return err;
	window_shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE |
					 SHRINKER_MEMCG_AWARE, "ext4-itree");
	if (!window_shrinker)
		goto free_cache;
	err = list_lru_init_memcg(&idle_scans, window_shrinker);
	if (err)
		goto free_shrinker;
	window_shrinker->count_objects = count_idle;
	window_shrinker->scan_objects = shrink_idle;
	/* There are few objects, and each of them is large. */
	window_shrinker->batch = 1;
	err = ext4_itree_open_init();
	if (err)
		goto destroy_list;
	shrinker_register(window_shrinker);
	return 0;
destroy_list:
	list_lru_destroy(&idle_scans);
free_shrinker:
	shrinker_free(window_shrinker);
free_cache:
	kmem_cache_destroy(scan_cache);
	return err;
}

void ext4_itree_exit(void)
{
	ext4_itree_open_exit();
	shrinker_free(window_shrinker);
	list_lru_destroy(&idle_scans);
	kmem_cache_destroy(scan_cache);
}
