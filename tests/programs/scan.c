// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * scan: walks memory page by page in a known order and checks every
 * word it reads.  The measuring stick of the system tests and benchmarks: what
 * it reports is what a program would see, not what ebb counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <unistd.h>

#include "walk.h"

#define MAX_PASSES 1024
/* A guard, a link and something between them. */
#define MIN_NODE 64

enum pattern { SEQ, REVERSE, STRIDE, RANDOM, CHASE };

struct scan {
	enum pattern pattern;
	const char *pattern_name;
	uint64_t stride;
	uint64_t bytes;
	uint64_t node;          /* bytes of what is called a page below; PAGE but for --node */
	int words;              /* in a node */
	uint64_t pages;
	uint64_t passes, warm;  /* the first @warm of them are not measured */
	const char *mark;
	const char *kind;       /* of memory */
	uint64_t seed;
	uint64_t slow_ns;
	useconds_t rest_us;
	bool write, json, pause, latency, hold;
	int thp;                /* madvise() advice, 0 = as the system says */

	uint64_t *memory;
	uint32_t *generation;   /* how often each page was rewritten; only with --write */
	uint32_t *samples;      /* ns of each visit; only with --latency */
	uint64_t visits, bad;
	double pass_us[MAX_PASSES];
};

static uint64_t page_base(const struct scan *s, uint64_t page)
{
	uint64_t generation = s->generation ? s->generation[page] : 0;

	return (s->seed << 32 ^ page ^ generation << 40) * MIX;
}

/*
 * Word 0 holds the page to visit next (itself but for a chase), the last word
 * guards it, and those between depend on page, seed and generation.
 */
static void page_fill(struct scan *s, uint64_t page, uint64_t next)
{
	uint64_t *w = s->memory + page * s->words;
	uint64_t base = page_base(s, page);
	int last = s->words - 1;

	w[0] = next;
	for (int i = 1; i < last; i++)
		w[i] = base + i;
	w[last] = base ^ next;
}

/* Returns word 0 and counts the words that are wrong. */
static uint64_t page_check(struct scan *s, uint64_t page)
{
	const uint64_t *w = s->memory + page * s->words;
	uint64_t base = page_base(s, page), next = w[0], bad = 0;
	int last = s->words - 1;

	for (int i = 1; i < last; i++)
		bad += w[i] != base + i;
	bad += w[last] != (base ^ next);
	if (s->pattern != CHASE)
		bad += next != page;
	else if (next >= s->pages) {
		bad++;
		next = 0;
	}
	if (bad && !s->bad)
		fprintf(stderr, "scan: page %" PRIu64 ": %" PRIu64 " words differ\n", page, bad);
	s->bad += bad;
	return next;
}

/* A visiting order that is one cycle through all pages (Sattolo 1986). */
static uint32_t *random_cycle(uint64_t pages, uint64_t seed)
{
	uint32_t *next = malloc(pages * sizeof(*next));
	uint64_t state = seed * MIX | 1;

	if (!next)
		return NULL;
	for (uint64_t i = 0; i < pages; i++)
		next[i] = i;
	for (uint64_t i = pages - 1; i > 0; i--) {
		uint64_t j = next_random(&state) % i;
		uint32_t t = next[i];

		next[i] = next[j];
		next[j] = t;
	}
	return next;
}

/* Returns memory that no other process can attach, or MAP_FAILED. */
static void *map_segment(size_t bytes)
{
	int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
	void *at = id < 0 ? MAP_FAILED : shmat(id, NULL, 0);

	if (id >= 0)
		shmctl(id, IPC_RMID, NULL);
	return at;
}

/* Returns @bytes of s->kind, or MAP_FAILED. */
static void *map_memory(const struct scan *s, size_t bytes)
{
	int flags = MAP_ANONYMOUS, fd = -1;
	void *at;

	if (!strcmp(s->kind, "sysv"))
		return map_segment(bytes);
	if (!strcmp(s->kind, "memfd"))
		fd = memfd_create("scan", MFD_CLOEXEC);
	else if (*s->kind == '/')
		fd = open(s->kind, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		flags = 0;
	if (fd >= 0 && ftruncate(fd, (off_t)bytes))
		return MAP_FAILED;
	flags |= !strcmp(s->kind, "private") ? MAP_PRIVATE : MAP_SHARED;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (fd >= 0)
		close(fd);
	return at;
}

static int scan_init(struct scan *s)
{
	uint32_t *cycle = NULL;
	size_t bytes = s->bytes;

	s->memory = map_memory(s, bytes);
	if (s->memory == MAP_FAILED) {
		fprintf(stderr, "scan: cannot map %zu bytes: %m\n", bytes);
		return -errno;
	}
	if (s->thp && madvise(s->memory, bytes, s->thp))
		fprintf(stderr, "scan: huge page advice: %m\n");
	if (s->write) {
		s->generation = calloc(s->pages, sizeof(*s->generation));
		if (!s->generation)
			return -ENOMEM;
		/* The bookkeeping must not add misses of its own. */
		if (mlock(s->generation, s->pages * sizeof(*s->generation)))
			fprintf(stderr, "scan: mlock: %m\n");
	}
	if (s->latency) {
		s->samples = calloc(s->pages * s->passes, sizeof(*s->samples));
		if (!s->samples)
			return -ENOMEM;
		if (mlock(s->samples, s->pages * s->passes * sizeof(*s->samples)))
			fprintf(stderr, "scan: mlock: %m\n");
	}
	if (s->pattern == CHASE) {
		cycle = random_cycle(s->pages, s->seed);
		if (!cycle)
			return -ENOMEM;
	}
	for (uint64_t p = 0; p < s->pages; p++)
		page_fill(s, p, cycle ? cycle[p] : p);
	free(cycle);
	return 0;
}

static uint64_t visit(struct scan *s, uint64_t page)
{
	uint64_t start = s->latency ? now_ns() : 0;
	uint64_t next = page_check(s, page);

	if (s->write) {
		s->generation[page]++;
		page_fill(s, page, next);
	}
	if (s->latency) {
		uint64_t ns = now_ns() - start;

		s->samples[s->visits] = ns < UINT32_MAX ? ns : UINT32_MAX;
	}
	s->visits++;
	if (s->rest_us)
		usleep(s->rest_us);
	return next;
}

static void pass(struct scan *s, uint64_t number)
{
	uint64_t n = s->pages, state = (s->seed + number) * MIX | 1, p = 0;

	switch (s->pattern) {
	case SEQ:
		for (p = 0; p < n; p++)
			visit(s, p);
		break;
	case REVERSE:
		for (p = n; p-- > 0;)
			visit(s, p);
		break;
	case STRIDE:
		for (uint64_t first = 0; first < s->stride; first++)
			for (p = first; p < n; p += s->stride)
				visit(s, p);
		break;
	case RANDOM:
		for (uint64_t i = 0; i < n; i++)
			visit(s, next_random(&state) % n);
		break;
	case CHASE:
		for (uint64_t i = 0; i < n; i++)
			p = visit(s, p);
		break;
	}
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void report(struct scan *s, double seconds, const struct rusage *before,
		   const struct rusage *after)
{
	long major = after->ru_majflt - before->ru_majflt;
	long minor = after->ru_minflt - before->ru_minflt;
	double us = seconds * 1e6 / ((s->passes - s->warm) * s->pages);

	if (!s->json) {
		printf("%s: %.2f us a page, %ld major and %ld minor faults in %" PRIu64
		       " visits, %" PRIu64 " words bad\n",
		       s->pattern_name, us, major, minor, s->visits, s->bad);
		return;
	}
	printf("{\"pattern\":\"%s\",\"pages\":%" PRIu64 ",\"passes\":%" PRIu64
	       ",\"visits\":%" PRIu64 ",\"seconds\":%.6f,\"us_per_page\":%.4f,"
	       "\"misses\":%ld,\"minor\":%ld,\"bad\":%" PRIu64 ",\"pass_us_per_page\":[",
	       s->pattern_name, s->pages, s->passes, s->visits, seconds, us, major, minor, s->bad);
	for (uint64_t i = 0; i < s->passes; i++)
		printf("%s%.4f", i ? "," : "", s->pass_us[i]);
	printf("],\"pass_seconds\":[");
	for (uint64_t i = 0; i < s->passes; i++)
		printf("%s%.6f", i ? "," : "", s->pass_us[i] * s->pages / 1e6);
	printf("],\"warm\":%" PRIu64, s->warm);
	if (s->latency) {
		uint64_t slow = 0;

		for (uint64_t i = 0; i < s->visits; i++)
			slow += s->samples[i] >= s->slow_ns;
		qsort(s->samples, s->visits, sizeof(*s->samples), by_value);
		printf(",\"p50_us\":%.3f,\"p90_us\":%.3f,\"p99_us\":%.3f,\"max_us\":%.3f,"
		       "\"slow\":%" PRIu64,
		       s->samples[s->visits / 2] / 1e3, s->samples[s->visits * 9 / 10] / 1e3,
		       s->samples[s->visits * 99 / 100] / 1e3, s->samples[s->visits - 1] / 1e3,
		       slow);
	}
	printf("}\n");
}

/* Tests drive the program from outside: it speaks a line and waits for one. */
static void wait_for_line(const struct scan *s, const char *state)
{
	int c;

	printf("{\"%s\":true,\"pid\":%d,\"address\":%" PRIuPTR ",\"pages\":%" PRIu64 "}\n",
	       state, getpid(), (uintptr_t)s->memory, s->pages);
	fflush(stdout);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static const char usage[] =
	"usage: scan [--mib N] [--pattern seq|reverse|stride:N|random|chase] [--passes K]\n"
	"            [--write] [--json] [--seed S] [--pause] [--hold] [--thp|--no-thp]\n"
	"            [--latency] [--slow-us N] [--node BYTES] [--warm W] [--mark FIFO]\n"
	"            [--memory private|shared|memfd|sysv|/FILE] [--rest-us N]\n"
	"  --mib N       memory to walk (64)\n"
	"  --memory KIND private or shared anonymous memory, a memfd, a System V segment, a file\n"
	"                that is created (private)\n"
	"  --passes K    walks over all of it (1); the filling before them is not timed\n"
	"  --node BYTES  what a visit reads, 64 to 4096 (4096); the report's pages are then these\n"
	"  --warm W      the first W passes are left out of seconds, misses and minor (0)\n"
	"  --mark FIFO   writes a line there before what is measured and waits for one\n"
	"  --write       rewrites each page it has checked\n"
	"  --pause       says {\"ready\":true,...} when filled and waits for a line on stdin\n"
	"  --hold        says {\"done\":true,...} after the last pass and waits before it frees memory\n"
	"  --latency     p50, p90, p99 and max of a visit, and how many took --slow-us (1000)\n"
	"  --rest-us N   sleeps after each visit (0)\n"
	"Exits 1 when a word was wrong.\n";

static int pattern_parse(struct scan *s, const char *text)
{
	static const char *const names[] = {
		[SEQ] = "seq", [REVERSE] = "reverse", [RANDOM] = "random", [CHASE] = "chase",
	};
	char *end;

	s->pattern_name = text;
	if (!strncmp(text, "stride:", 7)) {
		s->pattern = STRIDE;
		s->stride = strtoull(text + 7, &end, 10);
		return s->stride && !*end ? 0 : -EINVAL;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i] && !strcmp(text, names[i])) {
			s->pattern = i;
			return 0;
		}
	return -EINVAL;
}

static void parse(struct scan *s, int argc, char **argv)
{
	enum { MIB = 1, PATTERN, PASSES, WRITE, JSON, SEED, PAUSE, HOLD, THP, NO_THP, LATENCY,
	       SLOW, REST, NODE, WARM, MARK, MEMORY, HELP };
	static const struct option options[] = {
		{ "mib", required_argument, NULL, MIB },
		{ "pattern", required_argument, NULL, PATTERN },
		{ "passes", required_argument, NULL, PASSES },
		{ "write", no_argument, NULL, WRITE },
		{ "json", no_argument, NULL, JSON },
		{ "seed", required_argument, NULL, SEED },
		{ "pause", no_argument, NULL, PAUSE },
		{ "hold", no_argument, NULL, HOLD },
		{ "thp", no_argument, NULL, THP },
		{ "no-thp", no_argument, NULL, NO_THP },
		{ "latency", no_argument, NULL, LATENCY },
		{ "slow-us", required_argument, NULL, SLOW },
		{ "rest-us", required_argument, NULL, REST },
		{ "node", required_argument, NULL, NODE },
		{ "warm", required_argument, NULL, WARM },
		{ "mark", required_argument, NULL, MARK },
		{ "memory", required_argument, NULL, MEMORY },
		{ "help", no_argument, NULL, HELP },
		{ NULL }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case MIB:
			/* Visiting orders are kept in 32 bits. */
			s->bytes = number("scan", "--mib", optarg, 1 << 22) << 20;
			break;
		case PATTERN:
			if (pattern_parse(s, optarg)) {
				fprintf(stderr, "scan: --pattern %s: unknown\n%s", optarg, usage);
				exit(2);
			}
			break;
		case PASSES:
			s->passes = number("scan", "--passes", optarg, MAX_PASSES);
			break;
		case SEED:
			s->seed = number("scan", "--seed", optarg, UINT32_MAX);
			break;
		case SLOW:
			s->slow_ns = number("scan", "--slow-us", optarg, 4000000) * 1000;
			break;
		case REST:
			s->rest_us = number("scan", "--rest-us", optarg, 999999);
			break;
		case NODE:
			s->node = number("scan", "--node", optarg, PAGE);
			break;
		case WARM:
			s->warm = number("scan", "--warm", optarg, MAX_PASSES);
			break;
		case MARK:
			s->mark = optarg;
			break;
		case MEMORY:
			s->kind = optarg;
			if (*optarg == '/' || !strcmp(optarg, "private") ||
			    !strcmp(optarg, "shared") || !strcmp(optarg, "memfd") ||
			    !strcmp(optarg, "sysv"))
				break;
			fprintf(stderr, "scan: --memory %s: unknown\n%s", optarg, usage);
			exit(2);
		case WRITE:
			s->write = true;
			break;
		case JSON:
			s->json = true;
			break;
		case PAUSE:
			s->pause = true;
			break;
		case HOLD:
			s->hold = true;
			break;
		case LATENCY:
			s->latency = true;
			break;
		case THP:
			s->thp = MADV_HUGEPAGE;
			break;
		case NO_THP:
			s->thp = MADV_NOHUGEPAGE;
			break;
		case HELP:
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (s->node < MIN_NODE || PAGE % s->node || s->bytes / s->node > UINT32_MAX) {
		fprintf(stderr, "scan: --node %" PRIu64 ": does not divide a page, or too many of them\n",
			s->node);
		exit(2);
	}
	if (optind < argc || !s->bytes || s->warm >= s->passes) {
		fputs(usage, stderr);
		exit(2);
	}
	s->pages = s->bytes / s->node;
	s->words = s->node / sizeof(*s->memory);
}

int main(int argc, char **argv)
{
	struct scan s = {
		.pattern_name = "seq", .bytes = 64 << 20, .node = PAGE, .passes = 1, .seed = 1,
		.slow_ns = 1000000, .kind = "private",
	};
	struct rusage before, after;
	uint64_t start, at;
	double seconds;

	parse(&s, argc, argv);
	if (scan_init(&s))
		return 3;
	if (s.pause)
		wait_for_line(&s, "ready");

	start = at = now_ns();
	for (uint64_t i = 0; i < s.passes; i++) {
		uint64_t end;

		if (i == s.warm) {
			walk_mark(s.mark);
			getrusage(RUSAGE_SELF, &before);
			start = at = now_ns();
		}
		pass(&s, i);
		end = now_ns();
		s.pass_us[i] = (end - at) / 1e3 / s.pages;
		at = end;
	}
	seconds = (at - start) / 1e9;
	getrusage(RUSAGE_SELF, &after);

	report(&s, seconds, &before, &after);
	fflush(stdout);
	if (s.hold)
		wait_for_line(&s, "done");
	return s.bad ? 1 : 0;
}
