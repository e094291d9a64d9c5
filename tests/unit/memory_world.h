/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Processes that share a memory of fewer pages than they visit, for running a
 * policy natively: what is visited or fetched pushes something else out.
 *
 * Time is counted in visits.  A page asked for takes room at once and arrives
 * `latency` visits later; visited before, it is late, or a miss as long as it
 * has not been on its way for `issue` visits.  A page that goes unvisited after
 * it was fetched is wasted.  The kernel's readahead can be switched on; its hits
 * go unseen.
 */
#ifndef MEMORY_WORLD_H
#define MEMORY_WORLD_H

#include <stdint.h>
#include <stdlib.h>

#include <ebb/policy.h>

enum memory_state { MEMORY_OUT, MEMORY_FETCHED, MEMORY_READ_AROUND, MEMORY_MAPPED };
enum memory_eviction { EVICT_OLDEST, EVICT_RANDOM };

struct memory {
	const struct ebb_policy *policy;
	struct ebb_policy_sim *sim;     /* one a process */
	uint32_t processes, pages;      /* pages of each process */
	uint32_t limit, used;
	enum memory_eviction eviction;
	uint32_t latency, issue;
	uint32_t exec;                  /* of all processes */
	uint16_t paused;                /* sources of requests, one bit each */
	int futile;                     /* requests come to nothing */
	int apart;                      /* each process has a cgroup of its own, from 1 */
	struct {                        /* the kernel's, as swap_vma_readahead() of Linux 6.x */
		uint64_t page;
		uint32_t max, window, hits;
	} readahead;
	uint64_t base;
	uint64_t now, seed;
	struct memory_page {
		uint64_t asked;
		uint32_t older, younger; /* 1 + page, 0 = none; of those in memory */
		uint32_t slot;
		unsigned char state;    /* enum memory_state */
	} * page;
	uint32_t *resident;             /* pages in memory in no order */
	uint32_t oldest, youngest;
	struct memory_counts {
		uint64_t hits, late, misses, unseen, fetched, wasted, requests, asked, outside;
		uint64_t source[EBB_SOURCES]; /* pages asked for by each */
	} count;
};

static inline uint64_t memory_random(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * 0x2545f4914f6cdd1dULL >> 20;
}

static inline void memory_unlink(struct memory *m, uint32_t i)
{
	struct memory_page *p = &m->page[i];

	*(p->older ? &m->page[p->older - 1].younger : &m->oldest) = p->younger;
	*(p->younger ? &m->page[p->younger - 1].older : &m->youngest) = p->older;
}

static inline void memory_youngest(struct memory *m, uint32_t i)
{
	struct memory_page *p = &m->page[i];

	p->older = m->youngest;
	p->younger = 0;
	*(m->youngest ? &m->page[m->youngest - 1].younger : &m->oldest) = i + 1;
	m->youngest = i + 1;
}

static inline void memory_evict(struct memory *m)
{
	uint32_t i = m->eviction == EVICT_OLDEST ? m->oldest - 1
						 : m->resident[memory_random(&m->seed) % m->used];
	struct memory_page *p = &m->page[i];

	m->count.wasted += p->state == MEMORY_FETCHED;
	p->state = MEMORY_OUT;
	memory_unlink(m, i);
	m->resident[p->slot] = m->resident[--m->used];
	m->page[m->resident[p->slot]].slot = p->slot;
}

static inline void memory_bring(struct memory *m, uint32_t i, enum memory_state state)
{
	while (m->used >= m->limit)
		memory_evict(m);
	m->page[i].state = state;
	m->page[i].asked = m->now;
	m->page[i].slot = m->used;
	m->resident[m->used++] = i;
	memory_youngest(m, i);
}

static inline int memory_request(void *data, const struct ebb_request *r)
{
	const struct ebb_list_request *list = (const struct ebb_list_request *)r;
	struct memory *m = data;

	if (r->op != EBB_OP_PREFETCH && r->op != EBB_OP_LIST)
		return 0;
	m->count.requests++;
	m->count.asked += r->count;
	m->count.source[r->source] += r->count;
	if (m->futile)
		return 0;
	for (uint32_t i = 0; i < r->count; i++) {
		uint64_t vpn = r->op == EBB_OP_LIST ? list->vpn[i]
						    : r->first + (uint64_t)r->stride * i;
		uint64_t page = vpn - m->base;

		if (page >= m->pages) {
			m->count.outside++;
			continue;
		}
		page += (uint64_t)(r->tgid - 1) * m->pages;
		if (m->page[page].state != MEMORY_OUT)
			continue;
		m->count.fetched++;
		memory_bring(m, page, MEMORY_FETCHED);
	}
	return 0;
}

static inline struct memory *memory_new(const struct ebb_policy *policy, uint32_t processes,
					uint32_t pages, uint32_t limit)
{
	struct memory *m = calloc(1, sizeof(*m));

	policy->reset();
	m->policy = policy;
	m->processes = processes;
	m->pages = pages;
	m->limit = limit;
	m->base = 0x7f0000000;
	m->seed = 1;
	m->exec = 1;
	m->latency = 8;
	m->issue = 2;
	m->page = calloc((size_t)processes * pages, sizeof(*m->page));
	m->resident = calloc(limit, sizeof(*m->resident));
	m->sim = calloc(processes, sizeof(*m->sim));
	for (uint32_t i = 0; i < processes; i++) {
		m->sim[i].state = calloc(1, policy->state_size + 1);
		m->sim[i].request = memory_request;
		m->sim[i].data = m;
		ebb_policy_defaults(policy, &m->sim[i].params);
	}
	return m;
}

static inline void memory_free(struct memory *m)
{
	for (uint32_t i = 0; i < m->processes; i++)
		free(m->sim[i].state);
	free(m->sim);
	free(m->page);
	free(m->resident);
	free(m);
}

/* Returns how many pages were read, the missed one included. */
static inline uint32_t memory_read_around(struct memory *m, uint32_t process, uint32_t page)
{
	uint64_t prev = m->readahead.page, pages = 1, first;
	uint32_t read = 1;

	if (m->readahead.hits)
		for (pages = 4; pages < m->readahead.hits + 2;)
			pages *= 2;
	else if (page == prev + 1 || page + 1 == prev)
		pages = 2;
	if (pages > m->readahead.max)
		pages = m->readahead.max;
	if (pages < m->readahead.window / 2)
		pages = m->readahead.window / 2;
	m->readahead.window = pages;
	m->readahead.hits = 0;
	m->readahead.page = page;
	first = page == prev + 1 ? page : page + 1 == prev ? page - pages + 1
							   : page - (pages - 1) / 2;
	for (uint64_t i = first; i < first + pages; i++) {
		uint32_t at = process * m->pages + i;

		if (i == page || i >= m->pages || m->page[at].state != MEMORY_OUT)
			continue;
		memory_bring(m, at, MEMORY_READ_AROUND);
		read++;
	}
	return read;
}

/* A thread (from 0) of a process (from 0) visits one of its pages. */
static inline void memory_visit(struct memory *m, uint32_t process, uint32_t thread, uint32_t page)
{
	uint32_t i = process * m->pages + page;
	struct memory_page *p = &m->page[i];
	struct ebb_fault f = {
		.vpn = m->base + page, .time_ns = ++m->now * 1000,
		.owner = m->apart ? process + 1 : 1,
		.exec = m->exec, .paused = m->paused,
		.tgid = process + 1, .tid = process * 1000 + thread + 1,
	};
	uint64_t since = m->now - p->asked;

	if (p->state != MEMORY_OUT) {
		memory_unlink(m, i);
		memory_youngest(m, i);
	}
	if (p->state == MEMORY_MAPPED)
		return;
	if (p->state != MEMORY_OUT)
		m->readahead.page = page;
	if (p->state == MEMORY_READ_AROUND) {
		p->state = MEMORY_MAPPED;
		m->readahead.hits++;
		m->count.unseen++;
		return;
	}
	if (p->state == MEMORY_OUT || since <= m->issue) {
		f.kind = EBB_MISS;
		m->count.misses++;
		/* Not even begun: ebbd will find it there. */
		m->count.fetched -= p->state == MEMORY_FETCHED;
	} else if (since <= m->latency) {
		f.kind = EBB_LATE;
		m->count.late++;
	} else {
		f.kind = EBB_HIT;
		m->count.hits++;
	}
	if (p->state == MEMORY_OUT) {
		memory_bring(m, i, MEMORY_MAPPED);
		if (m->readahead.max > 1)
			f.cluster = memory_read_around(m, process, page);
	}
	p->state = MEMORY_MAPPED;
	m->policy->run(&m->sim[process], &f);
}

static inline void memory_count_anew(struct memory *m)
{
	memset(&m->count, 0, sizeof(m->count));
}

static inline double memory_coverage(const struct memory *m)
{
	return (double)m->count.hits / (m->count.hits + m->count.late + m->count.misses);
}

static inline double memory_accuracy(const struct memory *m)
{
	return m->count.fetched ? (double)(m->count.hits + m->count.late) / m->count.fetched : 1;
}

/* 0..n-1 in a random order. */
static inline uint32_t *memory_permutation(uint32_t n, uint64_t *seed)
{
	uint32_t *order = malloc(n * sizeof(*order));

	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = memory_random(seed) % (i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	return order;
}

#endif
