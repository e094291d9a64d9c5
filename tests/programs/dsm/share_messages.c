// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * By delegation, as in Grappa (Nelson et al., USENIX ATC 2015): objects stay with their makers,
 * which execute each access; nothing is cached.  And by plain messages: contents are sent.  Both
 * have the cells of a server.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct put {
	uint32_t cell, unused;
	uint8_t content[CELL];
};

static struct cell {
	pthread_rwlock_t lock;
	void *content;
} cells[CELLS];

static void messages_join(struct worker *w)
{
	for (uint32_t i = 0; i < CELLS; i++)
		pthread_rwlock_init(&cells[i].lock, NULL);
}

static void messages_leave(struct worker *w)
{
	for (uint32_t i = 0; i < CELLS; i++)
		free(cells[i].content);
}

static void messages_make(struct worker *w, const void *content, uint32_t size, struct object *o)
{
	uint32_t number = record_new(w);
	struct record *r = record_of(w->rank, number);

	r->at = (uint64_t)malloc(size);
	if (!r->at)
		give_up("out of memory");
	r->stamp = size;
	memcpy((void *)r->at, content, size);
	*o = (struct object){ .home = w->rank, .size = size, .number = number };
}

static void messages_drop(struct worker *w, const struct object *o, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		free((void *)record_of(w->rank, o[i].number)->at);
		record_free(w, o[i].number);
	}
}

static const void *messages_read(struct worker *w, const struct object *o)
{
	if (o->copy)
		return ((struct message *)o->at)->bytes + sizeof(*o);
	return (const void *)record_of(o->home, o->number)->at;
}

static void messages_done(struct worker *w, const struct object *o, const void *content)
{
}

static const void *delegation_read(struct worker *w, const struct object *o)
{
	if (is_mine(w, o->home))
		return messages_read(w, o);
	return call(w, 1u << o->home, KIND_FETCH, &o->number, sizeof(o->number))->bytes;
}

static void delegation_done(struct worker *w, const struct object *o, const void *content)
{
	if (!is_mine(w, o->home))
		free((uint8_t *)content - offsetof(struct message, bytes));
}

/* --- cells ------------------------------------------------------------------------ */

static void put_mine(uint32_t cell, const void *from)
{
	struct cell *c = &cells[cell];

	pthread_rwlock_wrlock(&c->lock);
	if (!c->content)
		c->content = malloc(CELL);
	memcpy(c->content, from, CELL);
	pthread_rwlock_unlock(&c->lock);
}

static void get_mine(uint32_t cell, void *to)
{
	struct cell *c = &cells[cell];

	pthread_rwlock_rdlock(&c->lock);
	memcpy(to, c->content, CELL);
	pthread_rwlock_unlock(&c->lock);
}

static void messages_get(struct worker *w, uint32_t cell, void *to)
{
	uint32_t home = cell % w->workers;
	struct message *m;

	if (is_mine(w, home)) {
		get_mine(cell, to);
		return;
	}
	m = call(w, 1u << home, KIND_GET, &cell, sizeof(cell));
	memcpy(to, m->bytes, CELL);
	free(m);
}

static void messages_put(struct worker *w, uint32_t cell, const void *from)
{
	uint32_t home = cell % w->workers;
	struct put p = { .cell = cell };

	if (is_mine(w, home)) {
		put_mine(cell, from);
		return;
	}
	memcpy(p.content, from, CELL);
	free(call(w, 1u << home, KIND_PUT, &p, sizeof(p)));
}

static void messages_handle(struct worker *w, struct message *request)
{
	const struct record *r;
	uint8_t content[CELL];
	uint32_t number;

	memcpy(&number, request->bytes, sizeof(number));
	switch (request->kind) {
	case KIND_FETCH:
		r = record_of(w->rank, number);
		answer(w, request, (void *)r->at, (uint32_t)r->stamp);
		break;
	case KIND_GET:
		get_mine(number, content);
		answer(w, request, content, CELL);
		break;
	default:
		put_mine(number, request->bytes + offsetof(struct put, content));
		answer(w, request, NULL, 0);
	}
}

const struct share share_delegation = {
	.name = "delegation", .join = messages_join, .leave = messages_leave, .make = messages_make,
	.read = delegation_read, .done = delegation_done, .drop = messages_drop,
	.get = messages_get, .put = messages_put, .handle = messages_handle,
};

const struct share share_messages = {
	.name = "messages", .by_value = true, .join = messages_join, .leave = messages_leave,
	.make = messages_make, .read = messages_read, .done = messages_done, .drop = messages_drop,
	.get = messages_get, .put = messages_put, .handle = messages_handle,
};
