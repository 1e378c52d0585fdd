// SPDX-License-Identifier: GPL-2.0-only
/*
 * e4itree.c --- build, drop, check and report the itrees of directories in use
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "e4itree.h"
#include "../version.h"

#define MIN_BLOCKS	16
/* arrange: defaults of --min-files and --max-size (KiB), and its maximum. */
#define MIN_FILES	64
#define MAX_SIZE	128UL
#define MOST_SIZE	16384UL

struct e4itree_options opt;
struct e4itree_sum sum;

static dev_t device;			/* of the current argument */
volatile sig_atomic_t cancelled;

static void on_signal(int sig)
{
	if (sig != SIGALRM)
		cancelled = sig;
	/*
	 * A signal that arrives just before the ioctl does not interrupt it.
	 * The alarm will.
	 */
	if (cancelled)
		alarm(1);
}

static void catch_signals(void)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof(sa));
	sa.sa_handler = on_signal;	/* no SA_RESTART */
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	sigaction(SIGALRM, &sa, NULL);
	/* Sent when another program opens a file that arrange has leased. */
	signal(SIGIO, SIG_IGN);
}

/* --- the operations --- */

/*
 * EXT4_IOC_ITREE.  Any signal ends the ioctl.  After a stop (Ctrl-Z) or a
 * suspend it is restarted.  Returns 0 or an errno, EINTR if the program should
 * end.  @from is for PACK, @diffs has room for MAX_DIFFS or is NULL.
 */
int itree_call(int fd, int op, unsigned int flags, unsigned long long from,
	       struct ext4_itree_args *a, struct ext4_itree_diff *diffs)
{
	int err;

	do {
		memset(a, 0, sizeof(*a));
		a->ia_version = EXT4_ITREE_IOC_VERSION;
		a->ia_op = op;
		a->ia_flags = flags;
		a->ia_from = from;
		if (diffs) {
			a->ia_max_diffs = MAX_DIFFS;
			a->ia_diffs = (unsigned long) diffs;
		}
		err = ioctl(fd, EXT4_IOC_ITREE, a) ? errno : 0;
	} while (err == EINTR && !cancelled);
	return err;
}

/*
 * The kernel does not change an immutable directory, as a locked backup is.
 * Among directories below others, one more is no failure: skips it.
 */
int skip_immutable(int fd, unsigned int dir_blocks)
{
	int flags;

	if (!opt.recursive || ioctl(fd, FS_IOC_GETFLAGS, &flags) ||
	    !(flags & FS_IMMUTABLE_FL))
		return 0;
	skip("immutable", dir_blocks, "is immutable");
	return 1;
}

static void do_build(int fd, const struct ext4_itree_args *st)
{
	const unsigned int built = EXT4_ITREE_HAS_TREE | EXT4_ITREE_CHANGED;
	struct ext4_itree_args a;
	int err, force;

	if ((st->ia_state & EXT4_ITREE_HAS_TREE) && !opt.force &&
	    !(st->ia_state & EXT4_ITREE_BAD)) {
		skip("already", st->ia_dir_blocks, "has a tree already");
		return;
	}
	if (!(st->ia_state & EXT4_ITREE_HAS_TREE) &&
	    st->ia_dir_blocks < opt.min_blocks) {
		skip("small", st->ia_dir_blocks, "too small to gain from a tree (see "
		     "--min-blocks)");
		return;
	}
	/* A directory of this size should have an htree, so report it. */
	if (!(st->ia_state & EXT4_ITREE_POSSIBLE)) {
		fail(ENODATA, "the tree could not be built");
		return;
	}
	if (skip_immutable(fd, st->ia_dir_blocks))
		return;
	if (opt.dry_run) {
		skip("would-build", st->ia_dir_blocks, "would build its tree");
		return;
	}
	progress_show(st->ia_dir_blocks);
	/* Without force, the kernel keeps a tree that it has not seen fail. */
	force = opt.force || (st->ia_state & EXT4_ITREE_BAD);
	err = itree_call(fd, EXT4_ITREE_OP_BUILD,
			 force ? EXT4_ITREE_FORCE : 0, 0, &a, NULL);
	if (err == EINTR)
		return;
	if (err)
		fail(err, "the tree could not be built");
	else if (a.ia_state & EXT4_ITREE_BAD)
		report_bad(&a);
	else if ((a.ia_state & built) == built)
		report_tree("built", &a);
	else if (a.ia_state & EXT4_ITREE_HAS_TREE)
		skip("already", a.ia_dir_blocks, "got a tree in the meantime");
	else
		fail(EAGAIN, "the tree could not be built");
}

static void do_drop(int fd, const struct ext4_itree_args *st)
{
	struct ext4_itree_args a;
	int err;

	if (skip_immutable(fd, st->ia_dir_blocks))
		return;
	if (opt.dry_run) {
		skip(st->ia_state & EXT4_ITREE_HAS_TREE ? "would-drop" :
		     "none", st->ia_dir_blocks, st->ia_state & EXT4_ITREE_HAS_TREE ?
		     "would drop its tree" : "has no tree");
		return;
	}
	progress_show(st->ia_dir_blocks);
	/* Even without a tree: an interrupted build may have left blocks. */
	err = itree_call(fd, EXT4_ITREE_OP_DROP, 0, 0, &a, NULL);
	if (err == EINTR)
		return;
	if (err) {
		fail(err, "the tree could not be dropped");
	} else if ((st->ia_state & EXT4_ITREE_HAS_TREE) ||
		   (a.ia_state & EXT4_ITREE_CHANGED)) {
		a.ia_keys = st->ia_keys;
		a.ia_depth = st->ia_depth;
		a.ia_blocks = st->ia_blocks;
		a.ia_free = st->ia_free;
		report_tree("dropped", &a);
	} else {
		skip("none", a.ia_dir_blocks, "has no tree");
	}
}

static void do_check(int fd, const struct ext4_itree_args *st)
{
	struct ext4_itree_diff diffs[MAX_DIFFS];
	struct ext4_itree_args a;
	int err;

	if (!(st->ia_state & EXT4_ITREE_HAS_TREE)) {
		skip("none", st->ia_dir_blocks, "has no tree");
		return;
	}
	progress_show(st->ia_dir_blocks);
	err = itree_call(fd, EXT4_ITREE_OP_CHECK, 0, 0, &a, diffs);
	if (err == EINTR)
		return;
	if (err)
		fail(err, "the tree could not be checked");
	else if (a.ia_state & EXT4_ITREE_BAD)
		report_bad(&a);
	else if (a.ia_missing || a.ia_extra)
		report_diffs(&a, diffs);
	else
		report_tree("exact", &a);
}

static void do_stat(int fd, struct ext4_itree_args *st)
{
	int err = 0;

	if (!(st->ia_state & EXT4_ITREE_HAS_TREE)) {
		skip("none", st->ia_dir_blocks, "has no tree");
		return;
	}
	if (opt.verify)
		err = itree_call(fd, EXT4_ITREE_OP_STAT, EXT4_ITREE_VERIFY, 0,
				 st, NULL);
	if (err == EINTR)
		return;
	if (err)
		fail(err, "the tree could not be read");
	else if (st->ia_state & EXT4_ITREE_BAD)
		report_bad(st);
	else
		report_stat(st, packed_size(fd, st));
}

/* --- walking --- */

/* Returns 0, or an error that applies to the whole file system. */
static int visit(int fd)
{
	struct ext4_itree_args st;
	int err;

	sum.dirs++;
	progress_show(0);
	if (opt.op == OP_ARRANGE)
		return arrange(fd);
	if (opt.op == EXT4_ITREE_OP_PACK)
		return pack(fd);
	err = itree_call(fd, EXT4_ITREE_OP_STAT, 0, 0, &st, NULL);
	if (err == EINTR)
		return 0;
	if (err == ENOTTY || err == EOPNOTSUPP || err == ENOSYS)
		return err;
	if (err) {
		fail(err, "its state cannot be read");
		return 0;
	}
	switch (opt.op) {
	case EXT4_ITREE_OP_BUILD:
		do_build(fd, &st);
		break;
	case EXT4_ITREE_OP_DROP:
		do_drop(fd, &st);
		break;
	case EXT4_ITREE_OP_CHECK:
		do_check(fd, &st);
		break;
	default:
		do_stat(fd, &st);
	}
	return 0;
}

/* Opens the directory of @fd once more, to read it; NULL with errno. */
DIR *open_listing(int fd)
{
	int err, copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);

	if (!dir && copy >= 0) {
		err = errno;
		close(copy);
		errno = err;
	}
	return dir;
}

struct names {
	struct names *next;
	char	name[];
};

/* Lists the names of a directory's subdirectories. */
static struct names *subdirs(int fd)
{
	struct names *list = NULL, *n;
	struct dirent *de;
	struct stat st;
	DIR *dir;

	/* On ext4, two links mean no subdirectories. */
	if (!fstat(fd, &st) && st.st_nlink == 2)
		return NULL;
	dir = open_listing(fd);
	if (!dir) {
		fail(errno, "cannot be read");
		return NULL;
	}
	while (!cancelled && (errno = 0, de = readdir(dir))) {
		if (de->d_type != DT_DIR && de->d_type != DT_UNKNOWN)
			continue;
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		n = malloc(sizeof(*n) + strlen(de->d_name) + 1);
		if (!n)
			out_of_memory();
		strcpy(n->name, de->d_name);
		n->next = list;
		list = n;
	}
	if (errno && !cancelled)
		fail(errno, "cannot be read");
	closedir(dir);
	return list;
}

static int walk(int at, const char *name)
{
	struct names *list, *next;
	struct stat st;
	size_t len;
	int fd, err;

	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC |
		    O_NONBLOCK);
	if (fd < 0) {
		/* Gone, or not a directory (its type was unknown). */
		if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
			fail(errno, "cannot be opened");
		return 0;
	}
	if (fstat(fd, &st) || st.st_dev != device) {
		close(fd);
		return 0;
	}
	err = visit(fd);
	list = !err && opt.recursive && !cancelled ? subdirs(fd) : NULL;
	for (; list; list = next) {
		next = list->next;
		if (!err && !cancelled) {
			len = path_add(list->name);
			err = walk(fd, list->name);
			path_cut(len);
		}
		free(list);
	}
	close(fd);
	return err;
}

static void start(const char *arg)
{
	struct stat st;
	int fd, err;

	path_cut(0);
	path_add(arg);
	fd = open(arg, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st)) {
		fail(errno, "cannot be opened");
		if (fd >= 0)
			close(fd);
		return;
	}
	device = st.st_dev;
	err = walk(fd, ".");
	close(fd);
	if (err)
		report_lacking(err);
}

/* --- command line --- */

static void usage(FILE *to)
{
	fprintf(to,
"Usage: e4itree build|drop|check|stat|pack|arrange [options] DIRECTORY...\n"
"\n"
"Builds, drops, checks or reports the itrees of directories of mounted ext4\n"
"file systems, shrinks directories from which names have been deleted, or\n"
"puts the data of small files in the order of their inodes.\n"
"Directories and files can be used meanwhile.\n"
"\n"
"  -r, --recursive     also all directories below, on the same file system\n"
"      --min-blocks N  build, pack: only directories of at least N blocks (16)\n"
"  -f, --force         build: rebuild existing trees; pack: for any gain\n"
"      --pace N        pack: work at most N percent of the time (100)\n"
"      --verify        stat: read the whole tree and report how full it is\n"
"      --min-files N   arrange: only directories of at least N small files (64)\n"
"      --max-size N    arrange: only files of at most N KiB (128)\n"
"  -n, --dry-run       build, drop, pack, arrange: only report what would be done\n"
"  -v, --verbose       also report directories that were skipped\n"
"  -q, --quiet         report errors and differences only\n"
"      --progress      show progress even if standard error is no terminal\n"
"  -j, --json          print a JSON object per directory, and a summary\n"
"  -V, --version       show the version\n"
"  -h, --help          show this\n"
"\n"
"Exit code: 0 done; 1 some directories failed or differ; 2 wrong usage;\n"
"3 not supported by the kernel or file system; 128 + N ended by signal N.\n");
}

enum { O_MIN_BLOCKS = 256, O_MIN_FILES, O_MAX_SIZE, O_PACE, O_VERIFY,
       O_PROGRESS };

static const struct option longopts[] = {
	{ "recursive", no_argument, NULL, 'r' },
	{ "min-blocks", required_argument, NULL, O_MIN_BLOCKS },
	{ "min-files", required_argument, NULL, O_MIN_FILES },
	{ "max-size", required_argument, NULL, O_MAX_SIZE },
	{ "force", no_argument, NULL, 'f' },
	{ "pace", required_argument, NULL, O_PACE },
	{ "verify", no_argument, NULL, O_VERIFY },
	{ "dry-run", no_argument, NULL, 'n' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "quiet", no_argument, NULL, 'q' },
	{ "progress", no_argument, NULL, O_PROGRESS },
	{ "json", no_argument, NULL, 'j' },
	{ "version", no_argument, NULL, 'V' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 }
};

static void wrong(const char *what, const char *arg)
{
	fprintf(stderr, "e4itree: %s%s\nTry e4itree --help.\n", what, arg);
	exit(EXIT_USAGE);
}

static void take_op(const char *name)
{
	static const struct {
		const char *name;
		int op;
	} ops[] = {
		{ "stat", EXT4_ITREE_OP_STAT }, { "build", EXT4_ITREE_OP_BUILD },
		{ "drop", EXT4_ITREE_OP_DROP }, { "check", EXT4_ITREE_OP_CHECK },
		{ "pack", EXT4_ITREE_OP_PACK }, { "arrange", OP_ARRANGE },
	};
	size_t i;

	for (i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		if (!strcmp(name, ops[i].name)) {
			opt.op = ops[i].op;
			opt.op_name = ops[i].name;
			return;
		}
	wrong("unknown command ", name);
}

static unsigned long take_number(const char *option, const char *arg)
{
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(arg, &end, 10);
	if (errno || *arg < '0' || *arg > '9' || *end) {
		fprintf(stderr, "e4itree: %s: not a number: %s\n"
			"Try e4itree --help.\n", option, arg);
		exit(EXIT_USAGE);
	}
	return n;
}

static void take_options(int argc, char **argv)
{
	int c, build_only = 0, arrange_only = 0, pack_only = 0;
	int show = isatty(STDERR_FILENO);

	opt.pace = 100;
	opt.min_blocks = MIN_BLOCKS;
	opt.min_files = MIN_FILES;
	opt.max_size = MAX_SIZE << 10;
	while ((c = getopt_long(argc, argv, "rfnvqjVh", longopts, NULL)) != -1)
		switch (c) {
		case 'r':
			opt.recursive = 1;
			break;
		case 'f':
			opt.force = build_only = 1;
			break;
		case O_MIN_BLOCKS:
			opt.min_blocks = take_number("--min-blocks", optarg);
			build_only = 1;
			break;
		case O_MIN_FILES:
			opt.min_files = take_number("--min-files", optarg);
			arrange_only = 1;
			break;
		case O_MAX_SIZE:
			opt.max_size = take_number("--max-size", optarg);
			if (opt.max_size > MOST_SIZE)
				wrong("--max-size: at most 16384: ", optarg);
			opt.max_size <<= 10;
			arrange_only = 1;
			break;
		case O_PACE:
			opt.pace = take_number("--pace", optarg);
			if (!opt.pace || opt.pace > 100)
				wrong("--pace: from 1 to 100: ", optarg);
			pack_only = 1;
			break;
		case O_VERIFY:
			opt.verify = 1;
			break;
		case 'n':
			opt.dry_run = 1;
			break;
		case 'v':
			opt.verbose = 1;
			break;
		case 'q':
			opt.quiet = 1;
			break;
		case 'j':
			opt.json = 1;
			break;
		case O_PROGRESS:
			opt.progress = 1;
			break;
		case 'V':
			printf("e4itree %s (%s)\n", E2FSPROGS_VERSION,
			       E2FSPROGS_DATE);
			exit(EXIT_DONE);
		case 'h':
			usage(stdout);
			exit(fflush(stdout) ? EXIT_SOME : EXIT_DONE);
		default:
			fprintf(stderr, "Try e4itree --help.\n");
			exit(EXIT_USAGE);
		}
	if (optind == argc)
		wrong("build, drop, check, stat, pack or arrange?", "");
	take_op(argv[optind++]);
	if (build_only && opt.op != EXT4_ITREE_OP_BUILD &&
	    opt.op != EXT4_ITREE_OP_PACK)
		wrong("--force and --min-blocks are for build and pack only",
		      "");
	if (pack_only && opt.op != EXT4_ITREE_OP_PACK)
		wrong("--pace is for pack only", "");
	if (arrange_only && opt.op != OP_ARRANGE)
		wrong("--min-files and --max-size are for arrange only", "");
	if (opt.verify && opt.op != EXT4_ITREE_OP_STAT)
		wrong("--verify is for stat only; check verifies always", "");
	if (opt.dry_run && opt.op != EXT4_ITREE_OP_BUILD &&
	    opt.op != EXT4_ITREE_OP_DROP && opt.op != EXT4_ITREE_OP_PACK &&
	    opt.op != OP_ARRANGE)
		wrong("--dry-run: this command changes nothing anyway", "");
	if (optind == argc)
		wrong("no directory given", "");
	opt.progress |= show && !opt.quiet && opt.recursive;
}

int main(int argc, char **argv)
{
	struct rlimit files;

	take_options(argc, argv);
	catch_signals();
	if (opt.op == OP_ARRANGE)
		arrange_be_idle();
	/* The walk keeps a descriptor open for each level of directories. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (; optind < argc && !cancelled; optind++)
		start(argv[optind]);
	report_summary();
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "e4itree: standard output: %s\n",
			strerror(errno));
		return EXIT_SOME;
	}
	if (cancelled)
		return EXIT_SIGNAL + cancelled;
	if (sum.failed)
		return EXIT_SOME;
	if (sum.lacking)
		return sum.done ? EXIT_SOME : EXIT_LACKING;
	return EXIT_DONE;
}
