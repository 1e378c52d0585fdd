/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * itree.c --- checking and rebuilding inode-ordered directory indexes
 *
 * See itree.h for how the passes share the work.  A tree holds nothing that
 * the directory does not, so dropping a broken one is always safe, and preen
 * may make every repair here without asking.
 */
#include "config.h"
#include <stdlib.h>
#include <string.h>

#include "e2fsck.h"
#include "problem.h"
#include "support/quotaio.h"
#include "itree.h"

struct itree_dirs {
	size_t			count;
	size_t			size;
	struct itree_dir	*dir;	/* in order of inode number */
};

/* Index of @ino, or where to insert it */
static size_t find_slot(const struct itree_dirs *dirs, ext2_ino_t ino)
{
	size_t	lo = 0, hi = dirs->count, mid;

	/* Pass 1 adds inodes in ascending order */
	if (hi && dirs->dir[hi - 1].ino < ino)
		return hi;
	while (lo < hi) {
		mid = lo + (hi - lo) / 2;
		if (dirs->dir[mid].ino < ino)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct itree_dir *e2fsck_itree_find(e2fsck_t ctx, ext2_ino_t ino)
{
	struct itree_dirs	*dirs = ctx->itree_dirs;
	size_t			i;

	if (!dirs)
		return NULL;
	i = find_slot(dirs, ino);
	if (i < dirs->count && dirs->dir[i].ino == ino)
		return &dirs->dir[i];
	return NULL;
}

/* Adds @state to the record of @ino; other records may move. */
static void note_dir(e2fsck_t ctx, ext2_ino_t ino, int state)
{
	struct itree_dirs	*dirs = ctx->itree_dirs;
	struct itree_dir	*it = e2fsck_itree_find(ctx, ino);
	size_t			i, size;
	errcode_t		retval;

	if (it) {
		it->state |= state;
		return;
	}
	if (!dirs)
		dirs = ctx->itree_dirs = e2fsck_allocate_memory(ctx,
					sizeof(*dirs), "itree directories");
	if (dirs->count == dirs->size) {
		size = dirs->size ? dirs->size * 2 : 16;
		retval = ext2fs_resize_mem(dirs->size * sizeof(*it),
					   size * sizeof(*it), &dirs->dir);
		if (retval) {
			fatal_error(ctx, _("Can't allocate itree directory list"));
			return;
		}
		dirs->size = size;
	}
	i = find_slot(dirs, ino);
	memmove(dirs->dir + i + 1, dirs->dir + i,
		(dirs->count - i) * sizeof(*it));
	dirs->count++;
	it = &dirs->dir[i];
	memset(it, 0, sizeof(*it));
	it->ino = ino;
	it->state = state;
}

void e2fsck_itree_free(e2fsck_t ctx)
{
	struct itree_dirs	*dirs = ctx->itree_dirs;

	if (!dirs)
		return;
	if (dirs->dir)
		ext2fs_free_mem(&dirs->dir);
	ext2fs_free_mem(&ctx->itree_dirs);
}

/*
 * Pass 1
 */

/*
 * Without the feature the bit means nothing outside of directories, and old
 * file systems may have it anywhere.  Returns 1 if the inode has to be
 * written.
 */
int e2fsck_itree_check_nondir(e2fsck_t ctx, struct problem_context *pctx)
{
	struct ext2_inode	*inode = pctx->inode;

	if (!ext2fs_has_feature_itree(ctx->fs->super) ||
	    !(inode->i_flags & EXT4_ITREE_FL) ||
	    LINUX_S_ISDIR(inode->i_mode) ||
	    !fix_problem(ctx, PR_1_ITREE_NOT_DIR, pctx))
		return 0;
	inode->i_flags &= ~EXT4_ITREE_FL;
	return 1;
}

/*
 * A segment without the flag is harmless.  The kernel has one while it builds
 * or drops a tree, leaves it when that is interrupted, and after a rename for
 * which there was no space.  So e2scrub, which asks for fixes only, must not
 * call the file system corrupt because of it.
 */
static void check_unused(e2fsck_t ctx, struct problem_context *pctx)
{
	if (!(ctx->options & E2F_OPT_FIXES_ONLY) &&
	    fix_problem(ctx, PR_1_ITREE_UNUSED, pctx))
		note_dir(ctx, pctx->ino, ITREE_DIR_DROP);
}

/*
 * Checks the itree flag of a directory against its segment; @segment is set if
 * blocks are mapped there.  Pass 1 has accounted for them.  Pass 3A frees
 * unused ones, once the free blocks are known.
 *
 * Returns 1 if the inode has to be written.
 */
int e2fsck_itree_check_inode(e2fsck_t ctx, struct problem_context *pctx,
			     int segment)
{
	struct ext2_inode	*inode = pctx->inode;
	problem_t		problem = 0;
	int			todo = segment ? ITREE_DIR_DROP : 0;

	if (!LINUX_S_ISDIR(inode->i_mode))
		return 0;
	if (!(inode->i_flags & EXT4_ITREE_FL)) {
		if (segment)
			check_unused(ctx, pctx);
		return 0;
	}

	if (!ext2fs_has_feature_itree(ctx->fs->super))
		problem = PR_1_ITREE_FEATURE;
	else if (!(inode->i_flags & EXT4_EXTENTS_FL) ||
		 !(inode->i_flags & EXT2_INDEX_FL))
		problem = PR_1_ITREE_NO_HTREE;
	else if (!segment) {
		problem = PR_1_ITREE_NO_SEGMENT;
		todo = ITREE_DIR_BUILD;
	}
	if (!problem) {
		note_dir(ctx, pctx->ino, ITREE_DIR_VERIFY);
		return 0;
	}
	if (!fix_problem(ctx, problem, pctx))
		return 0;
	inode->i_flags &= ~EXT4_ITREE_FL;
	if (todo)
		note_dir(ctx, pctx->ino, todo);
	return 1;
}

/*
 * Pass 2
 */

/*
 * Adds an entry that stays in its directory to the directory's sum.  @hash
 * is the hash of its name.
 */
void e2fsck_itree_add_entry(struct itree_dir *it,
			    struct ext2_dir_entry *dirent,
			    ext2_dirhash_t hash)
{
	int	len = ext2fs_dirent_name_len(dirent);

	if (dirent->name[0] == '.' &&
	    (len == 1 || (len == 2 && dirent->name[1] == '.')))
		return;
	it->keys++;
	it->hash += ext2fs_itree_hash_key(((__u64) dirent->inode << 32) |
					  (hash & ~1U));
}

/* The same for an entry whose hash has not been computed. */
void e2fsck_itree_hash_entry(e2fsck_t ctx, struct itree_dir *it,
			     struct ext2_dir_entry *dirent, int casefold)
{
	ext2_filsys	fs = ctx->fs;
	ext2_dirhash_t	hash;

	if (it->hashversion == EXT2_HASH_SIPHASH)
		hash = EXT2_DIRENT_HASH(dirent);
	else if (ext2fs_dirhash2(it->hashversion, dirent->name,
				 ext2fs_dirent_name_len(dirent), fs->encoding,
				 casefold ? EXT4_CASEFOLD_FL : 0,
				 fs->super->s_hash_seed, &hash, NULL))
		return;
	e2fsck_itree_add_entry(it, dirent, hash);
}

/*
 * Checks the nodes of one tree, then its keys.  Returns 0 if the tree is good,
 * the problem otherwise.
 */
static problem_t check_tree(e2fsck_t ctx, struct itree_dir *it,
			    struct problem_context *pctx)
{
	ext2_filsys			fs = ctx->fs;
	struct ext2fs_itree_report	report;
	struct ext2fs_itree_fault	fault;
	struct ext2fs_itree_info	info;
	ext2fs_itree			tree;
	int				version = it->hashversion;

	pctx->errcode = ext2fs_itree_open(fs, it->ino, &fault, &tree);
	if (!pctx->errcode) {
		ext2fs_itree_get_info(tree, &info);
		pctx->errcode = ext2fs_itree_verify(tree, &report, &fault);
		ext2fs_itree_close(tree);
	}
	if (pctx->errcode == EXT2_ET_ITREE_CORRUPT) {
		pctx->str = fault.why ? fault.why : "?";
		pctx->blk = fault.lblk;
		return PR_2_ITREE_CORRUPT;
	}
	if (pctx->errcode)
		return PR_2_ITREE_READ;

	if (version >= EXT2_HASH_LEGACY_UNSIGNED &&
	    version <= EXT2_HASH_TEA_UNSIGNED)
		version -= EXT2_HASH_LEGACY_UNSIGNED;
	if (info.hash_version != version) {
		pctx->str = "wrong hash version";
		pctx->blk = EXT2FS_ITREE_START;
		return PR_2_ITREE_CORRUPT;
	}
	if (report.keys == it->keys && report.hash == it->hash)
		return 0;
	pctx->num = report.keys;
	pctx->blk2 = it->keys;
	return PR_2_ITREE_CONTENTS;
}

/* Compares every tree with the sums of its directory's entries. */
void e2fsck_itree_check_dirs(e2fsck_t ctx)
{
	struct itree_dirs	*dirs = ctx->itree_dirs;
	struct problem_context	pctx;
	struct ext2_inode	inode;
	struct itree_dir	*it;
	problem_t		problem;
	size_t			i;

	if (!dirs)
		return;
	clear_problem_context(&pctx);
	for (i = 0; i < dirs->count; i++) {
		it = &dirs->dir[i];
		if (ctx->flags & E2F_FLAG_SIGNAL_MASK)
			return;
		/* A tree with multiply-claimed blocks has been dropped */
		if (!(it->state & ITREE_DIR_VERIFY) ||
		    (it->state & ITREE_DIR_DROP) ||
		    !ext2fs_test_inode_bitmap2(ctx->inode_dir_map, it->ino))
			continue;
		e2fsck_read_inode(ctx, it->ino, &inode, "itree");
		pctx.ino = it->ino;
		pctx.inode = &inode;
		/* Pass 2 has cleared the htree, so the tree has to go, too */
		if (!(inode.i_flags & EXT2_INDEX_FL)) {
			it->state |= ITREE_DIR_DROP | ITREE_DIR_BUILD;
			continue;
		}
		problem = check_tree(ctx, it, &pctx);
		if (!problem)
			continue;
		/* Don't ask about differences that pass 2 itself has caused */
		if ((problem == PR_2_ITREE_CONTENTS &&
		     (it->state & ITREE_DIR_CHANGED)) ||
		    fix_problem(ctx, problem, &pctx))
			it->state |= ITREE_DIR_DROP | ITREE_DIR_BUILD;
	}
}

/*
 * Pass 1D, 3 and 3A
 */

/* Is the segment of a directory already marked to be dropped? */
int e2fsck_itree_is_unused(e2fsck_t ctx, ext2_ino_t dir)
{
	struct itree_dir	*it = e2fsck_itree_find(ctx, dir);

	return it && (it->state & ITREE_DIR_DROP);
}

static errcode_t count_blocks(e2fsck_t ctx, ext2_ino_t dir, __u64 *bytes)
{
	struct ext2_inode	inode;
	errcode_t		retval;

	retval = ext2fs_read_inode(ctx->fs, dir, &inode);
	if (!retval)
		*bytes = ext2fs_get_stat_i_blocks(ctx->fs, &inode) << 9;
	return retval;
}

/* Updates quota for a directory that had @before bytes before a change. */
static errcode_t account(e2fsck_t ctx, ext2_ino_t dir, __u64 before)
{
	struct ext2_inode_large	inode;
	errcode_t		retval;
	__u64			after;

	retval = count_blocks(ctx, dir, &after);
	if (!retval)
		retval = ext2fs_read_inode_full(ctx->fs, dir,
						EXT2_INODE(&inode),
						sizeof(inode));
	if (retval)
		return retval;
	if (after > before)
		quota_data_add(ctx->qctx, &inode, dir, after - before);
	else if (after < before)
		quota_data_sub(ctx->qctx, &inode, dir, before - after);
	return 0;
}

/* Drops the tree and frees its blocks, or builds one, from @keys if given. */
static errcode_t change_tree(e2fsck_t ctx, ext2_ino_t dir, int build,
			     __u64 *keys, __u64 count)
{
	errcode_t		retval, retval2;
	__u64			before;

	e2fsck_read_bitmaps(ctx);
	retval = count_blocks(ctx, dir, &before);
	if (retval)
		return retval;
	if (!build)
		retval = ext2fs_itree_drop(ctx->fs, dir);
	else if (keys)
		retval = ext2fs_itree_build_keys(ctx->fs, dir, keys, count);
	else
		retval = ext2fs_itree_build(ctx->fs, dir);
	retval2 = account(ctx, dir, before);
	return retval ? retval : retval2;
}

/*
 * Call this before a directory grows, gets another entry or loses one.  Pass 3A
 * rebuilds a tree that is dropped this way.
 */
errcode_t e2fsck_itree_drop(e2fsck_t ctx, ext2_ino_t dir)
{
	struct ext2_inode	inode;
	errcode_t		retval;

	if (!ext2fs_has_feature_itree(ctx->fs->super) &&
	    !e2fsck_itree_is_unused(ctx, dir))
		return 0;
	retval = ext2fs_read_inode(ctx->fs, dir, &inode);
	if (retval)
		return retval;
	if (inode.i_flags & EXT4_ITREE_FL)
		note_dir(ctx, dir, ITREE_DIR_DROP | ITREE_DIR_BUILD);
	return change_tree(ctx, dir, 0, NULL, 0);
}

/* Should a directory that is being packed into @blocks blocks have a tree? */
int e2fsck_itree_wanted(e2fsck_t ctx, ext2_ino_t dir, __u64 blocks)
{
	struct itree_dir	*it = e2fsck_itree_find(ctx, dir);

	if (!ext2fs_has_feature_itree(ctx->fs->super) ||
	    (ctx->options & E2F_OPT_NO))
		return 0;
	return (it && (it->state & ITREE_DIR_VERIFY)) ||
		blocks >= ITREE_BUILD_BLOCKS;
}

/*
 * Call this after a directory has been packed and written.  @keys holds its
 * @count keys, or is NULL if memory was short; then the end of the pass reads
 * the directory again to build its tree.
 */
void e2fsck_itree_rehashed(e2fsck_t ctx, ext2_ino_t dir, __u64 blocks,
			   __u64 *keys, __u64 count)
{
	struct ext2_inode	inode;
	struct itree_dir	*it;

	if (!e2fsck_itree_wanted(ctx, dir, blocks) ||
	    ext2fs_read_inode(ctx->fs, dir, &inode) ||
	    ext2fs_itree_check_dir(ctx->fs, dir, &inode))
		return;
	if (!keys || change_tree(ctx, dir, 1, keys, count)) {
		note_dir(ctx, dir, ITREE_DIR_BUILD);
		return;
	}
	it = e2fsck_itree_find(ctx, dir);
	if (it)
		it->state &= ~(ITREE_DIR_DROP | ITREE_DIR_BUILD);
}

/* Frees the segments and builds the trees that the passes have recorded. */
void e2fsck_itree_rebuild(e2fsck_t ctx)
{
	struct itree_dirs	*dirs = ctx->itree_dirs;
	struct problem_context	pctx;
	struct ext2_inode	inode;
	struct itree_dir	*it;
	int			state;
	size_t			i;

	if (!dirs || (ctx->options & E2F_OPT_NO))
		return;
	clear_problem_context(&pctx);
	for (i = 0; i < dirs->count; i++) {
		it = &dirs->dir[i];
		state = it->state;
		if (!(state & (ITREE_DIR_DROP | ITREE_DIR_BUILD)))
			continue;
		it->state = 0;
		pctx.ino = pctx.dir = it->ino;
		if (!ext2fs_test_inode_bitmap2(ctx->inode_dir_map, it->ino))
			continue;
		pctx.errcode = change_tree(ctx, it->ino, 0, NULL, 0);
		if (!pctx.errcode && (state & ITREE_DIR_BUILD)) {
			pctx.errcode = ext2fs_read_inode(ctx->fs, it->ino,
							 &inode);
			/* A directory without an htree by now needs no tree */
			if (!pctx.errcode &&
			    !ext2fs_itree_check_dir(ctx->fs, it->ino, &inode))
				pctx.errcode = change_tree(ctx, it->ino, 1,
							   NULL, 0);
		}
		if (pctx.errcode)
			fix_problem(ctx, PR_3A_ITREE_BUILD, &pctx);
	}
}
