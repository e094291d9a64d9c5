// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * By libebbdsm.  An object is a box of its maker; its view is sent.  A cell is a box of its home: a
 * get asks the home for the view and borrows it, a put gives the home a new box.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ebbdsm.h>

#include "bench.h"

enum { SETTLE_PUTS = 32, CACHE = 1 << 30 };

static ebbdsm_t *dsm;
static struct ebbdsm_counts before;
static struct cell {
	pthread_rwlock_t lock;
	struct ebbdsm_box box;
} cells[CELLS];

struct put {
	uint32_t cell, unused;
	struct ebbdsm_parcel parcel;
};

static void check(const char *what, int r)
{
	if (r)
		give_up("%s: %s; %s", what, strerror(-r), ebbdsm_why(dsm));
}

static const void *checked(const char *what, const void *p)
{
	if (!p)
		check(what, -errno);
	return p;
}

static void dsm_join(struct worker *w)
{
	const char *donors[WORKERS_MOST];
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors,
				    .donor_count = w->threads ? 1 : w->workers, .home = w->rank,
				    .pool = "bench", .cache = CACHE, .timeout_ms = 60000 };

	for (uint32_t i = 0; i < o.donor_count; i++)
		donors[i] = i == w->rank ? w->local[i] : w->remote[i];
	if (ebbdsm_open(&o, &dsm))
		give_up("%s", o.error);
	for (uint32_t i = 0; i < CELLS; i++)
		pthread_rwlock_init(&cells[i].lock, NULL);
	before.size = sizeof(before);
	ebbdsm_count(dsm, &before);
}

static void dsm_leave(struct worker *w)
{
	struct ebbdsm_counts after = { .size = sizeof(after) };

	ebbdsm_count(dsm, &after);
	count(&counts->far_trips, after.round_trips - before.round_trips);
	count(&counts->far_messages, 2 * (after.round_trips - before.round_trips) +
	      after.posted - before.posted);
	ebbdsm_close(dsm);
}

static struct ebbdsm_box *box_of(const struct object *o)
{
	return (struct ebbdsm_box *)record_of(o->home, o->number);
}

static void dsm_make(struct worker *w, const void *content, uint32_t size, struct object *o)
{
	struct ebbdsm_view view;

	*o = (struct object){ .home = w->rank, .size = size, .number = record_new(w) };
	check("new", ebbdsm_new(dsm, content, size, box_of(o)));
	view = ebbdsm_lend(box_of(o));
	o->at = view.at;
	o->stamp = view.stamp;
}

static const void *dsm_read(struct worker *w, const struct object *o)
{
	const struct ebbdsm_view view = { o->at, o->stamp };

	return checked("read", is_mine(w, o->home) ? ebbdsm_borrow(dsm, box_of(o)) :
						     ebbdsm_borrow_view(dsm, &view, NULL));
}

static void dsm_done(struct worker *w, const struct object *o, const void *content)
{
	const struct ebbdsm_view view = { o->at, o->stamp };

	check("return", is_mine(w, o->home) ? ebbdsm_return(dsm, box_of(o), content) :
					      ebbdsm_return_view(dsm, &view, content));
}

static void dsm_drop(struct worker *w, const struct object *o, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		check("drop", ebbdsm_drop(dsm, box_of(&o[i])));
		record_free(w, o[i].number);
	}
}

/* --- cells ------------------------------------------------------------------------ */

static void get_mine(uint32_t cell, void *to)
{
	struct cell *c = &cells[cell];
	const void *content;

	pthread_rwlock_rdlock(&c->lock);
	content = checked("get", ebbdsm_borrow(dsm, &c->box));
	memcpy(to, content, CELL);
	check("get", ebbdsm_return(dsm, &c->box, content));
	pthread_rwlock_unlock(&c->lock);
}

static void dsm_get(struct worker *w, uint32_t cell, void *to)
{
	uint32_t home = cell % w->workers;

	if (is_mine(w, home)) {
		get_mine(cell, to);
		return;
	}
	for (;;) {
		struct message *m = call(w, 1u << home, KIND_GET, &cell, sizeof(cell));
		struct ebbdsm_view view;
		const void *content;

		memcpy(&view, m->bytes, sizeof(view));
		free(m);
		content = ebbdsm_borrow_view(dsm, &view, NULL);
		if (content) {
			memcpy(to, content, CELL);
			check("get", ebbdsm_return_view(dsm, &view, content));
			return;
		}
		/* It was replaced since the reply. */
		if (errno != ESTALE)
			check("get", -errno);
	}
}

static void put_mine(uint32_t cell, const void *from)
{
	struct cell *c = &cells[cell];
	void *content;

	pthread_rwlock_wrlock(&c->lock);
	if (!c->box.at) {
		check("put", ebbdsm_new(dsm, from, CELL, &c->box));
	} else {
		content = ebbdsm_borrow_mut(dsm, &c->box);
		if (!content)
			check("put", -errno);
		memcpy(content, from, CELL);
		check("put", ebbdsm_return_mut(dsm, &c->box, content));
	}
	pthread_rwlock_unlock(&c->lock);
}

static void dsm_put(struct worker *w, uint32_t cell, const void *from)
{
	static _Thread_local uint32_t puts;
	uint32_t home = cell % w->workers;
	struct ebbdsm_box box = { 0 };
	struct put p = { .cell = cell };

	if (is_mine(w, home)) {
		put_mine(cell, from);
		return;
	}
	check("put", ebbdsm_new(dsm, from, CELL, &box));
	check("put", ebbdsm_give(dsm, &box, &p.parcel));
	free(call(w, 1u << home, KIND_PUT, &p, sizeof(p)));
	if (++puts % SETTLE_PUTS == 0)
		check("settle", ebbdsm_settle(dsm));
}

static void dsm_handle(struct worker *w, struct message *request)
{
	struct ebbdsm_view view;
	struct put p;
	struct cell *c;

	memcpy(&p, request->bytes, request->size);
	c = &cells[p.cell];
	if (request->kind == KIND_GET) {
		pthread_rwlock_rdlock(&c->lock);
		view = ebbdsm_lend(&c->box);
		pthread_rwlock_unlock(&c->lock);
		answer(w, request, &view, sizeof(view));
		return;
	}
	pthread_rwlock_wrlock(&c->lock);
	check("put", ebbdsm_drop(dsm, &c->box));
	check("put", ebbdsm_accept(dsm, &p.parcel, &c->box));
	pthread_rwlock_unlock(&c->lock);
	answer(w, request, NULL, 0);
}

const struct share share_dsm = {
	.name = "ebbdsm", .join = dsm_join, .leave = dsm_leave, .make = dsm_make, .read = dsm_read,
	.done = dsm_done, .drop = dsm_drop, .get = dsm_get, .put = dsm_put, .handle = dsm_handle,
};
