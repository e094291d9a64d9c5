// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>

#include "fair_queue.h"

/* A cgroup with requests, or in debt. */
struct flow {
	uint64_t owner;
	int64_t credit;       /* pages left of its turn, times FAIR_WEIGHT; negative: debt */
	uint32_t requests, weight;
	int first, last;      /* entries */
	int next;             /* flow, in the order of turns or of the free list */
};

struct entry {
	struct fair_request request;
	int next;
};

struct fair_queue {
	struct entry entry[FAIR_REQUESTS];
	struct flow flow[FAIR_REQUESTS];
	int free, free_flow;  /* lists; -1 = empty */
	uint32_t free_entries;
	int first, last;      /* flows in the order of turns */
};

struct fair_queue *fair_queue_new(void)
{
	struct fair_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	for (int i = 0; i < FAIR_REQUESTS; i++)
		q->entry[i].next = q->flow[i].next = i + 1 < FAIR_REQUESTS ? i + 1 : -1;
	q->first = q->last = -1;
	q->free_entries = FAIR_REQUESTS;
	return q;
}

void fair_queue_free(struct fair_queue **q)
{
	free(*q);
	*q = NULL;
}

static void append_flow(struct fair_queue *q, int i)
{
	q->flow[i].next = -1;
	if (q->last >= 0)
		q->flow[q->last].next = i;
	else
		q->first = i;
	q->last = i;
}

static void remove_flow(struct fair_queue *q, int i)
{
	int before = -1;

	for (int f = q->first; f != i; f = q->flow[f].next)
		before = f;
	if (before >= 0)
		q->flow[before].next = q->flow[i].next;
	else
		q->first = q->flow[i].next;
	if (q->last == i)
		q->last = before;
}

static int find(const struct fair_queue *q, uint64_t owner)
{
	int i = q->first;

	while (i >= 0 && q->flow[i].owner != owner)
		i = q->flow[i].next;
	return i;
}

static void free_flow(struct fair_queue *q, int i)
{
	remove_flow(q, i);
	q->flow[i].next = q->free_flow;
	q->free_flow = i;
}

/* Call only with a free entry: so one of as many flows is free or without requests. */
static int new_flow(struct fair_queue *q, uint64_t owner, uint32_t weight)
{
	int i = q->first;

	if (q->free_flow < 0) {
		while (q->flow[i].requests)
			i = q->flow[i].next;
		free_flow(q, i);
	}
	i = q->free_flow;
	q->free_flow = q->flow[i].next;
	q->flow[i] = (struct flow){ .owner = owner, .first = -1, .last = -1,
				    .credit = (int64_t)FAIR_QUANTUM * weight };
	append_flow(q, i);
	return i;
}

bool fair_put(struct fair_queue *q, const struct ebb_list_request *r, uint32_t weight)
{
	int i = find(q, r->head.owner), at = q->free;
	struct flow *f;

	if (at < 0 || (i >= 0 && q->flow[i].requests >= q->free_entries))
		return false;
	if (i < 0)
		i = new_flow(q, r->head.owner, weight);
	f = &q->flow[i];
	f->weight = weight;
	q->free = q->entry[at].next;
	q->free_entries--;
	q->entry[at] = (struct entry){ .request.asked = *r, .next = -1 };
	if (f->last >= 0)
		q->entry[f->last].next = at;
	else
		f->first = at;
	f->last = at;
	f->requests++;
	return true;
}

int fair_first(struct fair_queue *q)
{
	for (int i = q->first; i >= 0 && q->flow[i].credit <= 0; i = q->first) {
		q->flow[i].credit += (int64_t)FAIR_QUANTUM * q->flow[i].weight;
		if (!q->flow[i].requests && q->flow[i].credit > 0) {
			free_flow(q, i);
			continue;
		}
		remove_flow(q, i);
		append_flow(q, i);
	}
	return q->first;
}

int fair_next(const struct fair_queue *q, int flow)
{
	do
		flow = q->flow[flow].next;
	while (flow >= 0 && !q->flow[flow].requests);
	return flow;
}

struct fair_request *fair_request(struct fair_queue *q, int flow)
{
	return &q->entry[q->flow[flow].first].request;
}

void fair_charge(struct fair_queue *q, int flow, uint32_t pages)
{
	q->flow[flow].credit -= (int64_t)pages * FAIR_WEIGHT;
}

void fair_done(struct fair_queue *q, int flow)
{
	struct flow *f = &q->flow[flow];
	int at = f->first;

	f->first = q->entry[at].next;
	q->entry[at].next = q->free;
	q->free = at;
	q->free_entries++;
	if (f->first < 0)
		f->last = -1;
	if (!--f->requests && f->credit > 0)
		free_flow(q, flow);
}
