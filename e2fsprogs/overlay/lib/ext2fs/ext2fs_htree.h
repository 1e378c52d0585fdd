/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * ext2fs_htree.h --- building hash indexes of directories
 *
 * Public interface of lib/ext2fs/htree_build.c.
 */
#ifndef EXT2FS_HTREE_H
#define EXT2FS_HTREE_H

#include "ext2fs/ext2fs.h"

/*
 * Builds a hash index (htree) for a linear directory and sorts its entries
 * into leaves that are four fifths full.  Returns 0 without doing anything if
 * the directory has an index already.
 *
 * Needs a file system opened for writing with its block bitmap, and memory
 * for a copy of the directory plus about 50 bytes per entry.  Like the rest
 * of this library it is not crash-safe: it writes blocks in place.  No other
 * program may use the file system meanwhile.
 *
 * The directory is unchanged after these errors:
 *   EXT2_ET_NO_DIRECTORY, EXT2_ET_RO_FILSYS, EXT2_ET_NO_BLOCK_BITMAP
 *   EXT2_ET_OP_NOT_SUPPORTED	dir_index is off, or the directory is not
 *				mapped by extents, or has inline data
 *   EXT2_ET_DIRHASH_UNSUPP	its hashes cannot be computed here (encrypted
 *				and casefolded, encoding or hash unknown)
 *   EXT2_ET_FILE_TOO_BIG	more than the levels of an htree can hold
 *				(large_dir allows one more)
 *   EXT2_ET_BLOCK_ALLOC_FAIL	no room for the blocks it has to grow by
 *   EXT2_ET_DIR_CORRUPTED, and out-of-memory and read errors
 * A write error leaves a directory that e2fsck has to repair.
 */
errcode_t ext2fs_htree_build(ext2_filsys fs, ext2_ino_t dir);

#endif /* EXT2FS_HTREE_H */
