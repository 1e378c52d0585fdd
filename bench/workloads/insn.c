// SPDX-License-Identifier: GPL-2.0-only
/*
 * insn - run a command and tell for how long the machine's tasks ran meanwhile
 *
 * For guests with one processor under QEMU's -icount shift=0, where a
 * nanosecond of the guest's clock is an instruction: the nanoseconds that
 * tasks ran are the instructions executed, by the command, by its children, by
 * the kernel for them and by its threads (write-back, journal). Waiting is not
 * in it; the clock, and with it the time stamp counter, goes on then. On any
 * other machine the figure is time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
	fprintf(stderr, "insn: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Nanoseconds that tasks ran on processor 0: the seventh figure of its line. */
static uint64_t ran(void)
{
	uint64_t told = 0;
	char line[512];
	int found = 0;
	FILE *in;

	/* what this process ran is counted when it stops running */
	usleep(1000);
	in = fopen("/proc/schedstat", "re");
	if (!in)
		die("/proc/schedstat");
	while (!found && fgets(line, sizeof(line), in))
		found = sscanf(line, "cpu0 %*u %*u %*u %*u %*u %*u %" SCNu64,
			       &told) == 1;
	fclose(in);
	if (!found) {
		fputs("insn: /proc/schedstat does not tell how long tasks ran\n",
		      stderr);
		exit(1);
	}
	return told;
}

int main(int argc, char **argv)
{
	uint64_t begin, end;
	int status;
	FILE *out;
	pid_t pid;

	if (argc < 3 || argv[1][0] == '-') {
		fputs("usage: insn FILE COMMAND [ARGUMENT]...\n"
		      "Runs COMMAND and writes the count to FILE.\n",
		      stderr);
		return 2;
	}
	begin = ran();
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		execvp(argv[2], argv + 2);
		die(argv[2]);
	}
	if (waitpid(pid, &status, 0) < 0)
		die("waitpid");
	end = ran();
	out = fopen(argv[1], "we");
	if (!out || fprintf(out, "%" PRIu64 "\n", end - begin) < 0 ||
	    fclose(out))
		die(argv[1]);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
