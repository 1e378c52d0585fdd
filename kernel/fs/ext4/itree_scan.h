/* SPDX-License-Identifier: GPL-2.0-only */
/* A scan of a directory in inode order: itree_scan.c, _window.c, _room.c, _dentry.c, _pos.c. */
#ifndef _EXT4_ITREE_SCAN_H
#define _EXT4_ITREE_SCAN_H

#define WINDOW_MIN	1024U
#define WINDOW_MAX	32768U
/* With memory for it (itree_room.c): some 64 MiB. */
#define WINDOW_LARGE	1048576U
/* So many blocks in one sweep cost less than one that is looked for alone. */
#define SWEEP_PAYS	64
#define TEXT_FIRST	2048U		/* most directories are small */
#define TEXT_CHUNK	32768U
/* Inode table blocks to have under way ahead of the reader. */
#define AHEAD_BLOCKS	512U
/* Names that may wait for a scan before it has to start over. */
#define MOVED_MAX	65536U
#define SAMPLES		8U

#define KEY_DOT		ITREE_KEY(0, 0)
#define KEY_DOTDOT	ITREE_KEY(0, 2)

struct scan_name {
	u64		key;
	const u8	*name;
	u32		ino;
	u8		len;
	u8		type;		/* DT_* */
};

struct text_chunk {
	struct text_chunk *next;
	u32		size;
	u32		used;
	u8		text[];
};

/* A name that was renumbered from ahead of the scan to where it has been. */
struct moved_name {
	struct list_head list;
	u32		ino;
	u8		len;
	u8		type;		/* DT_* */
	struct dx_hash_info hinfo;	/* for the name of an encrypted file */
	u8		name[];		/* as on disk */
};

struct ext4_itree_scan {
	struct list_head list;		/* inode's scans, under its i_lock */
	struct inode	*dir;
	loff_t		last_pos;	/* where the last call stopped */
	bool		open;		/* on the list */
	u8		hash_version;

	/* Under i_lock as well: what changes to the directory look at. */
	u64		next;		/* keys below have been returned */
	u64		end;		/* keys above are new since the start */
	struct list_head moved;
	u32		nr_moved;
	bool		lost;		/* a name was passed by: go round again */
	bool		doubt;		/* the tree it went by was found bad */

	/* The window: keys from win_lo on, all up to win_hi. */
	struct scan_name *names;
	u32		nr;
	u32		cur;
	u32		room;		/* names there is room for */
	bool		valid;
	bool		last;		/* nothing behind this window */
	u64		win_lo;
	u64		win_hi;
	u64		version;	/* i_version it was filled at */
	u32		want;		/* keys for the next one */
	unsigned long	borrowed;	/* bytes, for a large one */
	unsigned long	text_room;	/* of these for text */
	unsigned long	text_taken;	/* in this window, if it is large */
	struct text_chunk *text;
	u64		text_names;	/* in this window and those before */
	u64		text_bytes;

	/* Does an undisturbed pass meet as many keys as the root promises? */
	bool		counting;
	u64		first;		/* where the pass began */
	u64		total;		/* keys, says the root */
	u64		counted;	/* keys below counted_to */
	u64		counted_to;
	u64		start_version;	/* i_version of the pass */

	/* Within equal keys: the last name returned. */
	u64		run_key;
	u8		run_len;	/* 0: not within a run */
	u8		run_name[EXT4_NAME_LEN];

	/* Reading ahead. */
	u32		ahead;		/* names dealt with */
	bool		stats;		/* the reader looks at the inodes */
	u32		nr_samples;
	u32		samples[SAMPLES];

	/* Dentries for the reader, by the call. */
	bool		prime;		/* make some */
	bool		prime_run;	/* those of this run are not there */
	u32		prime_to;	/* in the window: where it ends */
	bool		used;		/* he used those that were made */
	bool		doubted;	/* but not the last ones */
	u32		made;
	u32		wary;		/* of a reader who did not use them */
	u32		pause;		/* calls without any */
};

static inline loff_t key_to_pos(u64 key)
{
	return ((loff_t)ITREE_KEY_INO(key) << 31) | (ITREE_KEY_HASH(key) >> 1);
}

static inline u64 pos_to_key(loff_t pos)
{
	return ITREE_KEY((u32)(pos >> 31), (u32)(pos & 0x7fffffff) << 1);
}

void ext4_itree_drop_window(struct ext4_itree_scan *s);
int ext4_itree_fill_window(struct file *file, struct ext4_itree_scan *s);
u32 ext4_itree_window_limit(const struct ext4_itree_scan *s);
bool ext4_itree_borrow_room(struct ext4_itree_scan *s);
void ext4_itree_return_room(struct ext4_itree_scan *s);
void ext4_itree_watch_reader(struct ext4_itree_scan *s);
void ext4_itree_note_name(struct ext4_itree_scan *s, const struct scan_name *n,
			  u32 nr);
void ext4_itree_prime(struct ext4_itree_scan *s, struct file *file);
bool ext4_itree_cached(struct super_block *sb, const u32 *ino, u32 nr,
		       size_t stride);
bool ext4_itree_usable(struct inode *dir);
int ext4_itree_cmp_text(const u8 *a, u32 alen, const u8 *b, u32 blen);

#endif /* _EXT4_ITREE_SCAN_H */
