// SPDX-License-Identifier: GPL-2.0-only
/*
 * mailmix - what a mail server does with one large maildir
 *
 * Messages are read, delivered (written and synced in another directory, then
 * renamed), marked as seen (renamed), deleted; now and then somebody's client
 * has all names listed. In the manner of the mail server mixes of FFSB that
 * Cao et al. (2005, section 5.2) ran; the shares are ours and stand below.
 * Operations and names follow from the seed alone, so every file system is
 * asked for the same. What was done is printed as one JSON object.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>

#define PROGRAM "mailmix"
#include "names.h"
#include "random.h"

/* of a hundred operations; the rest reads a message */
#define DELIVER 30
#define DELETE 20
#define MARK 5
#define LIST 1

/* a delivered message has up to as many bytes */
#define LARGEST 16384
#define SEEN ":2,S"

static uint64_t random_state = 1;
static char buffer[LARGEST];

struct mailbox {
	int dir, tmp;
	char **names; /* count of them; those that were made here are malloc'd */
	bool *ours;
	uint64_t count, made;
};

struct told {
	uint64_t read, bytes, delivered, deleted, marked, listed, names;
};

static void usage(FILE *to)
{
	fputs("usage: mailmix [options] LIST DIRECTORY TMP\n"
	      "  -k COUNT  operations (default 10000)\n"
	      "  -S SEED   of the operations (default 1)\n"
	      "TMP is made, for messages that are being delivered.\n",
	      to);
}

static uint64_t below(uint64_t limit)
{
	return next_random(&random_state) % limit;
}

static char *made_name(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

static char *made_name(const char *format, ...)
{
	va_list args;
	char *name;

	va_start(args, format);
	if (vasprintf(&name, format, args) < 0)
		die("memory");
	va_end(args);
	return name;
}

static void set_name(struct mailbox *box, uint64_t which, char *name)
{
	if (box->ours[which])
		free(box->names[which]);
	box->names[which] = name;
	box->ours[which] = true;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_message(struct mailbox *box, struct told *told)
{
	const char *name = box->names[below(box->count)];
	int fd = openat(box->dir, name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st))
		die(name);
	while ((n = read(fd, buffer, sizeof(buffer))) > 0)
		told->bytes += (uint64_t)n;
	if (n < 0)
		die(name);
	close(fd);
	told->read++;
}

static void deliver(struct mailbox *box, struct told *told)
{
	uint64_t number = box->made++;
	uint64_t size = 1 + below(LARGEST), done = 0;
	char *name = made_name("%016" PRIx64 ".M%" PRIu64 ".mx",
			       next_random(&random_state), number);
	int fd;

	fd = openat(box->tmp, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0600);
	if (fd < 0)
		die(name);
	while (done < size) {
		ssize_t n = write(fd, buffer, size - done);

		if (n < 0)
			die(name);
		done += (uint64_t)n;
	}
	if (fsync(fd) || close(fd) || renameat(box->tmp, name, box->dir, name))
		die(name);
	box->names[box->count] = name;
	box->ours[box->count++] = true;
	told->delivered++;
}

static void delete_message(struct mailbox *box, struct told *told)
{
	uint64_t which = below(box->count);

	if (unlinkat(box->dir, box->names[which], 0))
		die(box->names[which]);
	set_name(box, which, box->names[--box->count]);
	box->ours[which] = box->ours[box->count];
	told->deleted++;
}

static void mark(struct mailbox *box, struct told *told)
{
	uint64_t which = below(box->count);
	char *name = made_name("%s" SEEN, box->names[which]);

	if (strlen(name) > NAME_MAX) {
		free(name);
		return;
	}
	if (renameat(box->dir, box->names[which], box->dir, name))
		die(name);
	set_name(box, which, name);
	told->marked++;
}

static void list(struct mailbox *box, struct told *told)
{
	int fd = openat(box->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *entry;
	DIR *dir;

	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		die("directory");
	for (errno = 0; (entry = readdir(dir)); errno = 0)
		told->names += entry->d_name[0] != '.';
	if (errno)
		die("directory");
	closedir(dir);
	told->listed++;
}

static void operate(struct mailbox *box, struct told *told)
{
	uint64_t what = below(100);

	/* nothing is there to be read or deleted: mail comes */
	if (what < DELIVER || !box->count)
		deliver(box, told);
	else if (what < DELIVER + DELETE)
		delete_message(box, told);
	else if (what < DELIVER + DELETE + MARK)
		mark(box, told);
	else if (what < DELIVER + DELETE + MARK + LIST)
		list(box, told);
	else
		read_message(box, told);
}

static void open_mailbox(struct mailbox *box, const char *dir, const char *tmp,
			 uint64_t operations)
{
	uint64_t room, i;

	if (mkdir(tmp, 0700) && errno != EEXIST)
		die(tmp);
	box->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	box->tmp = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (box->dir < 0)
		die(dir);
	if (box->tmp < 0)
		die(tmp);
	/* each operation adds one name at most */
	room = box->count + operations + 1;
	box->names = realloc(box->names, room * sizeof(char *));
	box->ours = calloc(room, sizeof(bool));
	if (!box->names || !box->ours)
		die("memory");
	for (i = 0; i < sizeof(buffer); i++)
		buffer[i] = (char)('a' + i % 26);
}

int main(int argc, char **argv)
{
	uint64_t operations = 10000, i;
	struct mailbox box = { 0 };
	struct told told = { 0 };
	char *text;
	size_t size;
	int c;

	while ((c = getopt(argc, argv, "k:S:h")) != -1) {
		switch (c) {
		case 'k':
			operations = parse_number(optarg);
			break;
		case 'S':
			/* zero would stay zero */
			random_state = parse_number(optarg) | 1;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind + 3 != argc) {
		usage(stderr);
		return 2;
	}
	text = read_all(argv[optind], &size);
	box.names = split(text, size, &box.count);
	/* lists are in the order of a directory: another on each file system */
	qsort(box.names, box.count, sizeof(char *), by_name);
	open_mailbox(&box, argv[optind + 1], argv[optind + 2], operations);
	for (i = 0; i < operations; i++)
		operate(&box, &told);
	/* what is left to write-back and the journal is part of the cost */
	if (syncfs(box.dir))
		die("syncfs");
	printf("{\"operations\": %" PRIu64 ", \"read\": %" PRIu64
	       ", \"bytes\": %" PRIu64 ", \"delivered\": %" PRIu64
	       ", \"deleted\": %" PRIu64 ", \"marked\": %" PRIu64
	       ", \"listed\": %" PRIu64 ", \"names\": %" PRIu64
	       ", \"left\": %" PRIu64 "}\n",
	       operations, told.read, told.bytes, told.delivered, told.deleted,
	       told.marked, told.listed, told.names, box.count);
	if (fflush(stdout) || ferror(stdout))
		die("standard output");
	return 0;
}
