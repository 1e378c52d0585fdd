/* SPDX-License-Identifier: GPL-2.0-only */
/* Reading small files ahead of readers in inode order: itree_files.c. */
#ifndef _EXT4_ITREE_FILES_H
#define _EXT4_ITREE_FILES_H

/* Files up to this size are read ahead whole; readahead suits larger ones. */
#define EXT4_ITREE_SMALL_FILE	(128U << 10)
/* Bytes of them at once, unless changed in sysfs.  Memory may limit it more. */
#define EXT4_ITREE_AHEAD_MAX	BIT(30)

void ext4_itree_file_read(struct file *file, bool miss);

/* Does a read at @pos start a small file and so show the order of reads? */
static inline bool ext4_itree_is_file_read(struct inode *inode, loff_t pos)
{
	struct super_block *sb = inode->i_sb;
	loff_t size;

	if (pos || !ext4_has_feature_itree(sb))
		return false;
	size = i_size_read(inode);
	return size && size <= EXT4_ITREE_SMALL_FILE &&
	       READ_ONCE(EXT4_SB(sb)->s_itree_ahead_max) &&
	       !test_opt2(sb, NOITREE);
}

#endif /* _EXT4_ITREE_FILES_H */
