// SPDX-License-Identifier: GPL-2.0-only
/* What the test programs share: checks, cases, random numbers. */
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#define TIME_LIMIT 600 /* seconds a case */

char test_note[256];
bool test_abort;

static unsigned int cases, failures;

void test_fail(const char *file, int line, const char *fmt, ...)
{
	const char *slash = strrchr(file, '/');
	va_list ap;

	printf("# %s:%d: ", slash ? slash + 1 : file, line);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	if (test_note[0])
		printf(" [%s]", test_note);
	printf("\n");
	fflush(stdout);
	if (test_abort)
		abort();
	_exit(1);
}

void test_run(const char *name, void (*fn)(void *arg), void *arg)
{
	const char *only = getenv("ITREE_ONLY");
	int status;
	pid_t pid;

	if (only && *only && !strstr(name, only))
		return;
	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (!pid) {
		alarm((unsigned int)env_u64("ITREE_TIME_LIMIT", TIME_LIMIT));
		fn(arg);
		fflush(stdout);
		exit(0);
	}
	if (waitpid(pid, &status, 0) != pid) {
		perror("waitpid");
		exit(2);
	}
	cases++;
	if (status) {
		failures++;
		if (WIFSIGNALED(status))
			printf("# killed by signal %d%s\n", WTERMSIG(status),
			       WTERMSIG(status) == SIGALRM ? ", too slow" : "");
	}
	printf("%s %u - %s\n", status ? "not ok" : "ok", cases, name);
	fflush(stdout);
	if (status && getenv("ITREE_STOP"))
		exit(1);
}

int test_done(void)
{
	printf("1..%u\n", cases);
	return failures || !cases;
}

u64 env_u64(const char *name, u64 otherwise)
{
	const char *s = getenv(name);

	return s && *s ? strtoull(s, NULL, 0) : otherwise;
}

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014) */
u64 rng_next(struct rng *r)
{
	u64 z = r->s += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

u64 rng_below(struct rng *r, u64 n)
{
	return n ? rng_next(r) % n : 0;
}

void *xcalloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p) {
		perror("calloc");
		abort();
	}
	return p;
}

void *xrealloc(void *p, size_t size)
{
	p = realloc(p, size ? size : 1);
	if (!p) {
		perror("realloc");
		abort();
	}
	return p;
}
