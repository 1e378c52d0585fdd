/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A scan of a directory in inode order: itree_scan.c, _open.c, _pos.c,
 * _window.c, _room.c, _dentry.c.
 */
#ifndef _EXT4_ITREE_SCAN_H
#define _EXT4_ITREE_SCAN_H

#define WINDOW_MIN	1024U
/* First window after a seek: the reader may not stay there. */
#define WINDOW_ANEW	128U
#define WINDOW_MAX	32768U
/* If there is memory for it (itree_room.c): about 64 MiB. */
#define WINDOW_LARGE	1048576U
/* Without a tree or a list: the keys take 4 MiB while it is filled. */
#define WINDOW_SORT	262144U
/* Reading so many blocks in one sweep costs less than finding one by itself. */
#define SWEEP_PAYS	64
#define TEXT_FIRST	2048U		/* most directories are small */
#define TEXT_CHUNK	32768U
/* Inode table blocks to read ahead of the reader. */
#define AHEAD_BLOCKS	512U
#define SAMPLES		8U
/* Value of ->error after the reader got the error, which it gets once. */
#define ERROR_TOLD	1

#define KEY_DOT		ITREE_KEY(0, 0)
#define KEY_DOTDOT	ITREE_KEY(0, 2)

/* Positions, see itree_pos.c */
#define POS_HASH	BIT_ULL(62)		/* in hash order */
#define POS_FIRST	BIT_ULL(30)		/* the lowest but 0 in inode order */
#define POS_PASS_SHIFT	18
#define POS_LOW_MASK	GENMASK_ULL(POS_PASS_SHIFT - 1, 0)
#define PASS_IDS	4096U

struct scan_name {
	u64		key;
	const u8	*name;
	u32		ino;
	u8		len;		/* or NAME_GONE */
	u8		type;		/* DT_* */
};

/* Removed since the window was filled. */
#define NAME_GONE	0

struct text_chunk {
	struct text_chunk *next;
	u32		size;
	u32		used;
	u8		text[];
};

/* A listing from start to end, continued by any number of open files. */
struct ext4_itree_pass {
	struct list_head list;		/* of the directory's, until forgotten */
	refcount_t	refs;
	u32		id;		/* 1..PASS_IDS - 1, part of positions */
	u64		began;		/* by the clock of the log */
	u64		end;		/* keys above are new since then */
	u32		doubts;		/* of the tree, when last settled */
	bool		whole;		/* returns all names again at the end */
	bool		over;		/* a reader has reached its end */
};

/* itree_window.c: the names of all keys from @lo to @hi. */
struct scan_window {
	struct scan_name *names;
	u32		nr;
	u32		cur;
	u32		room;		/* names there is room for */
	bool		valid;
	bool		last;		/* nothing behind this window */
	bool		from_tree;
	bool		by_sweep;	/* of a large one without a tree */
	u64		lo;
	u64		hi;
	u64		version;	/* i_version before it was filled */
	u32		epoch;		/* of names added since then */
	u32		checked;	/* names below: looked up again, ... */
	u32		sure;		/* ... those below: conclusively, ... */
	u64		checked_version; /* ... at this i_version */
	u32		ahead;		/* names whose inodes were read ahead */
	struct text_chunk *text;
};

/* itree_room.c: how large windows may be, and what they take. */
struct scan_size {
	u32		want;		/* keys for the next window */
	unsigned long	borrowed;	/* bytes, for a large one */
	unsigned long	text_room;	/* of these for text */
	unsigned long	text_taken;	/* in this window, if it is large */
	u64		text_names;	/* in this window and those before */
	u64		text_bytes;
};

/* itree_window.c: the keys of a large directory without a tree. */
struct scan_list {
	struct ext4_itree_keys *keys;	/* from @lo on, or NULL */
	u64		lo;
	unsigned long	borrowed;	/* bytes */
	bool		refused;	/* no memory for it */
};

/*
 * itree_window.c: does a pass without changes see as many keys as the root
 * counts?
 */
struct scan_count {
	bool		on;
	u64		from;		/* where the pass began */
	u64		total;		/* keys, by the root's count */
	u64		seen;		/* keys below seen_to */
	u64		seen_to;
	u64		version;	/* i_version of the pass */
};

/* itree_scan.c: within equal keys, the last name returned. */
struct scan_run {
	u64		key;
	u8		len;		/* 0: not within a run */
	u8		name[EXT4_NAME_LEN];
};

/* itree_dentry.c: the reader's habits, and the dentries made for it. */
struct scan_reader {
	bool		stats;		/* it looks at the inodes */
	u32		nr_samples;
	u32		samples[SAMPLES];
	bool		prime;		/* make dentries in this call */
	bool		prime_run;	/* this run has none yet */
	u32		prime_to;	/* end of the run in the window */
	bool		used;		/* it used them */
	bool		doubted;	/* but not the last ones */
	u32		made;
	u32		wary;		/* calls to skip after unused ones */
	u32		pause;		/* calls still to skip */
};

struct ext4_itree_scan {
	struct inode	*dir;
	struct ext4_itree_pass *pass;
	bool		started;	/* since it follows the pass */
	bool		over;		/* the reader has reached the end */
	bool		recent;		/* used since the last shrink */
	u8		hash_version;
	int		error;		/* a block could not be read in this pass */
	loff_t		last_pos;	/* where the last call stopped */
	u64		next;		/* keys below have been returned */
	struct list_head idle;		/* itree_room.c: between two calls */

	struct scan_window win;
	struct scan_size size;
	struct scan_list list;
	struct scan_count count;
	struct scan_run	run;
	struct scan_reader reader;
};

/* "." is 0, and ".." takes inode number 1, which no name has. */
static inline loff_t key_to_pos(u64 key, u32 id)
{
	if (key == KEY_DOT)
		return 0;
	return ((loff_t)max(ITREE_KEY_INO(key), 1U) << 30) |
	       ((loff_t)id << POS_PASS_SHIFT) | ITREE_KEY_HASH(key) >> 14;
}

/* The lowest key that has this position. */
static inline u64 pos_to_key(loff_t pos)
{
	u32 ino = pos >> 30;

	if (ino <= 1)
		return ino ? KEY_DOTDOT : KEY_DOT;
	return ITREE_KEY(ino, (u32)(pos & POS_LOW_MASK) << 14);
}

/* itree_open.c */
struct ext4_itree_pass *ext4_itree_begin_pass(struct inode *dir);
struct ext4_itree_pass *ext4_itree_find_pass(struct inode *dir, u32 id);
void ext4_itree_leave_pass(struct inode *dir, struct ext4_itree_pass *pass,
			   bool over);
bool ext4_itree_pass_whole(struct inode *dir, struct ext4_itree_pass *pass);
bool ext4_itree_next_moved(struct inode *dir, struct ext4_itree_pass *pass,
			   u32 *hash, u32 *minor);
bool ext4_itree_has_moved(struct inode *dir, struct ext4_itree_pass *pass,
			  u32 hash, u32 minor);
bool ext4_itree_comes_later(struct ext4_itree_scan *s,
			    const struct scan_name *n);
u32 ext4_itree_watch_added(struct inode *dir);
bool ext4_itree_may_be_added(struct inode *dir, u32 epoch, u32 hash);
void ext4_itree_note_anew(struct inode *dir);
bool ext4_itree_may_sweep(struct inode *dir);
bool ext4_itree_in_doubt(const struct ext4_itree_scan *s);
void ext4_itree_settle_doubt(struct ext4_itree_scan *s, bool lost);
int ext4_itree_open_init(void);
void ext4_itree_open_exit(void);

/* itree_pos.c */
bool ext4_itree_end_inode_order(struct file *file, loff_t *pos);

/* itree_scan.c */
int ext4_itree_scan_follow(struct inode *dir, struct ext4_itree_scan **scanp,
			   struct ext4_itree_pass *pass);

void ext4_itree_drop_window(struct ext4_itree_scan *s);
int ext4_itree_fill_window(struct file *file, struct ext4_itree_scan *s);
void ext4_itree_check_names(struct ext4_itree_scan *s);
bool ext4_itree_still_true(const struct ext4_itree_scan *s);
/* A visit that counts names. */
struct ext4_itree_tally {
	struct ext4_itree_visit visit;
	u64	nr;
};

int ext4_itree_tally_name(struct ext4_itree_visit *v, u64 key, u32 minor,
			  struct ext4_dir_entry_2 *de);
int ext4_itree_visit_leaves(struct ext4_itree_visit *v, const u64 *keys,
			    u32 nr);
u32 ext4_itree_window_limit(const struct ext4_itree_scan *s);
bool ext4_itree_borrow_room(struct ext4_itree_scan *s);
void ext4_itree_return_room(struct ext4_itree_scan *s);
u64 ext4_itree_list_limit(void);
bool ext4_itree_borrow_list(struct ext4_itree_scan *s);
void ext4_itree_drop_list(struct ext4_itree_scan *s);
void ext4_itree_free_text(struct text_chunk *text);
void ext4_itree_take_window(struct ext4_itree_scan *s);
void ext4_itree_leave_window(struct ext4_itree_scan *s);
struct ext4_itree_scan *ext4_itree_alloc_scan(void);
void ext4_itree_free_scan(struct ext4_itree_scan *s);
void ext4_itree_watch_reader(struct ext4_itree_scan *s);
void ext4_itree_note_name(struct ext4_itree_scan *s, const struct scan_name *n,
			  u32 nr);
void ext4_itree_prime(struct ext4_itree_scan *s, struct file *file);
bool ext4_itree_cached(struct super_block *sb, const u32 *ino, u32 nr,
		       size_t stride);
bool ext4_itree_usable(struct inode *dir);
int ext4_itree_cmp_text(const u8 *a, u32 alen, const u8 *b, u32 blen);

#endif /* _EXT4_ITREE_SCAN_H */
