/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * index_dirs.h --- indexes for the directories that mke2fs -d has filled
 */
#ifndef INDEX_DIRS_H
#define INDEX_DIRS_H

#include "ext2fs/ext2fs.h"

/*
 * Gives every linear directory of 16 or more blocks an htree and an itree,
 * except lost+found, whose empty blocks are there to stay.  Shows its
 * progress if @fs does.  A directory that gets none is named on standard
 * error, with what to do about it on @device, and stays as it is: the file
 * system is good without.  Does nothing without the itree feature.
 */
void index_directories(ext2_filsys fs, const char *device);

#endif /* INDEX_DIRS_H */
