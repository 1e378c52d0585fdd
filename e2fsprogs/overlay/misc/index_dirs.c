// SPDX-License-Identifier: GPL-2.0-only
/*
 * index_dirs.c --- indexes for the directories that mke2fs -d has filled
 *
 * The library adds names to linear directories one by one and never turns
 * them into htrees.  Nor would the kernel do so later.  They are indexed here,
 * once they are complete.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>

#include "ext2fs/ext2_fs.h"
#include "ext2fs/ext2fsP.h"
#include "ext2fs/ext2fs_htree.h"
#include "ext2fs/ext2fs_itree.h"
#include "support/nls-enable.h"
#include "mke2fs.h"
#include "index_dirs.h"

/* As in the kernel, which sorts smaller directories when it reads them */
#define MIN_BLOCKS	16

static int wants_index(ext2_filsys fs, struct ext2_inode *inode)
{
	return LINUX_S_ISDIR(inode->i_mode) && inode->i_links_count &&
		!(inode->i_flags & (EXT2_INDEX_FL | EXT4_INLINE_DATA_FL)) &&
		EXT2_I_SIZE(inode) / fs->blocksize >= MIN_BLOCKS;
}

/* Sorted by inode number.  Directories must not change during the scan. */
static errcode_t find_directories(ext2_filsys fs, ext2_u32_list list)
{
	struct ext2_inode	inode;
	ext2_inode_scan		scan;
	ext2_ino_t		ino, lost_found = 0;
	errcode_t		retval;

	(void) ext2fs_lookup(fs, EXT2_ROOT_INO, "lost+found", 10, NULL,
			     &lost_found);
	retval = ext2fs_open_inode_scan(fs, 0, &scan);
	if (retval)
		return retval;
	while (1) {
		retval = ext2fs_get_next_inode(scan, &ino, &inode);
		if (retval == EXT2_ET_BAD_BLOCK_IN_INODE_TABLE)
			continue;
		if (retval || !ino)
			break;
		if (ino != lost_found && wants_index(fs, &inode))
			retval = ext2fs_u32_list_add(list, ino);
		if (retval)
			break;
	}
	ext2fs_close_inode_scan(scan);
	return retval;
}

static void warn(ext2_filsys fs, ext2_ino_t ino, const char *what,
		 errcode_t error, const char *device)
{
	char	*path = NULL;

	if (ext2fs_get_pathname(fs, ino, 0, &path))
		path = NULL;
	fflush(stdout);
	fprintf(stderr, _("\n%s: directory \"%s\" (inode %u) gets no %s: %s\n"
			  "\tNothing is missing from it, but it is slow to "
			  "read.  Once there is room,\n"
			  "\t\"e2fsck -fD %s\" makes the index.\n"),
		program_name, path ? path : "?", ino, what,
		error_message(error), device);
	ext2fs_free_mem(&path);
}

void index_directories(ext2_filsys fs, const char *device)
{
	struct ext2fs_numeric_progress_struct progress;
	ext2_u32_list		list = NULL;
	ext2_u32_iterate	iter = NULL;
	ext2_ino_t		ino;
	errcode_t		retval;
	int			done = 0;

	if (!ext2fs_has_feature_itree(fs->super))
		return;
	retval = ext2fs_u32_list_create(&list, 0);
	if (!retval)
		retval = find_directories(fs, list);
	if (!retval)
		retval = ext2fs_u32_list_iterate_begin(list, &iter);
	if (retval) {
		com_err(program_name, retval,
			_("while looking for large directories; "
			  "\"e2fsck -fD %s\" can index them"), device);
		goto out;
	}
	if (!ext2fs_u32_list_count(list))
		goto out;
	ext2fs_numeric_progress_init(fs, &progress,
				     _("Indexing large directories: "),
				     ext2fs_u32_list_count(list));
	while (ext2fs_u32_list_iterate(iter, &ino)) {
		ext2fs_numeric_progress_update(fs, &progress, done++);
		retval = ext2fs_htree_build(fs, ino);
		if (retval) {
			warn(fs, ino, _("hash index and no itree"), retval,
			     device);
			continue;
		}
		retval = ext2fs_itree_build(fs, ino);
		if (retval)
			warn(fs, ino, _("itree"), retval, device);
	}
	ext2fs_numeric_progress_close(fs, &progress, _("done\n"));
out:
	if (iter)
		ext2fs_u32_list_iterate_end(iter);
	if (list)
		ext2fs_u32_list_free(list);
}
