/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Requests that wait for their turn, a queue for each attached cgroup.  Cgroups take turns by
 * surplus round robin (Adiseshu, Parulkar and Varghese, SIGCOMM 1996): one whose turn it is goes
 * on until it has had its quantum, and what it had beyond that is taken off its next turn.  So each
 * gets its share of pages by its weight, however many requests it makes, and of what size.
 *
 * Belongs to one thread; nothing is allocated after fair_queue_new().
 */
#ifndef EBB_FAIR_QUEUE_H
#define EBB_FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#define FAIR_REQUESTS 1024
#define FAIR_QUANTUM 64       /* pages, at FAIR_WEIGHT */
#define FAIR_WEIGHT 100       /* of a cgroup that was given no other */

struct fair_queue;

struct fair_request {
	struct ebb_list_request asked;
	uint32_t done;        /* pages of it that were looked at */
	bool passed;          /* its cgroup is not throttled, or it is of the sample */
	bool begun;           /* a part of it is executed */
	bool held;            /* the limit of its device delays the next part */
	uint64_t waits_since; /* ns: the devices have enough to read since; 0 = they have not */
};

/* NULL without memory. */
struct fair_queue *fair_queue_new(void);
void fair_queue_free(struct fair_queue **q);

/*
 * Appends @r to the queue of its cgroup.  Returns false, without doing so, if that
 * has as many requests as are free: n cgroups that flood it have 1 / (n + 1) each.
 */
bool fair_put(struct fair_queue *q, const struct ebb_list_request *r);

/*
 * Visit the cgroups with requests, the one whose turn it is first; -1 = no further one.  A number
 * is valid until fair_first() or fair_done().
 */
int fair_first(struct fair_queue *q);
int fair_next(const struct fair_queue *q, int flow);
/* Returns the oldest request of cgroup @flow; valid until fair_done(). */
struct fair_request *fair_request(struct fair_queue *q, int flow);

/* Charges cgroup @flow, of @weight (at least 1), for @pages. */
void fair_charge(struct fair_queue *q, int flow, uint32_t pages, uint32_t weight);
/* Ends the oldest request of cgroup @flow. */
void fair_done(struct fair_queue *q, int flow);

#endif
