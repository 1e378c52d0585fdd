/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Included before every file of the module: what the preprocessor can keep
 * apart from an ext4 that the kernel has already.  kernel/module/build changes
 * the rest, the names that stand in strings.
 */
#ifndef _EXT4ITREE_H
#define _EXT4ITREE_H

/* The kernel's own ext4 mounts ext2 and ext3. */
#undef CONFIG_EXT4_USE_FOR_EXT2

#include <linux/slab.h>

/* Two caches of one name cannot both be in /sys/kernel/slab. */
#undef KMEM_CACHE
#define KMEM_CACHE(type, flags)						\
	kmem_cache_create("ext4itree_" #type, sizeof(struct type),	\
			  __alignof__(struct type), flags, NULL)

#endif	/* _EXT4ITREE_H */
