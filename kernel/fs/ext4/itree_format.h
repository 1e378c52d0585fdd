/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * On-disk format of the itree, version 1: a B+tree of (inode, hash) keys kept
 * beside a directory's htree, so that readdir can follow inode order.
 *
 * The tree lives in the directory's own extent map, in the "segment" of
 * logical blocks from ITREE_SEG_START on, far beyond i_size.  The root is
 * always the first block of the segment.  All fields are little endian.
 *
 * Idea: Pazdera, "Optimising the Linux File System Ext4" (2013), with the
 * changes in docs/design.md.  XFS places the leaf and free spaces of a
 * directory high in its logical space in the same way.
 */
#ifndef ITREE_FORMAT_H
#define ITREE_FORMAT_H

#include "itree_port.h"

#define ITREE_MAGIC		0x45525449	/* "ITRE": node in use */
#define ITREE_FREE_MAGIC	0x46525449	/* "ITRF": node on the free list */
#define ITREE_VERSION		1

#define ITREE_SEG_START		0x80000000U	/* logical block of the root */
#define ITREE_SEG_MAX		0x7ffffffeU	/* most blocks a segment may have */
#define ITREE_MAX_DEPTH		5		/* levels, root and leaf included */
#define ITREE_MIN_BLOCK		1024
#define ITREE_MAX_BLOCK		65536

/* Head of every node, 16 bytes. */
struct itree_head {
	__le32	h_magic;	/* ITREE_MAGIC or ITREE_FREE_MAGIC */
	__u8	h_version;	/* ITREE_VERSION */
	__u8	h_level;	/* 0: leaf; a free node has 0 */
	__le16	h_count;	/* entries in use */
	__le16	h_limit;	/* entries that fit */
	__le16	h_reserved;	/* 0 */
	__le32	h_next;		/* free node: next free node or 0; else 0 */
};

/* Follows the head in the root only, 32 bytes. */
struct itree_root_info {
	__le64	r_keys;		/* keys in the tree */
	__le32	r_blocks;	/* high-water mark: blocks of the segment in use */
	__le32	r_free_head;	/* logical block of the first free node or 0 */
	__le32	r_free_count;	/* length of the free list */
	__u8	r_hash_version;	/* as dx_root_info.hash_version */
	__u8	r_reserved[11];	/* 0 */
};

/* Leaf entry: one for each name except "." and "..". */
struct itree_leaf_entry {
	__le32	l_ino;
	__le32	l_hash;		/* htree major hash, bit 0 clear */
};

/*
 * Index entry.  The child holds keys not below this key and not above the
 * next entry's.  The key of a node's first entry is 0 and means "whatever
 * the parent says".
 */
struct itree_index_entry {
	__le32	i_ino;
	__le32	i_hash;
	__le32	i_child;	/* logical block of the child */
};

/*
 * Last 8 bytes of every node.  The checksum is crc32c over the directory's
 * checksum seed (file system seed, inode number, generation: as for directory
 * blocks), the node's logical block number (le32) and the node up to
 * t_checksum.  Without metadata_csum it is 0.
 */
struct itree_tail {
	__le32	t_reserved;	/* 0 */
	__le32	t_checksum;
};

#endif /* ITREE_FORMAT_H */
