// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Readahead of a run of files that are contiguous on the disk.
 *
 * POSIX_FADV_WILLNEED sends a request for each file.  madvise() holds one block
 * plug over all the mappings it walks, so requests of files that are mapped at
 * adjacent addresses merge.  Nothing is ever read through the mappings.
 *
 * Data that is needed only much later is mapped until it has arrived.  Populating
 * the mapping marks each page as accessed, unmapping it does so again, and the
 * second time puts the page on the list of active pages.  Touching the memory
 * instead would raise SIGBUS if the file has been truncated.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/*
 * Maps files side by side.  mmap() updates the time of access: a file for which
 * that cannot be prevented is left out.  Sets *refused if mapping is refused.
 * Returns the bytes mapped at base.
 */
static size_t map_files(char *base, int prot, const int *files,
			const uint32_t *sizes, uint32_t count, bool *mapped,
			bool *refused)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	size_t used = 0, size;
	uint32_t n;
	int flags;

	for (n = 0; n < count; n++) {
		mapped[n] = false;
		flags = *refused ? -1 : fcntl(files[n], F_GETFL);
		if (flags < 0 || !dorder_reads_unseen(files[n], flags))
			continue;
		size = (sizes[n] + page - 1) / page * page;
		mapped[n] =
			mmap(base + used, size, prot, MAP_SHARED | MAP_FIXED,
			     files[n], 0) != MAP_FAILED;
		if (mapped[n])
			used += size;
		else
			/* Don't retry: a security module logs each attempt. */
			*refused = errno != ENOMEM && errno != EAGAIN;
		/* mmap() has looked at the flag; later reads are the caller's. */
		if (!(flags & O_NOATIME))
			(void)fcntl(files[n], F_SETFL, flags);
	}
	return used;
}

void dorder_read_run(const int *files, const uint32_t *sizes, uint32_t count,
		     bool *refused, struct dorder_mapped *mapped)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	size_t size = 0, used = 0;
	bool done[DORDER_AHEAD_FILES] = { false };
	uint32_t n;
	char *base;

	for (n = 0; n < count; n++)
		size += (sizes[n] + page - 1) / page * page;
	base = MAP_FAILED;
	if ((count > 1 || mapped) && !*refused)
		base = mmap(NULL, size, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base != MAP_FAILED) {
		used = map_files(base, mapped ? PROT_READ : PROT_NONE, files,
				 sizes, count, done, refused);
		if (used && madvise(base, used, MADV_WILLNEED))
			used = 0;
		if (!used || !mapped)
			munmap(base, size);
	}
	if (mapped)
		*mapped = (struct dorder_mapped){ used ? base : NULL, size };
	for (n = 0; n < count; n++)
		if (!used || !done[n])
			(void)dorder_will_read(files[n], sizes[n], sizes[n]);
}

void dorder_protect(struct dorder_mapped *mapped)
{
	int saved = errno;

	if (mapped->base) {
		(void)madvise(mapped->base, mapped->size, MADV_POPULATE_READ);
		munmap(mapped->base, mapped->size);
	}
	mapped->base = NULL;
	errno = saved;
}
