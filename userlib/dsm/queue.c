// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "queue.h"

#include <stdlib.h>

#define TABLE_LEAST 64u

static struct queue_entry **chain_of(struct queue *q, uint64_t key)
{
	uint64_t x = (key ^ key >> 15) * 0x9e3779b97f4a7c15ull;

	return q->size ? &q->table[x >> 32 & (q->size - 1)] : &q->only;
}

static void chain(struct queue *q, struct queue_entry *e)
{
	struct queue_entry **at = chain_of(q, e->key);

	e->chain = *at;
	*at = e;
}

/* Without memory, chains are longer. */
static void grow_table(struct queue *q)
{
	uint32_t size = q->size ? 2 * q->size : TABLE_LEAST;
	struct queue_entry **table = calloc(size, sizeof(*table));

	if (!table)
		return;
	free(q->table);
	q->table = table;
	q->size = size;
	for (struct queue_entry *e = q->first; e; e = e->newer)
		chain(q, e);
}

static void append(struct queue *q, struct queue_entry *e, uint32_t turn)
{
	e->turn = turn;
	e->newer = NULL;
	e->older = q->last;
	*(q->last ? &q->last->newer : &q->first) = e;
	q->last = e;
}

static void unlist(struct queue *q, struct queue_entry *e)
{
	*(e->older ? &e->older->newer : &q->first) = e->newer;
	*(e->newer ? &e->newer->older : &q->last) = e->older;
}

void queue_add(struct queue *q, struct queue_entry *e, uint32_t turn)
{
	if (q->entries++ >= q->size)
		grow_table(q);
	chain(q, e);
	append(q, e, turn);
}

void queue_remove(struct queue *q, struct queue_entry *e)
{
	struct queue_entry **at = chain_of(q, e->key);

	while (*at != e)
		at = &(*at)->chain;
	*at = e->chain;
	unlist(q, e);
	q->entries--;
}

struct queue_entry *queue_find(const struct queue *q, uint64_t key)
{
	return *chain_of((struct queue *)q, key);
}

struct queue_entry *queue_next(struct queue *q, uint32_t turn, uint32_t last)
{
	struct queue_entry *e = q->first;

	/* Turns wrap. */
	if (!e || (int32_t)(e->turn - turn) >= 0)
		return NULL;
	unlist(q, e);
	append(q, e, last);
	return e;
}

void queue_end(struct queue *q)
{
	free(q->table);
	*q = (struct queue){ 0 };
}
