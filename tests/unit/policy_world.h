/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A process whose every page is swapped out, for running a policy natively.
 *
 * Time is counted in visits to pages.  A page asked for arrives `latency`
 * visits later; with latency 0 at once, which is the papers' unlimited cache.
 * A visited page that has arrived is a hit; one that has not is a miss, or late
 * when it has been on its way for `issue` visits (ebbd has seen the request).
 * Visited pages stay.
 */
#ifndef POLICY_WORLD_H
#define POLICY_WORLD_H

#include <stdint.h>
#include <stdlib.h>

#include <ebb/policy.h>

#define WORLD_PAGES (1u << 20)

enum world_here { OUT, READ_AROUND, VISITED };

struct world {
	const struct ebb_policy *policy;
	struct ebb_policy_sim sim;
	uint64_t base; /* virtual page of page 0; no page past WORLD_PAGES exists */
	unsigned int latency, issue;
	uint32_t tid;                   /* thread that visits */
	uint32_t room;                  /* what faults say of it */
	struct {                        /* the kernel's own, per VMA; its hits go unseen */
		uint64_t page;
		unsigned int max, window, hits;
	} readahead;
	unsigned int drop_from, drop_to; /* visits in which requests come to nothing */
	uint64_t now;
	uint64_t *asked;                /* visit of the request, from 1; 0 = not asked for */
	unsigned char *here;            /* enum world_here */
	unsigned int hits, late, misses, unseen;
	unsigned int pages;             /* asked for the first time */
	unsigned int requests, asked_pages;
	unsigned int outside, cold;
	struct ebb_request last;
};

static int world_request(void *data, const struct ebb_request *r)
{
	struct world *w = data;

	const struct ebb_list_request *list = (const void *)r;

	w->last = *r;
	if (r->op == EBB_OP_COLD || r->op == EBB_OP_COLD_LIST) {
		w->cold += r->count;
		return 0;
	}
	w->requests++;
	w->asked_pages += r->count;
	if (w->now >= w->drop_from && w->now < w->drop_to)
		return 0;
	for (uint32_t i = 0; i < r->count; i++) {
		uint64_t page = r->op == EBB_OP_LIST ? list->vpn[i] :
						       r->first + (uint64_t)r->stride * i;

		page -= w->base;

		if (page >= WORLD_PAGES) {
			w->outside++;
			continue;
		}
		if (w->here[page] == VISITED || w->asked[page])
			continue;
		w->asked[page] = w->now;
		w->pages++;
	}
	return 0;
}

static inline struct world *world_new(const struct ebb_policy *policy)
{
	struct world *w = calloc(1, sizeof(*w));

	w->policy = policy;
	w->base = 0x7f0000000;
	w->tid = 1;
	w->sim.state = calloc(1, policy->state_size ? policy->state_size : 1);
	w->sim.request = world_request;
	w->sim.data = w;
	ebb_policy_defaults(policy, &w->sim.params);
	w->asked = calloc(WORLD_PAGES, sizeof(*w->asked));
	w->here = calloc(WORLD_PAGES, 1);
	return w;
}

static inline void world_free(struct world *w)
{
	free(w->sim.state);
	free(w->asked);
	free(w->here);
	free(w);
}

/* What swap_vma_readahead() of Linux 6.x reads for a missed page; returns how many. */
static inline unsigned int world_read_around(struct world *w, uint64_t page)
{
	uint64_t prev = w->readahead.page, first = page, pages = w->readahead.hits + 2;
	unsigned int read = 1;

	if (pages > 2)
		for (pages = 4; pages < w->readahead.hits + 2;)
			pages *= 2;
	else if (page != prev + 1 && page + 1 != prev)
		pages = 1;
	if (pages > w->readahead.max)
		pages = w->readahead.max;
	if (pages < w->readahead.window / 2)
		pages = w->readahead.window / 2;
	w->readahead.window = pages;
	w->readahead.hits = 0;
	w->readahead.page = page;

	if (page + 1 == prev)
		first = page - pages + 1;
	else if (page != prev + 1)
		first = page - (pages - 1) / 2;
	for (uint64_t i = first; i < first + pages; i++)
		if (i < WORLD_PAGES && !w->here[i] && i != page) {
			w->here[i] = READ_AROUND;
			read++;
		}
	return read;
}

static inline void world_visit(struct world *w, uint64_t page)
{
	struct ebb_fault f = {
		.vpn = w->base + page,
		.time_ns = w->now * 1000,
		.owner = 1,
		.tgid = 1,
		.tid = w->tid,
		.room = w->room,
		.exec = 1,
	};
	uint64_t since = w->asked[page] ? w->now + 1 - w->asked[page] : 0;
	int here = w->here[page];

	w->now++;
	w->here[page] = VISITED;
	if (here == VISITED)
		return;
	if (here == READ_AROUND || since > w->latency) {
		w->readahead.page = page;
		w->readahead.hits += here == READ_AROUND;
		if (since <= w->issue) {
			w->unseen++;
			return;
		}
		f.kind = EBB_HIT;
		w->hits++;
	} else if (since > w->issue) {
		f.kind = EBB_LATE;
		w->late++;
	} else {
		f.kind = EBB_MISS;
		w->misses++;
		if (w->readahead.max)
			f.cluster = world_read_around(w, page);
	}
	w->policy->run(&w->sim, &f);
}

/* count pages: first, first + stride, ... */
static inline void world_walk(struct world *w, uint64_t first, int64_t stride, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		world_visit(w, first + stride * i);
}

/* xorshift64*: the same walk on every machine. */
static inline uint64_t world_random(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * 0x2545f4914f6cdd1dULL;
}

static inline double world_coverage(const struct world *w)
{
	return (double)w->hits / (w->hits + w->late + w->misses);
}

static inline double world_accuracy(const struct world *w)
{
	return (double)(w->hits + w->late) / w->pages;
}

#endif
