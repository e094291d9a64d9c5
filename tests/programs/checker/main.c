// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checker: reads, writes and discards pages of a device or of its own memory from
 * several threads at once, and knows of each page what it may hold.  Ends with status 1
 * at the first page that is lost, stale, exchanged or altered, else reads every
 * page once more.  What it prints is JSON; what it finds it says on stderr.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include "../walk.h"
#include "checker.h"

static const char usage[] =
	"usage: checker [OPTIONS] FILE | checker [OPTIONS] --memory MIB\n"
	"  --seconds N     how long; 0 (default): until SIGTERM\n"
	"  --threads N     1 to 32, default 4\n"
	"  --seed N        of the order of operations\n"
	"  --pause US      between two operations of a thread\n"
	"  --progress S    a line each S seconds\n"
	"  --errors        failed reads and writes are counted, not the end\n";

void checker_print(const struct checker *c, int bad, double seconds)
{
	const struct checker_counts *n = &c->count;
	const struct { const char *key; uint64_t value; } list[] = {
		{ "pages", c->target.pages },
		{ "reads", n->reads },
		{ "writes", n->writes },
		{ "discards", n->discards },
		{ "pages_read", n->pages_read },
		{ "pages_written", n->pages_written },
		{ "pages_discarded", n->pages_discarded },
		{ "same_filled", n->same_filled },
		{ "read_errors", n->read_errors },
		{ "write_errors", n->write_errors },
		{ "skipped", n->skipped },
		{ "verified", n->verified },
	};

	printf("{\"bad\":%d,\"seconds\":%.1f,\"seed\":%" PRIu64, bad, seconds, c->options.seed);
	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
		printf(",\"%s\":%" PRIu64, list[i].key, list[i].value);
	printf("}\n");
}

static uint64_t options_read(struct checker_options *o, int argc, char **argv)
{
	enum { SECONDS = 256, THREADS, SEED, PAUSE, PROGRESS, ERRORS, MEMORY };
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, SECONDS },
		{ "threads", required_argument, NULL, THREADS },
		{ "seed", required_argument, NULL, SEED },
		{ "pause", required_argument, NULL, PAUSE },
		{ "progress", required_argument, NULL, PROGRESS },
		{ "errors", no_argument, NULL, ERRORS },
		{ "memory", required_argument, NULL, MEMORY },
		{ 0 },
	};
	uint64_t mib = 0;
	int c;

	*o = (struct checker_options){ .threads = 4, .seed = 1 };
	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (c) {
		case SECONDS:
			o->seconds = (uint32_t)number("checker", "--seconds", optarg, 1000000);
			break;
		case THREADS:
			o->threads = (uint32_t)number("checker", "--threads", optarg, CHECKER_THREADS);
			break;
		case SEED:
			o->seed = number("checker", "--seed", optarg, UINT64_MAX);
			break;
		case PAUSE:
			o->pause_us = (uint32_t)number("checker", "--pause", optarg, 1000000);
			break;
		case PROGRESS:
			o->progress = (uint32_t)number("checker", "--progress", optarg, 1000000);
			break;
		case ERRORS:
			o->tolerate_errors = true;
			break;
		case MEMORY:
			mib = number("checker", "--memory", optarg, STAMP_PAGES / 256);
			break;
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (!o->threads || (mib ? argc != optind : argc != optind + 1)) {
		fputs(usage, stderr);
		exit(2);
	}
	return mib;
}

int main(int argc, char **argv)
{
	struct checker c = { 0 };
	uint64_t mib = options_read(&c.options, argc, argv);
	uint32_t pages = (uint32_t)(mib * 256), device;
	sigset_t set;
	int r = 0;

	if (mib && pages / CHECKER_CLUSTER < c.options.threads) {
		fprintf(stderr, "checker: --memory: each thread needs 2 MiB\n");
		return 2;
	}
	/* Stops the load if the parent is killed. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Before there are threads: they are to leave the signals alone. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (!mib) {
		r = target_open(&c.target, argv[optind]);
		pages = c.target.pages;
	}
	if (!r && getrandom(&device, sizeof(device), 0) != sizeof(device))
		r = -errno;
	if (!r)
		r = history_init(&c.history, device, pages);
	if (!r && mib)
		r = target_map(&c.target, pages);
	if (!r)
		r = checker_run(&c);
	if (r) {
		fprintf(stderr, "checker: %s: %s\n", mib ? "memory" : argv[optind], strerror(-r));
		return 3;
	}
	history_free(&c.history);
	return 0;
}
