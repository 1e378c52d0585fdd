/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * EXT4_IOC_ITREE: build, drop, check and look at the itree of a mounted
 * directory, or pack the directory itself.  The argument has the same layout
 * for 32-bit and 64-bit callers.
 *
 * Errors:
 *  ENOTTY	the kernel does not support itrees, or this is not ext4
 *  ENOTDIR	not a directory
 *  EOPNOTSUPP	the file system lacks the itree feature, or cannot have it (ON);
 *		PACK needs no feature
 *  ENODATA	this kind of directory cannot have a tree: it has no htree,
 *		uses block maps, or is stored in its inode (BUILD, PACK)
 *  EINVAL	unknown version, op or flag, or a reserved field is not 0
 *  EPERM	neither the directory's owner nor capable (ON, OFF: without
 *		CAP_SYS_ADMIN); or the directory is immutable
 *  EROFS	read-only file system (BUILD, DROP, PACK, ON, OFF)
 *  EBUSY	a build, drop or pack of this directory, a change of the feature
 *		or (ON, OFF) an online resize is in progress
 *  EAGAIN	the directory changed faster than the build could follow
 *  EINTR	interrupted by a signal; a build is undone, nothing else is lost
 *  ENOENT	the directory has been removed meanwhile
 *  EUCLEAN	the directory itself is corrupt (BUILD, CHECK, PACK), or (ON) the file
 *		system has recorded errors: run e2fsck
 *  ENOMEM, ENOSPC, EDQUOT, EFBIG, EIO as usual
 * After an error of BUILD, the directory has no tree, or the one that it had.
 * After an error of ON or OFF, the feature is unchanged, and trees may be gone.
 */
#ifndef _EXT4_ITREE_IOCTL_H
#define _EXT4_ITREE_IOCTL_H

#include <linux/types.h>
#include <linux/ioctl.h>

#define EXT4_ITREE_IOC_VERSION	1

/* ia_op */
#define EXT4_ITREE_OP_STAT	0	/* for all who can open the directory */
#define EXT4_ITREE_OP_BUILD	1
#define EXT4_ITREE_OP_DROP	2
#define EXT4_ITREE_OP_CHECK	3
/* The feature of the directory's file system. */
#define EXT4_ITREE_OP_ON	4
#define EXT4_ITREE_OP_OFF	5	/* drops all trees first */
/*
 * Joins blocks of the directory that fit into one, and frees those that this
 * empties, for about 100 ms from the hash ia_from on, which is 0 at first.
 * With EXT4_ITREE_MORE, the next call continues at ia_next.
 */
#define EXT4_ITREE_OP_PACK	6

/* ia_flags */
#define EXT4_ITREE_FORCE	0x1	/* BUILD: even if there is a tree */
#define EXT4_ITREE_VERIFY	0x2	/* STAT: read all of the tree */

/* ia_state */
#define EXT4_ITREE_HAS_TREE	0x1	/* there is one, now */
#define EXT4_ITREE_BAD		0x2	/* it breaks a rule: see ia_why */
#define EXT4_ITREE_CHANGED	0x4	/* this call has changed something */
#define EXT4_ITREE_POSSIBLE	0x8	/* the directory can have one */
#define EXT4_ITREE_MORE		0x10	/* PACK: not yet at the end */

/* id_what */
#define EXT4_ITREE_MISSING	1	/* a name has no key in the tree */
#define EXT4_ITREE_EXTRA	2	/* a key in the tree has no name */

struct ext4_itree_diff {
	__u32	id_ino;
	__u32	id_hash;
	__u32	id_what;
	__u32	id_reserved;
};

struct ext4_itree_args {
	/* From the caller. */
	__u32	ia_version;		/* EXT4_ITREE_IOC_VERSION */
	__u32	ia_op;
	__u32	ia_flags;
	__u32	ia_max_diffs;		/* CHECK: room at ia_diffs */
	__u64	ia_diffs;		/* CHECK: address of ext4_itree_diffs */
	__u64	ia_reserved[2];		/* 0 */
	__u64	ia_from;		/* PACK, otherwise 0 */

	/* To the caller, when the call succeeded. */
	__u32	ia_state;
	__u32	ia_depth;		/* levels of the tree */
	__u64	ia_keys;		/* in the tree; ON, OFF: trees dropped */
	__u64	ia_names;		/* of the directory (BUILD, CHECK) */
	__u64	ia_missing;		/* CHECK */
	__u64	ia_extra;		/* CHECK */
	__u32	ia_nr_diffs;		/* CHECK: stored at ia_diffs */
	__u32	ia_dir_blocks;		/* of the directory itself */
	__u32	ia_blocks;		/* of the tree, free ones included */
	__u32	ia_free;		/* free nodes */
	__u32	ia_leaves;		/* CHECK, VERIFY */
	__u32	ia_nodes;		/* CHECK, VERIFY: leaves and index */
	__u64	ia_leaf_slots;		/* CHECK, VERIFY: keys that would fit */
	__u64	ia_logged;		/* BUILD: changes made meanwhile */
	__u32	ia_rounds;		/* BUILD: rounds to catch up */
	__u32	ia_locked_us;		/* BUILD: writers blocked at the end */
	__u32	ia_why_block;		/* bad tree: in this block of it */
	__u32	ia_block_size;
	char	ia_why[64];		/* bad tree; EOPNOTSUPP, EUCLEAN of ON */
	__u64	ia_next;		/* PACK */
	__u64	ia_reserved_out[3];
};

#define EXT4_IOC_ITREE	_IOWR('f', 96, struct ext4_itree_args)

#endif /* _EXT4_ITREE_IOCTL_H */
