// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `make bench-policy`: ns per call of each policy, natively, once it has learned
 * the access pattern.  All figures include the loop, as `none` shows, and the
 * requests, which are marked in a bitmap.  Prints a JSON line for each policy and
 * pattern.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "policies/native.h"

#define PAGES (1u << 18)
#define CALLS (2 * PAGES)
#define BASE 0x7f0000000ULL

struct run {
	struct ebb_policy_sim sim;
	unsigned char asked[PAGES];
	uint32_t order[PAGES];
};

static int mark(void *data, const struct ebb_request *r)
{
	const struct ebb_list_request *list = (const struct ebb_list_request *)r;
	struct run *run = data;

	for (uint32_t i = 0; i < r->count; i++) {
		uint64_t page = (r->op == EBB_OP_LIST ? list->vpn[i]
						      : r->first + (uint64_t)r->stride * i) - BASE;

		if (page < PAGES)
			run->asked[page] = 1;
	}
	return 0;
}

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * 0x2545f4914f6cdd1dULL >> 20;
}

enum walk { SEQUENTIAL, REPEATED, EIGHT, RANDOM, WALKS };
static const char *const walk_name[] = {
	"sequential", "one order again", "8 threads", "random",
};

static void visit(struct run *run, const struct ebb_policy *policy, uint32_t page, uint32_t tid)
{
	struct ebb_fault f = {
		.vpn = BASE + page, .owner = 1, .tgid = 1, .tid = tid, .exec = 1,
		.kind = run->asked[page] ? EBB_HIT : EBB_MISS,
	};

	run->asked[page] = 0;
	policy->run(&run->sim, &f);
}

static double measure(const struct ebb_policy *policy, enum walk walk, double *hits)
{
	struct run *run = calloc(1, sizeof(*run));
	struct timespec a, b;
	uint64_t seed = 1, hit = 0;

	policy->reset();
	run->sim.state = calloc(1, policy->state_size + 1);
	run->sim.request = mark;
	run->sim.data = run;
	ebb_policy_defaults(policy, &run->sim.params);
	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t j = next(&seed) % (i + 1);

		run->order[i] = run->order[j];
		run->order[j] = i;
	}
	for (uint32_t i = 0; i < 2 * CALLS; i++) {
		uint32_t page = i % PAGES, tid = 1;

		if (i == CALLS)
			clock_gettime(CLOCK_MONOTONIC, &a);
		if (walk == REPEATED)
			page = run->order[page];
		if (walk == RANDOM)
			page = next(&seed) % PAGES;
		if (walk == EIGHT) {
			tid = 1 + i % 8;
			page = i % 8 * (PAGES / 8) + i / 8 % (PAGES / 8);
		}
		hit += i >= CALLS && run->asked[page];
		visit(run, policy, page, tid);
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	*hits = (double)hit / CALLS;
	free(run->sim.state);
	free(run);
	return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / CALLS;
}

int main(void)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++) {
		for (int w = 0; w < WALKS; w++) {
			double hits, ns = measure(*p, (enum walk)w, &hits);

			printf("{\"name\": \"%s, %s\", \"params\": {\"hits\": %.3f}, "
			       "\"value\": %.1f, \"unit\": \"ns a call\", \"runs\": 1}\n",
			       (*p)->info->name, walk_name[w], hits, ns);
		}
	}
	return 0;
}
