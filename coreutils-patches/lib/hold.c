// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Files held open until their turn comes.
 *
 * When file data needs memory, dentries are reclaimed first.  Opening a file
 * without its dentry reads the directory again, at random.  An open file pins
 * its dentry and its inode.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "hold.h"

#include "diskorder.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

/* Waits are checked each time after this many files. */
#define SOME 16
/* Waits of that many files, if their inodes lie close together. */
#define USUAL 1
/* The most waits of reading names that are in memory. */
#define FEW 4

/* All holds of a process share its limit of open files, so its state is here. */
static struct {
	pthread_mutex_t lock;
	struct rlimit before; /* the limit before the first hold */
	rlim_t raised; /* what we have raised it to; 0: not raised */
	rlim_t granted; /* files granted to all holds */
} limits = { .lock = PTHREAD_MUTEX_INITIALIZER };
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Restores the limit, unless the program has changed it itself. */
static void restore_limit(void)
{
	struct rlimit now;

	if (limits.raised && !getrlimit(RLIMIT_NOFILE, &now) &&
	    now.rlim_cur == limits.raised)
		setrlimit(RLIMIT_NOFILE, &limits.before);
	limits.raised = 0;
}

static void before_fork(void)
{
	pthread_mutex_lock(&limits.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&limits.lock);
}

/*
 * A child may run a program that uses select(), or that closes all descriptors
 * up to the limit.
 */
static void in_child(void)
{
	restore_limit();
	pthread_mutex_unlock(&limits.lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

/* Grants a hold up to wanted more open files; limits.lock is held. */
static rlim_t grant(rlim_t wanted)
{
	struct rlimit limit;
	rlim_t more;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	if (!limits.granted ||
	    (limits.raised && limits.raised != limit.rlim_cur)) {
		limits.before = limit;
		limits.raised = 0;
	}
	if (limit.rlim_cur == RLIM_INFINITY)
		return wanted;
	more = limits.before.rlim_cur + limits.granted + wanted;
	if (more > limit.rlim_max)
		more = limit.rlim_max;
	if (more > limit.rlim_cur) {
		limit.rlim_cur = more;
		if (setrlimit(RLIMIT_NOFILE, &limit))
			getrlimit(RLIMIT_NOFILE, &limit);
		else
			limits.raised = more;
	}
	/* Use what was added to the limit, or half of the limit if more. */
	more = limit.rlim_cur - limits.before.rlim_cur;
	if (more < limit.rlim_cur / 2)
		more = limit.rlim_cur / 2;
	more -= more < limits.granted ? more : limits.granted;
	return more < wanted ? more : wanted;
}

/* Returns how many of the wanted files this process may hold open. */
static uint32_t allow(uint32_t wanted)
{
	size_t handles = dorder_handles();
	rlim_t allowed;

	if (wanted > handles)
		wanted = handles;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&limits.lock);
	allowed = grant(wanted);
	limits.granted += allowed;
	pthread_mutex_unlock(&limits.lock);
	return allowed;
}

/* Returns slots that were granted. */
static void give_back(uint32_t allowed)
{
	pthread_mutex_lock(&limits.lock);
	limits.granted -= allowed;
	if (!limits.granted)
		restore_limit();
	pthread_mutex_unlock(&limits.lock);
}

bool dorder_hold_start(struct dorder_hold *hold, uint32_t slots)
{
	uint32_t n;

	hold->files = dorder_pages(slots * sizeof(*hold->files));
	if (!hold->files)
		return false;
	for (n = 0; n < slots; n++)
		hold->files[n] = -1;
	hold->slots = slots;
	hold->count = 0;
	hold->most = allow(slots);
	return true;
}

/* Returns how often this thread has waited since the last call. */
static long waits_since(struct dorder_hold *hold)
{
	long before = hold->waits;
	struct rusage used;

	if (getrusage(RUSAGE_THREAD, &used))
		return 0;
	hold->waits = used.ru_nvcsw;
	return hold->waits - before;
}

void dorder_hold_rest(struct dorder_hold *hold)
{
	struct rusage used;

	if (!getrusage(RUSAGE_THREAD, &used))
		hold->rest = used.ru_nvcsw;
}

void dorder_hold_go_on(struct dorder_hold *hold)
{
	struct rusage used;

	if (hold->rest && !getrusage(RUSAGE_THREAD, &used))
		hold->waits += used.ru_nvcsw - hold->rest;
	hold->rest = 0;
}

/* Judges whether reading the names, with the first file or later, helped. */
static void judge(struct dorder_hold *hold, long waits, bool first)
{
	hold->extra = 0;
	hold->reading = false;
	if (waits > FEW) {
		/* The check after the next shows whether that helped. */
		hold->coming = false;
		hold->cost = first ? 0 : waits > SOME ? waits : SOME;
		hold->usual = USUAL;
		hold->pause = 0;
		return;
	}
	/* They were in memory after all. */
	if (!first && hold->limit < 1 << 20)
		hold->limit *= 2;
	if (!first || hold->tight)
		return;
	if (hold->pause < 1 << 10)
		hold->pause = hold->pause ? 2 * hold->pause : 1;
	hold->pass = hold->pause;
}

/*
 * Read the names again only after as many extra waits as reading them cost, and
 * after more if it did not help.
 */
static void settle(struct dorder_hold *hold, long waits)
{
	if (waits <= SOME / 2)
		hold->limit = hold->cost;
	else if (hold->limit < 1 << 20)
		hold->limit = 2 * (hold->limit > hold->cost ? hold->limit
							    : hold->cost);
	hold->cost = 0;
}

bool dorder_hold_lost(struct dorder_hold *hold, uint32_t n)
{
	long waits;

	if (!hold->limit) {
		hold->limit = SOME;
		hold->usual = USUAL;
		waits_since(hold);
	}
	if (!n) {
		waits_since(hold);
		hold->reading = !hold->pass;
		if (hold->pass)
			hold->pass--;
		hold->extra = 0;
		return hold->reading;
	}
	if (hold->reading) {
		judge(hold, waits_since(hold), n == 1);
		return false;
	}
	if (n % SOME)
		return false;
	waits = waits_since(hold);
	if (hold->cost && !hold->coming) {
		/* Earlier requests may still be in flight. */
		hold->coming = true;
		return false;
	}
	if (hold->cost)
		settle(hold, waits);
	if (hold->usual > waits)
		hold->usual = waits;
	hold->extra += waits - hold->usual;
	hold->reading = hold->extra >= hold->limit;
	return hold->reading;
}

void dorder_hold_take(struct dorder_hold *hold, uint32_t at, int fd)
{
	if (fd < 0)
		return;
	if (hold->count == hold->most) {
		close(fd);
		return;
	}
	hold->files[at] = fd;
	hold->count++;
}

void dorder_hold_release(struct dorder_hold *hold, uint32_t at)
{
	if (!hold->files || hold->files[at] < 0)
		return;
	close(hold->files[at]);
	hold->files[at] = -1;
	hold->count--;
}

void dorder_hold_end(struct dorder_hold *hold)
{
	uint32_t n;

	if (!hold->files)
		return;
	for (n = 0; hold->count && n < hold->slots; n++)
		dorder_hold_release(hold, n);
	dorder_pages_free(hold->files, hold->slots * sizeof(*hold->files));
	hold->files = NULL;
	give_back(hold->most);
	hold->most = 0;
}
