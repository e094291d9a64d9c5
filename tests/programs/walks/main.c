// SPDX-License-Identifier: GPL-2.0-or-later
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "../walk.h"
#include "walks.h"

#define MAX_PASSES 1024
#define MAX_MIB (1 << 20)

static const struct walk_kind *const kinds[] = {
	&walk_sum, &walk_threads, &walk_column, &walk_multiply, &walk_pagerank, &walk_join,
	&walk_zipf,
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct request {
	const struct walk_kind *kind;
	uint64_t passes, warm;
	const char *mark;
	double seconds[MAX_PASSES];
};

void *walks_map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		return p;
	fprintf(stderr, "walks: cannot map %zu bytes: %m\n", bytes);
	return NULL;
}

static void usage(FILE *to)
{
	fputs("usage: walks --kind KIND[:N] [--mib M] [--passes K] [--warm W] [--seed S]\n"
	      "             [--mark FIFO]\n"
	      "  --mib M      anonymous memory (64)\n"
	      "  --passes K   times the work is done (1); filling the memory is not timed\n"
	      "  --warm W     the first W passes are left out of seconds, misses and minor (0)\n"
	      "  --mark FIFO  writes a line there before what is measured and waits for one\n"
	      "Prints JSON; exits 1 when a word was wrong.  Kinds:\n", to);
	for (size_t i = 0; i < KINDS; i++)
		fprintf(to, "  %-9s %s\n", kinds[i]->name, kinds[i]->help);
}

static const struct walk_kind *kind_parse(const char *text, uint64_t *param)
{
	size_t length = strcspn(text, ":");

	for (size_t i = 0; i < KINDS; i++) {
		const struct walk_kind *k = kinds[i];

		if (strlen(k->name) != length || strncmp(k->name, text, length))
			continue;
		*param = k->param;
		if (text[length])
			*param = k->param ? number("walks", "--kind", text + length + 1, 1024) : 0;
		return *param || (!k->param && !text[length]) ? k : NULL;
	}
	return NULL;
}

static void parse(struct request *q, struct walks *w, int argc, char **argv)
{
	enum { KIND = 1, MIB, PASSES, WARM, SEED, MARK, HELP };
	static const struct option options[] = {
		{ "kind", required_argument, NULL, KIND },
		{ "mib", required_argument, NULL, MIB },
		{ "passes", required_argument, NULL, PASSES },
		{ "warm", required_argument, NULL, WARM },
		{ "seed", required_argument, NULL, SEED },
		{ "mark", required_argument, NULL, MARK },
		{ "help", no_argument, NULL, HELP },
		{ NULL }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case KIND:
			q->kind = kind_parse(optarg, &w->param);
			if (!q->kind) {
				fprintf(stderr, "walks: --kind %s: unknown; see --help\n", optarg);
				exit(2);
			}
			break;
		case MIB:
			w->bytes = number("walks", "--mib", optarg, MAX_MIB) << 20;
			break;
		case PASSES:
			q->passes = number("walks", "--passes", optarg, MAX_PASSES);
			break;
		case WARM:
			q->warm = number("walks", "--warm", optarg, MAX_PASSES);
			break;
		case SEED:
			w->seed = number("walks", "--seed", optarg, UINT32_MAX);
			break;
		case MARK:
			q->mark = optarg;
			break;
		case HELP:
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(2);
		}
	}
	if (optind < argc || !q->kind || !w->bytes || !w->seed || q->warm >= q->passes) {
		usage(stderr);
		exit(2);
	}
}

static void report(const struct request *q, const struct walks *w, const struct rusage *before,
		   const struct rusage *after)
{
	double measured = 0;

	for (uint64_t i = q->warm; i < q->passes; i++)
		measured += q->seconds[i];
	printf("{\"kind\":\"%s\",\"param\":%" PRIu64 ",\"mib\":%" PRIu64 ",\"passes\":%" PRIu64
	       ",\"warm\":%" PRIu64 ",\"seconds\":%.6f,\"misses\":%ld,\"minor\":%ld,\"bad\":%" PRIu64
	       ",\"pass_seconds\":[", q->kind->name, w->param, w->bytes >> 20, q->passes, q->warm,
	       measured, after->ru_majflt - before->ru_majflt,
	       after->ru_minflt - before->ru_minflt, w->bad);
	for (uint64_t i = 0; i < q->passes; i++)
		printf("%s%.6f", i ? "," : "", q->seconds[i]);
	printf("]}\n");
}

int main(int argc, char **argv)
{
	struct request q = { .passes = 1 };
	struct walks w = { .bytes = 64 << 20, .seed = 1 };
	struct rusage before, after;

	parse(&q, &w, argc, argv);
	if (q.kind->prepare(&w))
		return 3;
	for (uint64_t i = 0; i < q.passes; i++) {
		uint64_t start;

		if (i == q.warm) {
			walk_mark(q.mark);
			getrusage(RUSAGE_SELF, &before);
		}
		start = now_ns();
		q.kind->pass(&w, i);
		q.seconds[i] = (now_ns() - start) / 1e9;
	}
	getrusage(RUSAGE_SELF, &after);
	report(&q, &w, &before, &after);
	return w.bad ? 1 : 0;
}
