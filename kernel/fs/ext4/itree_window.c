// SPDX-License-Identifier: GPL-2.0-only
/*
 * A window of a scan in inode order: the names of the next run of keys.
 *
 * The keys come from the tree, or, in a large directory without one, from a
 * list that one pass over its blocks gathers when the listing begins.  Then
 * each window visits a directory block at most once and puts the names in the
 * order of their keys.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/iversion.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"
#include "itree_scan.h"

/* Keys to take before i_rwsem is offered to waiters. */
#define HOLD_KEYS	4096U
/* More names than these are allocated and sorted without i_rwsem. */
#define LARGE_WINDOW	(2 * HOLD_KEYS)
/* Names to look up again after a change; a small buffer takes fewer. */
#define CHECK_NAMES	128U
/* Stepping over so many new keys costs less than another search. */
#define CHECK_STEPS	16U

/**
 * ext4_itree_free_text - free the text of a window's names
 * @text: may be NULL
 */
void ext4_itree_free_text(struct text_chunk *text)
{
	while (text) {
		struct text_chunk *next = text->next;

		kvfree(text);
		text = next;
	}
}

/* Drops the names of the window.  A small array stays allocated. */
void ext4_itree_drop_window(struct ext4_itree_scan *s)
{
	s->win.valid = false;
	s->win.nr = 0;
	s->win.cur = 0;
	s->win.ahead = 0;
	s->reader.prime_to = 0;
	s->win.from_tree = false;
	s->win.by_sweep = false;
	s->win.checked = 0;
	s->win.sure = 0;
	ext4_itree_free_text(s->win.text);
	s->win.text = NULL;
	s->size.text_taken = 0;
	if (s->win.room > 2 * WINDOW_MAX) {
		kvfree(s->win.names);
		s->win.names = NULL;
		s->win.room = 0;
	}
	ext4_itree_return_room(s);
}

/*
 * Allocating a large window may wait for the disk in reclaim, and sorting it
 * takes a while: release i_rwsem, so that writers need not wait.
 */
static void leave_dir(const struct ext4_itree_scan *s, u32 names)
{
	if (names > LARGE_WINDOW)
		inode_unlock_shared(s->dir);
}

static void enter_dir(const struct ext4_itree_scan *s, u32 names)
{
	if (names > LARGE_WINDOW)
		inode_lock_shared(s->dir);
}

/* Small windows are sorted with i_rwsem held: nothing to check. */
static void assert_left(const struct ext4_itree_scan *s, u32 names)
{
	if (names > LARGE_WINDOW)
		lockdep_assert_not_held(&s->dir->i_rwsem);
}

/* Sorts @nr elements of @size bytes: names of the window, or their keys. */
static void sort_window(const struct ext4_itree_scan *s, void *base, u32 nr,
			size_t size, cmp_func_t cmp)
{
	assert_left(s, nr);
	sort(base, nr, size, cmp, NULL);
}

/* A large window does not justify the OOM killer: a small one will do. */
static gfp_t window_gfp(const struct ext4_itree_scan *s)
{
	return s->size.borrowed ?
	       GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN :
	       GFP_KERNEL_ACCOUNT;
}

static void *alloc_array(const struct ext4_itree_scan *s, u32 nr, size_t size)
{
	assert_left(s, nr);
	return kvmalloc_array(nr, size, window_gfp(s));
}

static u8 *store_text(struct ext4_itree_scan *s, const u8 *name, u32 len)
{
	struct text_chunk *c = s->win.text;
	u32 bytes = c ? TEXT_CHUNK : TEXT_FIRST;
	u8 *p;

	if (!c || c->used + len > c->size) {
		/* The names are longer than estimated: keep to the budget. */
		if (s->size.borrowed && s->size.text_taken > s->size.text_room)
			return NULL;
		c = kvmalloc(bytes, window_gfp(s));
		if (!c)
			return NULL;
		s->size.text_taken += bytes;
		c->next = s->win.text;
		/* Hashing reads whole words, even past the last name. */
		c->size = bytes - sizeof(*c) - sizeof(long);
		c->used = 0;
		s->win.text = c;
	}
	p = c->text + c->used;
	memcpy(p, name, len);
	c->used += len;
	s->size.text_names++;
	s->size.text_bytes += len;
	return p;
}

static int make_room(struct ext4_itree_scan *s, u32 room)
{
	struct scan_name *n;

	if (room <= s->win.room)
		return 0;
	n = alloc_array(s, room, sizeof(*n));
	if (!n)
		return -ENOMEM;
	/* Names being placed lie beyond s->win.nr, so copy the whole array. */
	if (s->win.room)
		memcpy(n, s->win.names, s->win.room * sizeof(*n));
	kvfree(s->win.names);
	s->win.names = n;
	s->win.room = room;
	return 0;
}

static int set_name(struct ext4_itree_scan *s, struct scan_name *n, u64 key,
		    u32 ino, u8 type, const u8 *name, u32 len)
{
	n->name = store_text(s, name, len);
	if (!n->name)
		return -ENOMEM;
	n->key = key;
	n->ino = ino;
	n->len = len;
	n->type = type;
	return 0;
}

static int store_name(struct ext4_itree_scan *s, u64 key, u32 ino, u8 type,
		      const u8 *name, u32 len)
{
	int err = 0;

	if (s->win.nr >= s->win.room)
		err = make_room(s, max(2 * s->win.room, 32U));
	if (!err)
		err = set_name(s, &s->win.names[s->win.nr], key, ino, type,
			       name, len);
	if (!err)
		s->win.nr++;
	return err;
}

/* Orders names of equal keys alike in every window. */
int ext4_itree_cmp_text(const u8 *a, u32 alen, const u8 *b, u32 blen)
{
	int c = memcmp(a, b, min(alen, blen));

	return c ? c : (int)alen - (int)blen;
}

static int cmp_names(const void *a, const void *b)
{
	const struct scan_name *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return ext4_itree_cmp_text(x->name, x->len, y->name, y->len);
}

struct fill {
	struct ext4_itree_visit visit;
	struct ext4_itree_scan *s;
	struct fscrypt_str crypt;	/* room for a decrypted name */
	u64	*keys;			/* of the tree or list, or a selection */
	u32	nr;
	u32	max;
	u64	bound;			/* selection: keys above are ignored */
	u64	top;			/* the largest key seen */
	u32	base;			/* the name of keys[0] goes here */
	u32	found;			/* names placed */
	u32	stray;			/* names without a key */
	u32	extra;			/* further names, behind the others */
	u32	last_ino;		/* of the keys */
	u64	density;		/* keys an inode number, times 2^32 */
};

/* Has the directory changed since this window began to be filled? */
static bool disturbed(const struct ext4_itree_scan *s)
{
	return !inode_eq_iversion(s->dir, s->win.version);
}

/* ... or since its keys were taken? */
static bool keys_aged(const struct ext4_itree_scan *s)
{
	return s->win.by_sweep || disturbed(s);
}

static bool same_text(const struct scan_name *n, const struct fscrypt_str *name)
{
	return !ext4_itree_cmp_text(n->name, n->len, name->name, name->len);
}

/*
 * Inode numbers in a directory are often close together, so a key's place among
 * the keys is near that of its inode number between the first and the last.
 */
static u32 guess_place(const struct fill *f, u64 key)
{
	u32 first = ITREE_KEY_INO(f->keys[0]);
	u32 ino = clamp(ITREE_KEY_INO(key), first, f->last_ino);

	return (ino - first) * f->density >> 32;
}

/* Gets ready for guess_place(). */
static void measure_density(struct fill *f)
{
	u32 first = ITREE_KEY_INO(f->keys[0]);

	f->last_ino = ITREE_KEY_INO(f->keys[f->nr - 1]);
	f->density = div_u64((u64)f->nr << 32, max(f->last_ino - first, 1U));
}

/*
 * Finds the slot of a name by its key.  A name that has moved to another block
 * meanwhile is seen twice.  Sets *taken if other names have all slots of the
 * key.
 */
static struct scan_name *key_slot(struct fill *f, u64 key,
				  const struct fscrypt_str *name, bool *taken)
{
	u32 at = ext4_itree_find_key(f->keys, f->nr, key, guess_place(f, key));
	struct scan_name *n;

	for (; at < f->nr && f->keys[at] == key; at++) {
		n = &f->s->win.names[f->base + at];
		if (!n->name)
			return n;
		*taken = true;
		if (disturbed(f->s) && same_text(n, name)) {
			*taken = false;
			break;
		}
	}
	return NULL;
}

/* Names in the window, including those being placed. */
static u32 names_taken(const struct fill *f)
{
	return f->keys ? f->base + f->nr + f->extra : f->s->win.nr;
}

/*
 * Makes room for the @nr names of a block.  Small windows grow by the name.  If
 * the keys are known, few names are to come that have none.
 */
static int window_room(struct ext4_itree_visit *v, u32 nr)
{
	struct fill *f = container_of(v, struct fill, visit);
	struct ext4_itree_scan *s = f->s;
	u32 taken = names_taken(f);
	u32 room = max(taken + nr, f->keys ? taken + taken / 8 : 2 * taken);
	int err;

	/* A smaller array can double without making a large window. */
	if (s->win.room - taken >= nr || taken + nr <= LARGE_WINDOW / 2)
		return 0;
	leave_dir(s, room);
	err = make_room(s, room);
	enter_dir(s, room);
	return err;
}

/*
 * Makes a slot for a further name of a key.  If a link with the same key was
 * made after the keys were taken, the visit may see either name first, and must
 * not miss the older one.
 */
static struct scan_name *extra_slot(struct fill *f)
{
	struct scan_window *w = &f->s->win;
	u32 at = names_taken(f);

	if (at >= w->room && make_room(f->s, max(2 * w->room, 32U)))
		return NULL;
	f->extra++;
	return &w->names[at];
}

static int place_name(struct fill *f, u64 key, u32 ino, u8 type,
		      const struct fscrypt_str *name)
{
	bool taken = false;
	struct scan_name *n = key_slot(f, key, name, &taken);

	if (n) {
		f->found++;
	} else if (taken && keys_aged(f->s)) {
		n = extra_slot(f);
		if (!n)
			return -ENOMEM;
	} else {
		f->stray++;
		return 0;
	}
	return set_name(f->s, n, key, ino, type, name->name, name->len);
}

static int fill_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		     struct ext4_dir_entry_2 *de)
{
	struct fill *f = container_of(v, struct fill, visit);
	struct fscrypt_str name = FSTR_INIT(de->name, de->name_len);
	struct fscrypt_str out = f->crypt;
	u8 type;
	int err;

	if (IS_ENCRYPTED(v->dir)) {
		u32 hash = IS_CASEFOLDED(v->dir) ? ITREE_KEY_HASH(key) : 0;

		err = fscrypt_fname_disk_to_usr(v->dir, hash,
						IS_CASEFOLDED(v->dir) ? minor : 0,
						&name, &out);
		if (err)
			return err;
		name = out;
	}
	type = get_dtype(v->dir->i_sb, de->file_type);
	if (f->keys)
		return place_name(f, key, le32_to_cpu(de->inode), type, &name);
	return store_name(f->s, key, le32_to_cpu(de->inode), type, name.name,
			  name.len);
}

/*
 * Returns the inode of "..".  Its entry follows that of ".", which may be
 * longer than necessary.
 */
static u32 parent_ino(struct buffer_head *bh)
{
	struct ext4_dir_entry_2 *de = (struct ext4_dir_entry_2 *)bh->b_data;
	u32 len = ext4_rec_len_from_disk(de->rec_len, bh->b_size);

	if (len < ext4_dir_rec_len(1, NULL) || len % 4 ||
	    len > bh->b_size - ext4_dir_rec_len(2, NULL))
		len = ext4_dir_rec_len(1, NULL);
	de = (struct ext4_dir_entry_2 *)(bh->b_data + len);
	return le32_to_cpu(de->inode);
}

/* "." and ".." are not in the tree; they are in the first block. */
static int fill_dots(struct ext4_itree_scan *s, u64 lo)
{
	struct inode *dir = s->dir;
	struct buffer_head *bh;
	u32 parent;
	int err = 0;

	if (lo > KEY_DOTDOT)
		return 0;
	bh = ext4_read_any_dirblock(dir, 0);
	if (IS_ERR_OR_NULL(bh))
		return bh ? PTR_ERR(bh) : -EFSCORRUPTED;
	parent = parent_ino(bh);
	brelse(bh);
	if (lo <= KEY_DOT)
		err = store_name(s, KEY_DOT, dir->i_ino, DT_DIR, ".", 1);
	if (!err)
		err = store_name(s, KEY_DOTDOT, parent, DT_DIR, "..", 2);
	return err;
}

/* --- windows of a directory with a tree --- */

/* Allocates the keys of the next window, without i_rwsem if it is large. */
static int alloc_keys(struct fill *f)
{
	struct ext4_itree_scan *s = f->s;

	f->max = min_t(u64, s->size.want,
		       max_t(u64, s->count.total, WINDOW_MIN));
	f->keys = alloc_array(s, f->max, sizeof(u64));
	return f->keys ? 0 : -ENOMEM;
}

/* Doubles the room: more keys are equal, or are new, than expected. */
static int grow_keys(struct fill *f)
{
	u64 *more = alloc_array(f->s, 2 * f->max, sizeof(u64));

	if (!more)
		return -ENOMEM;
	memcpy(more, f->keys, f->nr * sizeof(u64));
	kvfree(f->keys);
	f->keys = more;
	f->max *= 2;
	return 0;
}

/* Drops the last run of equal keys, to take it again.  Returns its key. */
static u64 last_run(struct fill *f, u64 lo)
{
	if (f->nr)
		lo = f->keys[f->nr - 1];
	while (f->nr && f->keys[f->nr - 1] == lo)
		f->nr--;
	return lo;
}

/*
 * Takes keys until there are enough.  Returns -EAGAIN if a node has to be read,
 * if the array is full, or to let waiters have their turn.
 */
static int walk_keys(struct fill *f, struct ext4_itree *et, u64 lo, u32 want)
{
	struct rw_semaphore *rwsem = &f->s->dir->i_rwsem;
	u32 enough = f->nr + HOLD_KEYS;
	struct itree_cursor cur;
	u64 key;
	int ret;

	ret = itree_seek(&et->t, lo, &cur);
	while (!ret) {
		key = itree_cursor_key(&cur);
		if (f->nr && key != f->keys[f->nr - 1]) {
			if (f->nr >= want)
				break;
			if (f->nr > enough && rwsem_is_contended(rwsem)) {
				ret = -EAGAIN;
				break;
			}
		}
		if (f->nr >= f->max) {
			ret = -EAGAIN;
			break;
		}
		f->keys[f->nr++] = key;
		ret = itree_next(&cur);
	}
	itree_cursor_release(&cur);
	return ret;
}

/*
 * Takes the next run of keys; equal keys stay together.  Returns -ESTALE if the
 * tree was dropped while i_rwsem was released.
 */
static int take_keys(struct fill *f, u64 lo, u32 want)
{
	struct ext4_itree_scan *s = f->s;
	struct buffer_head *pin = NULL;
	struct itree_info info = { };
	struct ext4_itree et;
	int ret;

	while (1) {
		et.missing = 0;
		ret = ext4_itree_open_nowait(&et, s->dir);
		/* The reader continues: it will need all of the tree. */
		if (!ret && want > WINDOW_MIN && !info.blocks) {
			itree_get_info(&et.t, &info);
			ext4_itree_close(&et);
			inode_unlock_shared(s->dir);
			ext4_itree_ahead_tree(s->dir, info.blocks);
			ret = -EAGAIN;
			inode_lock_shared(s->dir);
		} else if (!ret) {
			ret = walk_keys(f, &et, last_run(f, lo), want);
			ext4_itree_close(&et);
		}
		brelse(pin);
		pin = NULL;
		if (ret != -EAGAIN)
			break;
		if (fatal_signal_pending(current))
			return -ERESTARTSYS;
		if (f->nr >= f->max) {
			inode_unlock_shared(s->dir);
			ret = grow_keys(f);
			inode_lock_shared(s->dir);
		} else if (et.missing) {
			ret = ext4_itree_load(s->dir, et.missing, &pin);
		} else {
			ret = ext4_itree_relax(s->dir);
		}
		if (ret == -ENOENT)
			return ret;
		if (ret)
			break;
		if (!ext4_itree_usable(s->dir)) {
			brelse(pin);
			return -ESTALE;
		}
	}
	s->win.last = ret == ITREE_END;
	s->win.hi = s->win.last ? ~0ULL : f->nr ? f->keys[f->nr - 1] : ~0ULL;
	if (ret >= 0)
		return 0;
	if (ret != -ENOMEM)
		ext4_itree_bad(s->dir, ret, &et.t);
	return ret;
}

/*
 * Without checksums, a wrong count in a node hides keys.  The root's count
 * shows that at the end of a pass.
 */
static int count_keys(struct fill *f, u64 lo)
{
	static const struct itree miscounted = {
		.why = "not as many keys as the root says",
		.why_lblk = ITREE_SEG_START,
	};
	struct ext4_itree_scan *s = f->s;

	if (!s->count.on)
		return 0;
	if (lo != s->count.seen_to ||
	    !inode_eq_iversion(s->dir, s->count.version)) {
		s->count.on = false;
		return 0;
	}
	if (!s->win.last || s->count.seen + f->nr == s->count.total)
		return 0;
	ext4_itree_bad(s->dir, -EFSCORRUPTED, &miscounted);
	return -EFSCORRUPTED;
}

/* Counts the keys of a window whose names have been found. */
static void count_window(struct fill *f)
{
	f->s->count.seen += f->nr;
	f->s->count.seen_to = f->s->win.hi + 1;
}

/* Called back for a name by a visit within a struct ext4_itree_tally. */
int ext4_itree_tally_name(struct ext4_itree_visit *v, u64 key, u32 minor,
			  struct ext4_dir_entry_2 *de)
{
	container_of(v, struct ext4_itree_tally, visit)->nr++;
	return 0;
}

/*
 * The tree of this scan is bad, so names from @lo on come from the directory.
 * If names below @lo may have been missed, all names are returned again.  Only
 * a pass during which the directory did not change can rule that out.
 */
static int settle_doubt(struct ext4_itree_scan *s, u64 lo)
{
	struct ext4_itree_tally t = {
		.visit = {
			.dir = s->dir,
			.lo = s->count.from,
			.hi = lo - 1,
			.shared = true,
			.name = ext4_itree_tally_name,
		},
	};
	bool lost = lo > s->count.from;
	int err;

	if (lost && s->count.on && lo == s->count.seen_to &&
	    inode_eq_iversion(s->dir, s->count.version)) {
		err = ext4_itree_hash_version(s->dir, &t.visit.hash_version);
		if (!err)
			err = ext4_itree_visit_all(&t.visit);
		if (err)
			return err;
		lost = t.nr != s->count.seen ||
		       !inode_eq_iversion(s->dir, s->count.version);
	}
	s->count.on = false;
	ext4_itree_settle_doubt(s, lost);
	return 0;
}

static int cmp_hashes(const void *a, const void *b)
{
	u32 x = ITREE_KEY_HASH(*(const u64 *)a);
	u32 y = ITREE_KEY_HASH(*(const u64 *)b);

	return x < y ? -1 : x > y;
}

/**
 * ext4_itree_visit_leaves - call back for the names in the leaves of some keys
 * @v: the visit; i_rwsem held
 * @keys: sorted by hash
 * @nr: how many, at least one
 *
 * Visits each leaf of the htree once.  Returns 0, the result of v->name(), or a
 * negative error: ERR_BAD_DX_DIR if the htree is damaged.
 */
int ext4_itree_visit_leaves(struct ext4_itree_visit *v, const u64 *keys, u32 nr)
{
	struct ext4_htree_place at = { .hash = ITREE_KEY_HASH(keys[0]) };
	ext4_lblk_t block;
	u32 next, i = 0;
	int ret;

	while (1) {
		if (fatal_signal_pending(current))
			return -ERESTARTSYS;
		cond_resched();
		ret = ext4_htree_find_leaf(v->dir, &at, &block, &next);
		if (ret < 0)
			return ret;
		ret = ext4_itree_visit_block(v, block);
		if (ret)
			return ret;
		while (i < nr && ITREE_KEY_HASH(keys[i]) < (next & ~1))
			i++;
		if (i >= nr || next == ~0U)
			return 0;
		/* If @next is odd, that leaf continues this one's last hash. */
		if (ITREE_KEY_HASH(keys[i]) == (next & ~1)) {
			ext4_htree_go_on(&at, next);
		} else {
			at.hash = ITREE_KEY_HASH(keys[i]);
			at.nth = 0;
		}
	}
}

/* Are the names in so many leaves that visiting all blocks costs less? */
static bool visits_all(const struct ext4_itree_scan *s, u32 keys)
{
	u32 blocks = s->dir->i_size >> s->dir->i_blkbits;

	return keys / 2 >= blocks || (keys >= blocks / SWEEP_PAYS &&
				      blocks > ext4_itree_ahead_limit());
}

/* Empties the slots of all keys. */
static void start_finding(struct fill *f)
{
	memset(&f->s->win.names[f->base], 0, f->nr * sizeof(*f->s->win.names));
	f->found = 0;
	f->stray = 0;
	f->extra = 0;
	measure_density(f);
}

/*
 * Is any key that got no name still in the tree, or were all these names
 * deleted?  If in doubt, returns true.
 */
static bool any_left(struct fill *f)
{
	struct ext4_itree_scan *s = f->s;
	struct itree_cursor cur;
	struct ext4_itree et;
	bool left = false;
	int ret;
	u32 i;

	if (!disturbed(s) || !ext4_itree_usable(s->dir) ||
	    ext4_itree_open_nowait(&et, s->dir))
		return true;
	for (i = 0; i < f->nr && !left; i++) {
		if (s->win.names[f->base + i].name)
			continue;
		ret = itree_seek(&et.t, f->keys[i], &cur);
		left = ret < 0 || (!ret && itree_cursor_key(&cur) == f->keys[i]);
		itree_cursor_release(&cur);
	}
	ext4_itree_close(&et);
	return left;
}

/* Copies the keys and sorts the copy by hash. */
static int sort_by_hash(const struct fill *f, u64 **by_hash)
{
	*by_hash = alloc_array(f->s, f->nr, sizeof(u64));
	if (!*by_hash)
		return -ENOMEM;
	memcpy(*by_hash, f->keys, f->nr * sizeof(u64));
	sort_window(f->s, *by_hash, f->nr, sizeof(u64), cmp_hashes);
	return 0;
}

/* Visits the blocks that hold the names of the keys. */
static int find_names(struct fill *f)
{
	struct ext4_itree_scan *s = f->s;
	u32 blocks = s->dir->i_size >> s->dir->i_blkbits;
	bool all = visits_all(s, f->nr);
	u64 *by_hash = NULL;
	int err = 0;

	leave_dir(s, f->nr);
	start_finding(f);
	if (!all)
		err = sort_by_hash(f, &by_hash);
	enter_dir(s, f->nr);
	if (err)
		return err;
	/*
	 * Reading the last window's inodes may have evicted the directory:
	 * read it at once rather than leaf by leaf.
	 */
	if (f->nr >= blocks / 4) {
		inode_unlock_shared(s->dir);
		ext4_itree_ahead_dir(s->dir, 0);
		inode_lock_shared(s->dir);
	}
	if (all)
		return ext4_itree_visit_all(&f->visit);
	err = ext4_itree_load_index(s->dir, 0, ~0U);
	if (!err)
		err = ext4_itree_visit_leaves(&f->visit, by_hash, f->nr);
	kvfree(by_hash);
	if (!err && (f->found == f->nr || !any_left(f)))
		return 0;
	if (err && err != -EFSCORRUPTED && err != -EFSBADCRC && err != -EIO &&
	    err != ERR_BAD_DX_DIR)
		return err;
	/*
	 * The htree does not lead to all names: look for them in all blocks
	 * before calling the tree bad.
	 */
	leave_dir(s, f->nr);
	start_finding(f);
	enter_dir(s, f->nr);
	return ext4_itree_visit_all(&f->visit);
}

/* Removes the keys whose names are gone. */
static void pass_by(struct fill *f)
{
	struct scan_name *n = &f->s->win.names[f->base];
	u32 i, nr = 0;

	for (i = 0; i < f->nr + f->extra; i++)
		if (n[i].name)
			n[nr++] = n[i];
	f->nr = nr;
}

/* Removes duplicates: a name that moved to another block was seen twice. */
static void once_each(struct ext4_itree_scan *s)
{
	u32 i, nr = 0;

	for (i = 0; i < s->win.nr; i++)
		if (!nr || cmp_names(&s->win.names[nr - 1], &s->win.names[i]))
			s->win.names[nr++] = s->win.names[i];
	s->win.nr = nr;
}

/* Sorts names of equal keys, which are in the order of the visit. */
static void sort_runs(struct fill *f)
{
	struct scan_name *n = &f->s->win.names[f->base];
	u32 i, j;

	for (i = 0; i < f->nr; i = j) {
		for (j = i + 1; j < f->nr && n[j].key == n[i].key; j++)
			;
		if (j > i + 1)
			sort(&n[i], j - i, sizeof(*n), cmp_names, NULL);
	}
}

/* Finds the names of the keys of a window that starts at @lo. */
static int name_keys(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	u32 spare = ext4_itree_block_names(s->dir->i_sb);
	u32 room = s->win.nr + f->nr;
	int err;

	/* See window_room(). */
	if (room + spare > LARGE_WINDOW / 2)
		room += spare;
	leave_dir(s, room);
	err = make_room(s, room);
	enter_dir(s, room);
	f->visit.lo = lo;
	f->visit.hi = s->win.hi;
	f->base = s->win.nr;
	return err ?: find_names(f);
}

/* Makes the window of the names found. */
static void keep_named(struct fill *f)
{
	struct ext4_itree_scan *s = f->s;
	u32 names = names_taken(f);

	leave_dir(s, names);
	if (f->found < f->nr || f->extra)
		pass_by(f);
	if (!f->extra)
		sort_runs(f);
	s->win.nr += f->nr;
	if (f->extra) {
		sort_window(s, s->win.names, s->win.nr, sizeof(*s->win.names),
			    cmp_names);
		once_each(s);
	}
	enter_dir(s, names);
}

static int fill_from_tree(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	u32 want = s->size.want;
	int err;

	leave_dir(s, want);
	err = alloc_keys(f);
	enter_dir(s, want);
	if (!err && !ext4_itree_usable(s->dir))
		err = -ESTALE;
	if (!err)
		err = take_keys(f, lo, want);
	if (!err)
		err = count_keys(f, lo);
	if (err || !f->nr)
		return err;
	err = name_keys(f, lo);
	if (err)
		return err;
	/*
	 * Each key must have a name, and each name a key, unless the directory
	 * has changed or a block could not be read.
	 */
	if ((f->found != f->nr || f->stray) && !disturbed(s) &&
	    !f->visit.unreadable) {
		ext4_itree_bad(s->dir, -EFSCORRUPTED, NULL);
		return -EFSCORRUPTED;
	}
	count_window(f);
	keep_named(f);
	s->win.from_tree = true;
	return 0;
}

/* --- windows of a large directory without a tree, from a list of keys --- */

static int list_key(struct ext4_itree_visit *v, u64 key, u32 minor,
		    struct ext4_dir_entry_2 *de)
{
	struct fill *f = container_of(v, struct fill, visit);
	struct ext4_itree_scan *s = f->s;

	f->top = max(f->top, key);
	return ext4_itree_keys_add(s->list.keys, key);
}

/* Makes room in the list for the @nr names of a block. */
static int list_room(struct ext4_itree_visit *v, u32 nr)
{
	struct ext4_itree_scan *s = container_of(v, struct fill, visit)->s;
	int err;

	if ((s->list.keys->nr + nr) * sizeof(u64) <= s->list.borrowed)
		return 0;
	if (!ext4_itree_borrow_list(s))
		return -ENOMEM;
	inode_unlock_shared(s->dir);
	err = ext4_itree_keys_reserve(s->list.keys, nr);
	inode_lock_shared(s->dir);
	return err;
}

/*
 * Gathers the keys from @lo on in one pass over the directory.  Names added
 * later need not be listed.  A name that moves to another block meanwhile may
 * give its key twice; the second one then finds no name.
 */
static int gather_list(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	int err;

	ext4_itree_drop_list(s);
	s->list.keys = kmalloc(sizeof(*s->list.keys), GFP_KERNEL_ACCOUNT);
	if (!s->list.keys)
		return -ENOMEM;
	ext4_itree_keys_init(s->list.keys);
	s->list.keys->max = ext4_itree_list_limit();
	s->list.lo = lo;
	f->visit.lo = lo;
	f->visit.hi = ~0ULL;
	f->visit.name = list_key;
	f->visit.prepare = list_room;
	err = ext4_itree_visit_all(&f->visit);
	f->visit.name = fill_name;
	f->visit.prepare = window_room;
	if (!err) {
		inode_unlock_shared(s->dir);
		err = ext4_itree_keys_merge(s->list.keys);
		inode_lock_shared(s->dir);
	}
	if (err) {
		ext4_itree_drop_list(s);
		s->list.refused = err == -ENOMEM;
		return err;
	}
	s->count.total = s->list.keys->nr;
	if (s->pass->end == ~0ULL && s->list.keys->nr)
		s->pass->end = f->top;
	return 0;
}

/* Takes the next run of keys; equal keys stay together.  Needs no i_rwsem. */
static int take_listed(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	int err;
	u64 key;

	err = alloc_keys(f);
	if (err)
		return err;
	ext4_itree_keys_seek(s->list.keys, lo);
	s->win.last = true;
	while (!err && ext4_itree_keys_next(s->list.keys, &key)) {
		if (f->nr >= s->size.want && key != f->keys[f->nr - 1]) {
			s->win.last = false;
			break;
		}
		if (f->nr >= f->max)
			err = grow_keys(f);
		if (!err)
			f->keys[f->nr++] = key;
	}
	s->win.hi = s->win.last ? ~0ULL : f->keys[f->nr - 1];
	return err;
}

/* Returns -ENOMEM if there is no room for the list. */
static int fill_from_list(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	int err = 0;

	if (s->list.refused)
		return -ENOMEM;
	if (!s->list.keys || s->list.lo > lo)
		err = gather_list(f, lo);
	if (!err) {
		inode_unlock_shared(s->dir);
		err = take_listed(f, lo);
		inode_lock_shared(s->dir);
	}
	s->win.by_sweep = true;
	if (err || !f->nr)
		return err;
	err = name_keys(f, lo);
	if (!err)
		keep_named(f);
	return err;
}

/* --- windows of a directory without a tree, by sorting --- */

static int cmp_keys(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static int select_key(struct ext4_itree_visit *v, u64 key, u32 minor,
		      struct ext4_dir_entry_2 *de)
{
	struct fill *f = container_of(v, struct fill, visit);

	f->top = max(f->top, key);
	if (key <= f->bound)
		f->keys[f->nr++] = key;
	return 0;
}

/* Makes room in the selection for the @nr names of a block. */
static int select_room(struct ext4_itree_visit *v, u32 nr)
{
	struct fill *f = container_of(v, struct fill, visit);

	if (f->nr + nr <= f->max)
		return 0;
	/* Keep the lower half; keys above it belong to later windows. */
	inode_unlock_shared(v->dir);
	sort_window(f->s, f->keys, f->nr, sizeof(u64), cmp_keys);
	inode_lock_shared(v->dir);
	f->nr /= 2;
	f->bound = f->keys[f->nr - 1];
	/* The first pass also has to find the largest key of all. */
	if (f->s->pass->end != ~0ULL)
		v->hi = f->bound;
	return 0;
}

/*
 * Finds the last key of a window of bounded size that starts at @lo.  Without a
 * list, each window costs such a pass over the whole directory.
 */
static int select_bound(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	int err;

	/* Plus the names of a block: select_room() never splits them. */
	f->max = 2 * min3(max(s->size.want, WINDOW_MAX), WINDOW_SORT,
			  ext4_itree_window_limit(s)) +
		 ext4_itree_block_names(s->dir->i_sb);
	inode_unlock_shared(s->dir);
	f->keys = kvmalloc_array(f->max, sizeof(u64), GFP_KERNEL_ACCOUNT);
	inode_lock_shared(s->dir);
	if (!f->keys)
		return -ENOMEM;
	f->bound = ~0ULL;
	f->visit.lo = lo;
	f->visit.hi = ~0ULL;
	f->visit.name = select_key;
	f->visit.prepare = select_room;
	err = ext4_itree_visit_all(&f->visit);
	/* Larger keys that appear later are not of this pass. */
	if (!err && s->pass->end == ~0ULL && f->bound != ~0ULL)
		s->pass->end = f->top;
	f->visit.name = fill_name;
	f->visit.prepare = window_room;
	kvfree(f->keys);
	f->keys = NULL;
	return err;
}

static int fill_by_sorting(struct fill *f, u64 lo)
{
	struct ext4_itree_scan *s = f->s;
	u32 names;
	int err;

	s->count.on = false;
	f->bound = ~0ULL;
	if ((s->dir->i_size >> s->dir->i_blkbits) > EXT4_ITREE_SORT_BLOCKS) {
		err = fill_from_list(f, lo);
		if (err != -ENOMEM || !s->list.refused)
			return err;
		err = select_bound(f, lo);
		if (err)
			return err;
		s->win.by_sweep = true;
	}
	f->visit.lo = lo;
	f->visit.hi = f->bound;
	err = ext4_itree_visit_all(&f->visit);
	if (err)
		return err;
	s->win.hi = f->bound;
	s->win.last = f->bound == ~0ULL;
	names = s->win.nr;
	leave_dir(s, names);
	sort_window(s, s->win.names, names, sizeof(*s->win.names), cmp_names);
	if (disturbed(s))
		once_each(s);
	enter_dir(s, names);
	return 0;
}

/**
 * ext4_itree_store_dirent - take a name of a directory kept in its inode
 * @de: entry, whose name may be encrypted
 * @s: scan that called ext4_inlinedir_to_tree()
 * @hash: the name's hash, as computed there
 * @name: the name as users see it
 */
int ext4_itree_store_dirent(struct ext4_itree_scan *s, u32 hash,
			    struct ext4_dir_entry_2 *de,
			    const struct fscrypt_str *name)
{
	u32 ino = le32_to_cpu(de->inode);
	u64 key = ITREE_KEY(ino, hash & ~1);

	if (name->name[0] == '.' && name->len == 1)
		key = KEY_DOT;
	else if (name->name[0] == '.' && name->len == 2 && name->name[1] == '.')
		key = KEY_DOTDOT;
	if (key < s->win.lo)
		return 0;
	return store_name(s, key, ino, get_dtype(s->dir->i_sb, de->file_type),
			  name->name, name->len);
}

static int fill_inline(struct file *file, struct ext4_itree_scan *s,
		       int *has_inline)
{
	struct dir_private_info *info = file->private_data;
	struct dx_hash_info hinfo = { .hash_version = s->hash_version };
	int ret;

	if (hinfo.hash_version <= DX_HASH_TEA)
		hinfo.hash_version += EXT4_SB(s->dir->i_sb)->s_hash_unsigned;
	hinfo.seed = EXT4_SB(s->dir->i_sb)->s_hash_seed;
	*has_inline = 1;
	info->itree_fill = true;
	ret = ext4_inlinedir_to_tree(file, s->dir, 0, &hinfo, 0, 0,
				     has_inline);
	info->itree_fill = false;
	if (ret < 0)
		return ret;
	s->win.hi = ~0ULL;
	s->win.last = true;
	sort(s->win.names, s->win.nr, sizeof(*s->win.names), cmp_names, NULL);
	return 0;
}

/* Does the directory have a tree that is not known to be bad? */
bool ext4_itree_usable(struct inode *dir)
{
	return ext4_dir_has_itree(dir) &&
	       !ext4_test_inode_state(dir, EXT4_STATE_ITREE_BAD);
}

static int fill_from_blocks(struct ext4_itree_scan *s, struct fill *f)
{
	u64 lo = max(s->next, KEY_DOTDOT + 1);
	int err;

	err = ext4_itree_hash_version(s->dir, &f->visit.hash_version);
	if (!err && IS_ENCRYPTED(s->dir))
		err = fscrypt_fname_alloc_buffer(EXT4_NAME_LEN, &f->crypt);
	if (!err && ext4_itree_in_doubt(s))
		err = settle_doubt(s, lo);
	if (!err)
		err = fill_dots(s, s->next);
	if (!err && ext4_itree_usable(s->dir)) {
		err = fill_from_tree(f, lo);
		/* Without memory, the caller tries a small window. */
		if (!err || err == -ENOMEM || ext4_itree_usable(s->dir))
			return err;
		/* The directory has all names: continue without the tree. */
		kvfree(f->keys);
		f->keys = NULL;
		f->nr = 0;
		/* This returns the room for a larger window. */
		ext4_itree_drop_window(s);
		s->size.want = min(s->size.want, WINDOW_MAX);
		/* A tree that was dropped was good until then. */
		err = ext4_itree_in_doubt(s) ? settle_doubt(s, lo) : 0;
		if (!err)
			err = fill_dots(s, s->next);
	}
	return err ? err : fill_by_sorting(f, lo);
}

static int fill_window(struct file *file, struct ext4_itree_scan *s)
{
	struct fill f = {
		.visit = {
			.dir = s->dir,
			.name = fill_name,
			.prepare = window_room,
			.shared = true,
		},
		.s = s,
	};
	struct buffer_head *root = NULL;
	int err = 0, has_inline = 0;

	s->win.version = inode_query_iversion(s->dir);
	s->win.epoch = s->reader.stats ? ext4_itree_watch_added(s->dir) : 0;
	s->win.lo = s->next;
	if (!ext4_has_inline_data(s->dir))
		err = ext4_itree_load(s->dir, 0, &root);
	if (!err)
		err = ext4_itree_hash_version(s->dir, &s->hash_version);
	if (!err && ext4_has_inline_data(s->dir))
		err = fill_inline(file, s, &has_inline);
	if (!err && !has_inline)
		err = fill_from_blocks(s, &f);
	fscrypt_fname_free_buffer(&f.crypt);
	kvfree(f.keys);
	brelse(root);
	if (!err && IS_DEADDIR(s->dir))
		err = -ENOENT;
	if (err)
		ext4_itree_drop_window(s);
	else if (f.visit.unreadable && !s->error)
		s->error = f.visit.unreadable;
	return err;
}

/*
 * Windows start small, for readers that take a few names or reopen the
 * directory for each call, and grow fast for readers that continue.  Once a
 * window takes a visit of every block, it is as large as allowed.
 */
static u32 next_want(const struct ext4_itree_scan *s)
{
	u32 limit = ext4_itree_window_limit(s);
	u32 want = s->size.want;

	want *= want < WINDOW_MIN ? 2 : 16;
	if (visits_all(s, want))
		want = limit;
	return min(want, limit);
}

/**
 * ext4_itree_fill_window - fill the window with the names from s->next on
 * @file: the scan's open directory
 * @s: the scan
 *
 * The window has s->size.want names, or fewer where memory is short.  Returns 0
 * or a negative error with an empty window.  An unusable tree is not an error.
 */
int ext4_itree_fill_window(struct file *file, struct ext4_itree_scan *s)
{
	int err;

	ext4_itree_drop_window(s);
	/* Recent windows count most in the estimate of text. */
	s->size.text_names /= 2;
	s->size.text_bytes /= 2;
	/* A visit of all blocks is to find as many names as it can. */
	if (visits_all(s, s->size.want))
		s->size.want = max(s->size.want,
				   min(ext4_itree_window_limit(s), WINDOW_MAX));
	if (s->size.want > WINDOW_MAX && !ext4_itree_borrow_room(s))
		s->size.want = WINDOW_MAX;
	err = fill_window(file, s);
	if (err == -ENOMEM && s->size.want > WINDOW_MIN) {
		s->size.want = WINDOW_MIN;
		err = fill_window(file, s);
	}
	if (err)
		return err;
	s->win.valid = true;
	s->size.want = next_want(s);
	return 0;
}

/* --- names of a window after a change --- */

/*
 * Walks the tree and the window side by side, from the name @i on, and marks
 * names whose key is gone.  Returns the first name that was not checked.
 */
static u32 mark_gone(struct ext4_itree_scan *s, struct itree *t, u32 i)
{
	struct scan_name *n = s->win.names;
	struct itree_cursor cur;
	u32 steps;
	u64 key;
	int ret;

	while (i < s->win.checked) {
		ret = itree_seek(t, n[i].key, &cur);
		steps = 0;
		while (ret >= 0 && i < s->win.checked && steps < CHECK_STEPS) {
			key = ret ? ~0ULL : itree_cursor_key(&cur);
			if (n[i].key < key) {
				n[i++].len = NAME_GONE;
			} else if (n[i].key == key) {
				i++;
				steps = 0;
			} else {
				ret = itree_next(&cur);
				steps++;
			}
		}
		itree_cursor_release(&cur);
		if (ret < 0)
			break;
	}
	return i;
}

/* A batch of names being looked for in the leaves of the htree. */
struct recheck {
	struct fill f;
	const struct scan_name *names;
	DECLARE_BITMAP(seen, CHECK_NAMES);
	u64	keys[CHECK_NAMES];		/* by hash */
};

static int see_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		    struct ext4_dir_entry_2 *de)
{
	struct recheck *r = container_of(v, struct recheck, f.visit);
	u32 lo = 0, hi = r->f.nr;

	while (lo < hi) {
		u32 mid = lo + (hi - lo) / 2;

		if (r->names[mid].key < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < r->f.nr && r->names[lo].key == key; lo++)
		__set_bit(lo, r->seen);
	return 0;
}

/*
 * Without a tree, looks for the names from @i on in their leaves and marks
 * those that are gone.  Marks none if the directory changes while a leaf is
 * read.
 */
static void look_for_names(struct ext4_itree_scan *s, u32 i)
{
	struct recheck *r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT);
	u32 nr = s->win.checked - i, k;
	int err;

	if (!r)
		return;
	r->names = &s->win.names[i];
	r->f.s = s;
	r->f.nr = nr;
	r->f.visit.dir = s->dir;
	r->f.visit.hash_version = s->hash_version;
	r->f.visit.lo = r->names[0].key;
	r->f.visit.hi = r->names[nr - 1].key;
	r->f.visit.shared = true;
	r->f.visit.name = see_name;
	for (k = 0; k < nr; k++)
		r->keys[k] = r->names[k].key;
	sort(r->keys, nr, sizeof(u64), cmp_hashes, NULL);
	err = ext4_itree_load_index(s->dir, 0, ~0U);
	if (!err)
		err = ext4_itree_visit_leaves(&r->f.visit, r->keys, nr);
	/* The htree is broken: look for the names in all blocks. */
	if (err == -EFSCORRUPTED || err == -EFSBADCRC || err == -EIO ||
	    err == ERR_BAD_DX_DIR)
		err = ext4_itree_visit_all(&r->f.visit);
	if (!err && !r->f.visit.unreadable &&
	    inode_eq_iversion(s->dir, s->win.checked_version))
		for (k = 0; k < nr; k++)
			if (!test_bit(k, r->seen))
				s->win.names[i + k].len = NAME_GONE;
	kfree(r);
}

/**
 * ext4_itree_check_names - drop names of the window that have been removed
 * @s: the scan, i_rwsem held shared; the directory has changed since s->win was
 *     filled
 *
 * A window is a snapshot of the directory.  After a change, this searches the
 * tree for the next names, which visits no blocks of the directory.  Without a
 * tree, it visits the leaves of these names and releases i_rwsem to read them.
 * Names created since need not be returned.  Names with equal keys stay as long
 * as one of them exists, and names stay if the search would have to read.
 */
void ext4_itree_check_names(struct ext4_itree_scan *s)
{
	struct ext4_itree et;
	u32 i = s->win.cur;

	if (i < s->win.checked &&
	    inode_eq_iversion(s->dir, s->win.checked_version))
		return;
	s->win.checked = min(s->win.nr, i + CHECK_NAMES);
	s->win.sure = i;
	s->win.checked_version = inode_query_iversion(s->dir);
	/* "." and ".." are not in the tree. */
	while (i < s->win.checked && s->win.names[i].key <= KEY_DOTDOT)
		i++;
	if (i >= s->win.checked)
		return;
	if (s->win.by_sweep) {
		look_for_names(s, i);
		return;
	}
	if (!ext4_itree_usable(s->dir) || ext4_itree_open_nowait(&et, s->dir))
		return;
	s->win.sure = mark_gone(s, &et.t, i);
	ext4_itree_close(&et);
}

/**
 * ext4_itree_still_true - does the name at s->win.cur exist, with the window's
 * inode?
 * @s: the scan, i_rwsem held
 *
 * Stricter than ext4_itree_check_names(): a new name of the same hash may have
 * brought back the key of a removed one.  If in doubt, returns false.
 */
bool ext4_itree_still_true(const struct ext4_itree_scan *s)
{
	const struct scan_name *n = &s->win.names[s->win.cur];

	if (inode_eq_iversion(s->dir, s->win.version))
		return true;
	if (!s->win.from_tree || s->win.cur >= s->win.sure ||
	    n->len == NAME_GONE ||
	    !inode_eq_iversion(s->dir, s->win.checked_version))
		return false;
	/* The tree cannot tell which of two names with one key is gone. */
	if ((s->win.cur && n[-1].key == n->key) ||
	    (s->win.cur + 1 < s->win.nr && n[1].key == n->key))
		return false;
	return !ext4_itree_may_be_added(s->dir, s->win.epoch,
					ITREE_KEY_HASH(n->key));
}
