// SPDX-License-Identifier: GPL-2.0-or-later
/* What ways to share have in common; and the way of threads: pointers and locks. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* --- records ---------------------------------------------------------------------- */

static struct records {
	struct record *record;
	uint32_t *unused;
	uint32_t free, used;
} records[WORKERS_MOST];

struct record *record_of(uint32_t home, uint32_t number)
{
	return &records[home].record[number];
}

uint32_t record_new(struct worker *w)
{
	struct records *r = &records[w->rank];

	if (!r->record) {
		r->record = calloc(OBJECTS, sizeof(*r->record));
		r->unused = calloc(OBJECTS, sizeof(*r->unused));
		if (!r->record || !r->unused)
			give_up("out of memory");
	}
	if (r->free)
		return r->unused[--r->free];
	if (r->used == OBJECTS)
		give_up("too many objects; make the program smaller");
	return r->used++;
}

void record_free(struct worker *w, uint32_t number)
{
	struct records *r = &records[w->rank];

	r->record[number] = (struct record){ 0 };
	r->unused[r->free++] = number;
}

/* --- sending ---------------------------------------------------------------------- */

static void send_value(struct worker *w, uint32_t to, uint32_t kind, const struct object *o)
{
	const void *content = w->share->read(w, o);
	uint8_t *bytes = malloc(sizeof(*o) + o->size);

	if (!bytes)
		give_up("out of memory");
	memcpy(bytes, o, sizeof(*o));
	memcpy(bytes + sizeof(*o), content, o->size);
	w->share->done(w, o, content);
	tell(w, to, kind, bytes, (uint32_t)sizeof(*o) + o->size, 1);
	free(bytes);
}

void share_send(struct worker *w, uint32_t to, uint32_t kind, const struct object *o, uint32_t n)
{
	if (!w->share->by_value)
		tell(w, to, kind, o, n * (uint32_t)sizeof(*o), n);
	for (uint32_t i = 0; i < n && w->share->by_value; i++)
		send_value(w, to, kind, &o[i]);
}

uint32_t share_receive(struct worker *w, uint32_t kind, struct object *o, uint32_t most)
{
	uint32_t n = 0, some = 1;

	for (; n < most && some; n += some) {
		struct message *m = hear(w, kind);

		some = m->objects;
		if (n + some > most)
			give_up("more objects than expected");
		memcpy(&o[n], m->bytes, some * sizeof(*o));
		if (w->share->by_value && some) {
			o[n].at = (uint64_t)m;
			o[n].copy = 1;
		} else {
			free(m);
		}
	}
	return n;
}

void share_forget(struct worker *w, struct object *o)
{
	if (o->copy)
		free((void *)o->at);
	*o = (struct object){ 0 };
}

/* --- threads ---------------------------------------------------------------------- */

static struct cell {
	pthread_rwlock_t lock;
	void *content;
} cells[CELLS];

static void local_join(struct worker *w)
{
	for (uint32_t i = 0; i < CELLS; i++)
		pthread_rwlock_init(&cells[i].lock, NULL);
}

static void local_leave(struct worker *w)
{
	for (uint32_t i = 0; i < CELLS; i++)
		free(cells[i].content);
}

static void local_make(struct worker *w, const void *content, uint32_t size, struct object *o)
{
	void *copy = malloc(size);

	if (!copy)
		give_up("out of memory");
	memcpy(copy, content, size);
	*o = (struct object){ .at = (uint64_t)copy, .home = w->rank, .size = size };
}

static const void *local_read(struct worker *w, const struct object *o)
{
	return (const void *)o->at;
}

static void local_done(struct worker *w, const struct object *o, const void *content)
{
}

static void local_drop(struct worker *w, const struct object *o, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free((void *)o[i].at);
}

static void local_get(struct worker *w, uint32_t cell, void *to)
{
	pthread_rwlock_rdlock(&cells[cell].lock);
	memcpy(to, cells[cell].content, CELL);
	pthread_rwlock_unlock(&cells[cell].lock);
}

static void local_put(struct worker *w, uint32_t cell, const void *from)
{
	pthread_rwlock_wrlock(&cells[cell].lock);
	if (!cells[cell].content)
		cells[cell].content = malloc(CELL);
	memcpy(cells[cell].content, from, CELL);
	pthread_rwlock_unlock(&cells[cell].lock);
}

const struct share share_local = {
	.name = "malloc", .join = local_join, .leave = local_leave, .make = local_make,
	.read = local_read, .done = local_done, .drop = local_drop, .get = local_get,
	.put = local_put,
};
