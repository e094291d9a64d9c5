// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>

#include "fair_queue.h"

/* A cgroup with requests. */
struct flow {
	uint64_t owner;
	int64_t credit;       /* pages at FAIR_WEIGHT, times that */
	uint32_t requests, weight;
	int first, last;      /* of them */
	int next;             /* flow, in the order of turns; or free */
};

struct entry {
	struct fair_request request;
	int next;
};

/* Each flow has a request, so there are enough. */
struct fair_queue {
	struct entry entry[FAIR_REQUESTS];
	struct flow flow[FAIR_REQUESTS];
	int free, free_flow;  /* lists */
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

static int new_flow(struct fair_queue *q, uint64_t owner)
{
	int i = q->free_flow;

	q->free_flow = q->flow[i].next;
	q->flow[i] = (struct flow){ .owner = owner, .first = -1, .last = -1,
				    .weight = FAIR_WEIGHT,
				    .credit = FAIR_QUANTUM * FAIR_WEIGHT };
	append_flow(q, i);
	return i;
}

bool fair_put(struct fair_queue *q, const struct ebb_list_request *r)
{
	int i = find(q, r->head.owner), at = q->free;
	struct flow *f;

	if (at < 0 || (i >= 0 && q->flow[i].requests >= q->free_entries))
		return false;
	if (i < 0)
		i = new_flow(q, r->head.owner);
	f = &q->flow[i];
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
		remove_flow(q, i);
		append_flow(q, i);
	}
	return q->first;
}

int fair_next(const struct fair_queue *q, int flow)
{
	return q->flow[flow].next;
}

struct fair_request *fair_request(struct fair_queue *q, int flow)
{
	return &q->entry[q->flow[flow].first].request;
}

void fair_charge(struct fair_queue *q, int flow, uint32_t pages, uint32_t weight)
{
	struct flow *f = &q->flow[flow];

	f->credit -= (int64_t)pages * FAIR_WEIGHT;
	f->weight = weight;
}

void fair_done(struct fair_queue *q, int flow)
{
	struct flow *f = &q->flow[flow];
	int at = f->first;

	f->first = q->entry[at].next;
	q->entry[at].next = q->free;
	q->free = at;
	q->free_entries++;
	if (--f->requests)
		return;
	remove_flow(q, flow);
	f->next = q->free_flow;
	q->free_flow = flow;
}
