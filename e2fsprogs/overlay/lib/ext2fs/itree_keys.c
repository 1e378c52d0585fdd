// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree_keys.c --- computing the keys of a directory's names
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

#define DX_ROOT_INFO_OFF	24

__u64 ext2fs_itree_hash_key(__u64 key)
{
	return itree_hash_key(key);
}

/*
 * Reads from the root of a directory's htree how its names are hashed.
 */
errcode_t ext2fs_itree_hasher_init(ext2_filsys fs, ext2_ino_t dir,
				   struct ext2_inode *inode,
				   struct ext2fs_itree_hasher *hasher)
{
	struct ext2_dx_root_info *root;
	errcode_t	retval;
	blk64_t		pblk;
	char		*buf;
	int		flags;

	memset(hasher, 0, sizeof(*hasher));
	hasher->fs = fs;
	hasher->hash_flags = inode->i_flags & EXT4_CASEFOLD_FL;
	hasher->in_dirent = ext4_hash_in_dirent(inode);

	retval = ext2fs_itree_check_dir(fs, dir, inode);
	if (retval)
		return retval;
	retval = ext2fs_bmap2(fs, dir, inode, NULL, 0, 0, &flags, &pblk);
	if (retval)
		return retval;
	if (!pblk || (flags & BMAP_RET_UNINIT))
		return EXT2_ET_DIR_CORRUPTED;
	retval = ext2fs_get_mem(fs->blocksize, &buf);
	if (retval)
		return retval;
	retval = ext2fs_read_dir_block4(fs, pblk, buf, 0, dir);
	if (retval)
		goto out;
	root = (struct ext2_dx_root_info *) (buf + DX_ROOT_INFO_OFF);
	hasher->disk_version = root->hash_version;
	hasher->version = root->hash_version;
	switch (root->hash_version) {
	case EXT2_HASH_LEGACY:
	case EXT2_HASH_HALF_MD4:
	case EXT2_HASH_TEA:
		if (hasher->in_dirent)
			retval = EXT2_ET_DIRHASH_UNSUPP;
		if (fs->super->s_flags & EXT2_FLAGS_UNSIGNED_HASH)
			hasher->version += EXT2_HASH_LEGACY_UNSIGNED;
		break;
	case EXT2_HASH_SIPHASH:
		if (!hasher->in_dirent)
			retval = EXT2_ET_DIRHASH_UNSUPP;
		break;
	default:
		retval = EXT2_ET_DIRHASH_UNSUPP;
	}
out:
	ext2fs_free_mem(&buf);
	return retval;
}

/*
 * The key of a name.  Returns EXT2_ET_DIRHASH_UNSUPP if the hash is kept in the
 * entries, because it cannot be computed here.
 */
errcode_t ext2fs_itree_name_key(const struct ext2fs_itree_hasher *hasher,
				const char *name, int len, ext2_ino_t ino,
				__u64 *key)
{
	ext2_filsys	fs = hasher->fs;
	ext2_dirhash_t	hash;
	errcode_t	retval;

	if (hasher->in_dirent)
		return EXT2_ET_DIRHASH_UNSUPP;
	retval = ext2fs_dirhash2(hasher->version, name, len, fs->encoding,
				 hasher->hash_flags, fs->super->s_hash_seed,
				 &hash, NULL);
	if (!retval)
		*key = ITREE_KEY(ino, hash & ~1U);
	return retval;
}

/*
 * The key of a directory entry.  *has_key is cleared for entries that have
 * none: ".", "..", and unused ones.
 */
errcode_t ext2fs_itree_dirent_key(const struct ext2fs_itree_hasher *hasher,
				  struct ext2_dir_entry *dirent,
				  __u64 *key, int *has_key)
{
	int		len = ext2fs_dirent_name_len(dirent);
	errcode_t	retval;
	unsigned int	rec_len;

	*has_key = 0;
	if (!dirent->inode)
		return 0;
	if (dirent->name[0] == '.' &&
	    (len == 1 || (len == 2 && dirent->name[1] == '.')))
		return 0;
	if (hasher->in_dirent) {
		retval = ext2fs_get_rec_len(hasher->fs, dirent, &rec_len);
		if (retval)
			return retval;
		if (rec_len < ext2fs_dir_rec_len(len, 1))
			return EXT2_ET_DIR_CORRUPTED;
		*key = ITREE_KEY(dirent->inode, EXT2_DIRENT_HASH(dirent) & ~1U);
	} else {
		retval = ext2fs_itree_name_key(hasher, dirent->name, len,
					       dirent->inode, key);
		if (retval)
			return retval;
	}
	*has_key = 1;
	return 0;
}

static errcode_t gather_add(struct itree_gather *g, __u64 key)
{
	errcode_t	retval;
	__u64		room;

	if (g->count == g->room) {
		room = g->room * 2;
		if (room > ~0UL / sizeof(__u64))
			return EXT2_ET_NO_MEMORY;
		retval = ext2fs_resize_mem(g->room * sizeof(__u64),
					   room * sizeof(__u64), &g->keys);
		if (retval)
			return retval;
		g->room = room;
	}
	g->keys[g->count] = key;
	return 0;
}

static int gather_proc(ext2_ino_t dir EXT2FS_ATTR((unused)),
		       int entry EXT2FS_ATTR((unused)),
		       struct ext2_dir_entry *dirent,
		       int offset EXT2FS_ATTR((unused)),
		       int blocksize EXT2FS_ATTR((unused)),
		       char *buf EXT2FS_ATTR((unused)), void *priv_data)
{
	struct itree_gather	*g = priv_data;
	__u64		key;
	int		has_key;

	g->err = ext2fs_itree_dirent_key(&g->hasher, dirent, &key, &has_key);
	if (g->err)
		return DIRENT_ABORT;
	if (!has_key)
		return 0;
	if (g->keys) {
		g->err = gather_add(g, key);
		if (g->err)
			return DIRENT_ABORT;
	}
	g->count++;
	g->sum += itree_hash_key(key);
	return 0;
}

errcode_t itree_gather_dir(ext2_filsys fs, ext2_ino_t dir,
			    struct ext2_inode *inode, struct itree_gather *g)
{
	errcode_t	retval;

	retval = ext2fs_itree_hasher_init(fs, dir, inode, &g->hasher);
	if (retval)
		return retval;
	retval = ext2fs_dir_iterate2(fs, dir, 0, NULL, gather_proc, g);
	return g->err ? g->err : retval;
}

errcode_t ext2fs_itree_sum_dir(ext2_filsys fs, ext2_ino_t dir,
			       __u64 *keys, __u64 *hash)
{
	struct ext2_inode	inode;
	struct itree_gather		g;
	errcode_t		retval;

	memset(&g, 0, sizeof(g));
	retval = ext2fs_read_inode(fs, dir, &inode);
	if (!retval)
		retval = itree_gather_dir(fs, dir, &inode, &g);
	*keys = g.count;
	*hash = g.sum;
	return retval;
}
