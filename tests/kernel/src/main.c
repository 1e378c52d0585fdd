// SPDX-License-Identifier: GPL-2.0-only
/*
 * itree-t - what the kernel tests do inside the guest
 *
 * itree-t SUBCOMMAND [options]; see tests/kernel/README.md. Lines on standard
 * output: "FAIL: what", "STAT: key number", "DIED: why". Exit code 0: nothing
 * found, 1: findings, 2: it could not do its work.
 */
#include "t.h"

#include <getopt.h>

static const struct {
	const char *name;
	int (*run)(struct opts *o);
} commands[] = {
	{ "fill", cmd_fill },	    { "age", cmd_age },
	{ "links", cmd_links },	    { "empty", cmd_empty },
	{ "list", cmd_list },	    { "self", cmd_self },
	{ "dump", cmd_dump },	    { "lookup", cmd_lookup },
	{ "pass", cmd_pass },	    { "ops", cmd_ops },
	{ "over", cmd_over },	    { "loop", cmd_loop },
	{ "seek", cmd_seek },	    { "rewind", cmd_rewind },
	{ "morph", cmd_morph },	    { "hold", cmd_hold },
	{ "stress", cmd_stress },   { "space", cmd_space },
	{ "durable", cmd_durable }, { "collide", cmd_collide },
	{ "crypt", cmd_crypt },	    { "damaged", cmd_damaged },
};

enum { O_ORDER = 256, O_COOKIES, O_SEEK, O_NOKEY, O_SUBSET, O_MIXED, O_BELOW };

static const struct option longopts[] = {
	{ "dir", required_argument, NULL, 'd' },
	{ "model", required_argument, NULL, 'f' },
	{ "aux", required_argument, NULL, 'x' },
	{ "out", required_argument, NULL, 'o' },
	{ "mode", required_argument, NULL, 'M' },
	{ "fsck", required_argument, NULL, 'F' },
	{ "plan", required_argument, NULL, 'P' },
	{ "names", required_argument, NULL, 's' },
	{ "seed", required_argument, NULL, 'S' },
	{ "n", required_argument, NULL, 'n' },
	{ "m", required_argument, NULL, 'm' },
	{ "percent", required_argument, NULL, 'p' },
	{ "dirs", required_argument, NULL, 'D' },
	{ "seconds", required_argument, NULL, 't' },
	{ "readers", required_argument, NULL, 'r' },
	{ "writers", required_argument, NULL, 'w' },
	{ "buf", required_argument, NULL, 'b' },
	{ "api", required_argument, NULL, 'a' },
	{ "order", no_argument, NULL, O_ORDER },
	{ "cookies", no_argument, NULL, O_COOKIES },
	{ "seek-each", no_argument, NULL, O_SEEK },
	{ "nokey", no_argument, NULL, O_NOKEY },
	{ "subset", no_argument, NULL, O_SUBSET },
	{ "mixed", no_argument, NULL, O_MIXED },
	{ "below", no_argument, NULL, O_BELOW },
	{}
};

static void option(struct opts *o, int c)
{
	switch (c) {
	case 'd':
		o->dir = optarg;
		break;
	case 'f':
		o->model = optarg;
		break;
	case 'x':
		o->aux = optarg;
		break;
	case 'o':
		o->out = optarg;
		break;
	case 'M':
		o->mode = optarg;
		break;
	case 'F':
		o->fsck = optarg;
		break;
	case 'P':
		o->plan = optarg;
		break;
	case 's':
		o->style = style_of(optarg);
		break;
	case 'S':
		o->seed = strtoull(optarg, NULL, 0);
		break;
	case 'n':
		o->n = strtoull(optarg, NULL, 0);
		break;
	case 'm':
		o->m = strtoull(optarg, NULL, 0);
		break;
	case 'p':
		o->percent = strtoul(optarg, NULL, 0);
		break;
	case 'D':
		o->ndirs = strtoul(optarg, NULL, 0);
		break;
	case 't':
		o->seconds = strtoul(optarg, NULL, 0);
		break;
	case 'r':
		o->readers = strtoul(optarg, NULL, 0);
		break;
	case 'w':
		o->writers = strtoul(optarg, NULL, 0);
		break;
	case 'b':
		o->check.size = strtoul(optarg, NULL, 0);
		break;
	case 'a':
		o->check.api = api_of(optarg);
		break;
	case O_ORDER:
		o->check.order = true;
		break;
	case O_COOKIES:
		o->check.cookies = true;
		break;
	case O_SEEK:
		o->check.seek = true;
		break;
	case O_NOKEY:
		o->check.nokey = true;
		break;
	case O_SUBSET:
		o->check.subset = true;
		break;
	case O_MIXED:
		o->mixed = true;
		break;
	case O_BELOW:
		o->below = true;
		break;
	default:
		errno = EINVAL;
		die("bad option");
	}
}

int main(int argc, char **argv)
{
	struct opts o = { .seed = 1,
			  .style = S_SKEW,
			  .ndirs = 2,
			  .readers = 2,
			  .writers = 4,
			  .seconds = 60,
			  .percent = 30,
			  .check = check_default };
	int c, ret;

	setvbuf(stdout, NULL, _IOLBF, 0);
	umask(0);
	if (argc < 2) {
		errno = EINVAL;
		die("usage: itree-t SUBCOMMAND [options]");
	}
	optind = 2;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
		option(&o, c);
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(argv[1], commands[i].name))
			continue;
		ret = commands[i].run(&o);
		if (findings)
			stat_num("findings", findings);
		return ret ?: findings ? 1 : 0;
	}
	errno = EINVAL;
	die("no subcommand %s", argv[1]);
}
