// SPDX-License-Identifier: GPL-2.0-only
/*
 * changing - list a directory, at rest or while another process changes it
 *
 * Prints how many names getdents64 returned, in how many calls, and how many
 * nanoseconds this process ran on a processor: under QEMU's -icount shift=0
 * these are instructions (see insn.c). The other process is not included. The
 * directory is read once before, so that it is in memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct listing {
	uint64_t names;
	uint64_t calls;
	uint64_t ran;
};

static void die(const char *what)
{
	fprintf(stderr, "changing: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Nanoseconds that this process has run. */
static uint64_t ran(void)
{
	uint64_t ns;
	FILE *in;

	/* the kernel updates the counter when the process stops running */
	usleep(1000);
	in = fopen("/proc/self/schedstat", "re");
	if (!in || fscanf(in, "%" SCNu64, &ns) != 1)
		die("/proc/self/schedstat");
	fclose(in);
	return ns;
}

/* Creates and removes a name, per_second times a second, until killed. */
static void change(const char *dir, unsigned long per_second)
{
	struct timespec pause = { .tv_nsec = 1000000000L / (long)per_second };
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/changing", dir);
	while (1) {
		fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		if (fd < 0 || close(fd) || unlink(path))
			die(path);
		nanosleep(&pause, NULL);
	}
}

static struct listing list(const char *dir, size_t size)
{
	struct listing l = { 0 };
	char *buf = malloc(size);
	uint64_t begin;
	long got, at;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (!buf || fd < 0)
		die(dir);
	begin = ran();
	while ((got = syscall(SYS_getdents64, fd, buf, size)) > 0) {
		l.calls++;
		for (at = 0; at < got; l.names++) {
			uint16_t len;

			memcpy(&len, buf + at + 16, sizeof(len));
			at += len;
		}
	}
	if (got < 0)
		die(dir);
	l.ran = ran() - begin;
	close(fd);
	free(buf);
	return l;
}

int main(int argc, char **argv)
{
	unsigned long size, per_second;
	struct listing l;
	pid_t pid = 0;

	if (argc != 4 || argv[1][0] == '-') {
		fputs("usage: changing DIRECTORY BYTES CHANGES\n"
		      "Lists DIRECTORY by calls of so many BYTES, while a name is created and removed\n"
		      "CHANGES times a second (0: none), and prints one JSON object.\n",
		      stderr);
		return 2;
	}
	size = strtoul(argv[2], NULL, 10);
	per_second = strtoul(argv[3], NULL, 10);
	list(argv[1], size);
	if (per_second) {
		pid = fork();
		if (pid < 0)
			die("fork");
		if (pid == 0)
			change(argv[1], per_second);
	}
	l = list(argv[1], size);
	if (pid) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	printf("{\"names\": %" PRIu64 ", \"calls\": %" PRIu64
	       ", \"ran\": %" PRIu64 "}\n",
	       l.names, l.calls, l.ran);
	return 0;
}
