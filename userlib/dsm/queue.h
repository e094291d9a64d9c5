/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Entries that are found by a key, and of which each turn of ebbdsm_settle() looks at each once:
 * the ones that were looked at last are the last.
 */
#ifndef EBBDSM_QUEUE_H
#define EBBDSM_QUEUE_H

#include <stdint.h>

/* Part of what is queued: its first member. */
struct queue_entry {
	struct queue_entry *chain, *older, *newer;
	uint64_t key;
	uint32_t turn; /* in which it was looked at, or was added */
};

/* Zeros: empty. */
struct queue {
	struct queue_entry *first, *last;
	struct queue_entry **table, *only; /* chains by key; without a table there is one */
	uint32_t size, entries;
};

/* Adds an entry with .key in turn @turn, the last one that has begun. */
void queue_add(struct queue *q, struct queue_entry *e, uint32_t turn);
void queue_remove(struct queue *q, struct queue_entry *e);

/* Returns an entry whose key may be @key, and, by .chain, others; or NULL. */
struct queue_entry *queue_find(const struct queue *q, uint64_t key);

/*
 * Returns the next entry of turn @turn, or NULL.  @last is the last turn that has begun: what it
 * begins after is not looked at again, so that turns of several threads share the work.
 */
struct queue_entry *queue_next(struct queue *q, uint32_t turn, uint32_t last);

/* Frees the table; entries are the caller's. */
void queue_end(struct queue *q);

#endif
