/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Queues of requests, one for each attached cgroup (flow) that has some.  Flows take turns by
 * surplus round robin (Adiseshu, Parulkar and Varghese, SIGCOMM 1996): a flow is served until its
 * quantum is used up, and what it used beyond that counts against its next turns.  So each gets
 * pages in proportion to its weight, whatever the number and size of its requests.  A flow without
 * requests is kept until it has paid for the last one, so that one request at a time gains nothing.
 *
 * Belongs to one thread; nothing is allocated after fair_queue_new().
 */
#ifndef EBB_FAIR_QUEUE_H
#define EBB_FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#define FAIR_REQUESTS 1024
#define FAIR_QUANTUM 64       /* pages a turn, at FAIR_WEIGHT */
#define FAIR_WEIGHT 100       /* default, like io.weight's */
#define FAIR_WEIGHT_MAX 10000

struct fair_queue;

struct fair_request {
	struct ebb_list_request asked;
	uint32_t done;        /* pages of it that were looked at */
	bool passed;          /* the throttle has let it pass */
	bool begun;           /* a part of it is executed */
	bool held;            /* the limit of its device delays the next part */
	uint64_t waits_for;   /* bit of the swap type whose device had enough to read; 0 = none */
	uint64_t waits_since; /* time at which the devices had enough to read; 0 = they have not */
};

/* NULL without memory. */
struct fair_queue *fair_queue_new(void);
void fair_queue_free(struct fair_queue **q);

/*
 * Appends @r to the queue of its cgroup, of @weight (1 to FAIR_WEIGHT_MAX).  Returns false, without
 * doing so, if that has as many requests as there are free entries: n cgroups that flood the queue
 * get 1 / (n + 1) of the entries each, or somewhat less.
 */
bool fair_put(struct fair_queue *q, const struct ebb_list_request *r, uint32_t weight);

/*
 * Visit the flows with requests, beginning with the one whose turn it is; -1 = no further one.  A
 * flow is valid until the next fair_first() or fair_done().
 */
int fair_first(struct fair_queue *q);
int fair_next(const struct fair_queue *q, int flow);
/* Returns the oldest request of @flow; valid until fair_done(). */
struct fair_request *fair_request(struct fair_queue *q, int flow);

/* Charges @flow for @pages. */
void fair_charge(struct fair_queue *q, int flow, uint32_t pages);
/* Removes the oldest request of @flow. */
void fair_done(struct fair_queue *q, int flow);

#endif
