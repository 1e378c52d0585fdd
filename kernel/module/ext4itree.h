/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The build includes this before each source file.  Where macros can, it keeps
 * the module apart from the kernel's own ext4.  kernel/module/build renames the
 * strings.
 */
#ifndef _EXT4ITREE_H
#define _EXT4ITREE_H

/* ext2 and ext3 stay with the kernel's own ext4. */
#undef CONFIG_EXT4_USE_FOR_EXT2

#include <linux/slab.h>

/* Each cache needs a name of its own in /sys/kernel/slab. */
#undef KMEM_CACHE
#define KMEM_CACHE(type, flags)						\
	kmem_cache_create("ext4itree_" #type, sizeof(struct type),	\
			  __alignof__(struct type), flags, NULL)

#endif	/* _EXT4ITREE_H */
