// SPDX-License-Identifier: GPL-2.0-or-later
#include "extents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/draw.h"

enum { TRIP = 2000, JITTER = 1000 }; /* ns */
enum { WARM_UP = 4 };		     /* bursts */

struct client {
	uint64_t at; /* ns: when its verb takes effect */
	struct extents_meter meter;
	struct ebb_far_name *held;
	uint32_t room, count, to_free, to_allocate, rounds;
	bool allocates, done;
};

struct world {
	const struct extents_config *c;
	const struct extents_scheme *scheme;
	void *scheme_world;
	struct client *client;
	uint32_t *heap, in_heap; /* clients by .at */
	uint32_t running;	 /* clients that are not done */
	uint8_t *used_by;	 /* 1 = in use, by extent */
	uint32_t in_use;	 /* extents */
	double used;		 /* sum of .in_use at allocations that are measured */
	bool twice;		 /* an extent had two owners */
	uint64_t seed;
};

static uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* --- the next client -------------------------------------------------------------- */

static bool earlier(const struct world *w, uint32_t a, uint32_t b)
{
	return w->client[w->heap[a]].at < w->client[w->heap[b]].at;
}

static void exchange(struct world *w, uint32_t a, uint32_t b)
{
	uint32_t t = w->heap[a];

	w->heap[a] = w->heap[b];
	w->heap[b] = t;
}

static void sift_down(struct world *w, uint32_t at)
{
	for (;;) {
		uint32_t least = at;

		for (uint32_t child = 2 * at + 1; child <= 2 * at + 2; child++)
			if (child < w->in_heap && earlier(w, child, least))
				least = child;
		if (least == at)
			return;
		exchange(w, at, least);
		at = least;
	}
}

static void build_heap(struct world *w)
{
	w->in_heap = w->c->clients;
	for (uint32_t i = 0; i < w->in_heap; i++)
		w->heap[i] = i;
	for (uint32_t i = w->in_heap; i-- > 0;)
		sift_down(w, i);
}

/* --- operations ------------------------------------------------------------------- */

static void mark(struct world *w, const struct ebb_far_name *n, bool used)
{
	uint8_t *is = &w->used_by[n->section * EBB_FAR_SLOTS + n->word];

	w->twice |= *is == used;
	*is = used;
	w->in_use += used ? 1 : -1u;
}

static void begin(struct world *w, uint32_t i)
{
	struct client *c = &w->client[i];

	memset(&c->meter, 0, sizeof(c->meter));
	if (!c->to_free && !c->to_allocate) {
		c->to_free = c->to_allocate = w->c->burst < c->count ? w->c->burst : c->count;
		c->rounds++;
	}
	c->allocates = !c->to_free;
	if (c->allocates) {
		c->to_allocate--;
		w->scheme->allocate(w->scheme_world, i);
		return;
	}
	uint32_t chosen = draw_below(&w->seed, c->count);
	struct ebb_far_name extent = c->held[chosen];

	c->held[chosen] = c->held[--c->count];
	c->to_free--;
	mark(w, &extent, false);
	w->scheme->free(w->scheme_world, i, &extent);
}

static void count(struct extents_cost *to, const struct extents_meter *m, int result)
{
	to->operations++;
	to->refused += result != 0;
	to->swaps += m->swaps;
	to->most_swaps = max64(to->most_swaps, m->swaps);
	to->last_swaps += m->last_swaps;
	to->most_last_swaps = max64(to->most_last_swaps, m->last_swaps);
	to->trips += m->trips;
	to->most_trips = max64(to->most_trips, m->trips);
	to->bytes += m->bytes;
	to->posted += m->posted;
}

/* Runs one operation of client @i alone, for the setup. */
static int run_alone(struct world *w, uint32_t i, struct ebb_far_name *extent)
{
	struct extents_meter m = { 0 };
	int result;

	while (!w->scheme->step(w->scheme_world, i, &m, &result, extent))
		;
	return result;
}

/* Gives all extents to the clients in turn.  Returns false if some cannot be had. */
static bool allocate_all(struct world *w, uint32_t all)
{
	uint32_t n = w->c->clients, got = 0;

	for (uint32_t i = 0, refused = 0; got < all && refused < 100 * n; i = (i + 1) % n) {
		struct client *c = &w->client[i];

		if (c->count == c->room)
			continue;
		w->scheme->allocate(w->scheme_world, i);
		if (run_alone(w, i, &c->held[c->count])) {
			refused++;
			continue;
		}
		mark(w, &c->held[c->count++], true);
		got++;
	}
	return got == all;
}

/*
 * Every extent is allocated once, so that all sections have been opened; then each client frees
 * random ones of its own until it has its part.  Returns 0, -ENOMEM, or -EPROTO if extents cannot
 * be allocated.
 */
static int set_up(struct world *w, uint32_t all)
{
	uint32_t n = w->c->clients, keep = (uint32_t)(w->c->fill * all);

	for (uint32_t i = 0; i < n; i++) {
		struct client *c = &w->client[i];

		c->room = all / n + (i < all % n);
		c->held = calloc(c->room, sizeof(*c->held));
		if (!c->held)
			return -ENOMEM;
	}
	if (!allocate_all(w, all))
		return -EPROTO;
	for (uint32_t i = 0; i < n; i++) {
		struct client *c = &w->client[i];

		while (c->count > keep / n + (i < keep % n)) {
			uint32_t chosen = draw_below(&w->seed, c->count);
			struct ebb_far_name extent = c->held[chosen];

			c->held[chosen] = c->held[--c->count];
			mark(w, &extent, false);
			w->scheme->free(w->scheme_world, i, &extent);
			run_alone(w, i, &extent);
		}
		w->scheme->forget(w->scheme_world, i);
	}
	return 0;
}

/* Lets the clients go on until each has done its bursts. */
static void run(struct world *w, struct extents_result *result)
{
	for (uint32_t i = 0; i < w->c->clients; i++) {
		w->client[i].at = draw_below(&w->seed, TRIP);
		begin(w, i);
	}
	build_heap(w);
	while (w->in_heap) {
		uint32_t i = w->heap[0];
		struct client *c = &w->client[i];
		struct ebb_far_name extent = { 0 };
		int r;

		if (w->scheme->step(w->scheme_world, i, &c->meter, &r, &extent)) {
			bool measured = c->rounds > WARM_UP && c->rounds <= WARM_UP + w->c->rounds;

			if (measured && c->allocates)
				w->used += w->in_use;
			if (measured)
				count(c->allocates ? &result->allocate : &result->free, &c->meter,
				      r);
			if (c->allocates && !r) {
				c->held[c->count++] = extent;
				mark(w, &extent, true);
			}
			begin(w, i);
			/* The others still compete until the last one is done. */
			w->running -= c->rounds == WARM_UP + w->c->rounds + 1 && !c->done;
			c->done |= c->rounds > WARM_UP + w->c->rounds;
			if (!w->running)
				return;
		}
		c->at += TRIP - JITTER / 2 + draw_below(&w->seed, JITTER);
		sift_down(w, 0);
	}
}

static void free_world(struct world *w)
{
	if (w->scheme_world)
		w->scheme->delete (w->scheme_world);
	for (uint32_t i = 0; w->client && i < w->c->clients; i++)
		free(w->client[i].held);
	free(w->client);
	free(w->heap);
}

int extents_run(const struct extents_config *c, const struct extents_scheme *scheme,
		struct extents_result *result, struct error *e)
{
	struct world w = {
		.c = c, .scheme = scheme, .seed = draw_stream(c->seed, 0), .running = c->clients,
	};
	uint32_t all = c->sections * EBB_FAR_SLOTS;
	int r = -ENOMEM;

	memset(result, 0, sizeof(*result));
	/* A client without extents has nothing to free, hence nothing to do. */
	if ((uint32_t)(c->fill * all) < c->clients)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "clients: %u are more than the extents in use, %u; give a larger --sections or --fill, or fewer --clients",
				 c->clients, (uint32_t)(c->fill * all));
	w.scheme_world = scheme->new (c);
	w.client = calloc(c->clients, sizeof(*w.client));
	w.heap = calloc(c->clients, sizeof(*w.heap));
	if (w.scheme_world && w.client && w.heap) {
		w.used_by = calloc(all, 1);
		r = w.used_by ? set_up(&w, all) : -ENOMEM;
	}
	if (!r) {
		run(&w, result);
		result->used = w.used / (double)result->allocate.operations / all;
	}
	free(w.used_by);
	free_world(&w);
	if (w.twice)
		return fail(e, EPROTO, "extents: %s: an extent had two owners", scheme->name);
	if (r == -EPROTO)
		return fail(e, EPROTO, "extents: %s: free extents are not found", scheme->name);
	return r ? fail(e, ENOMEM, "extents: out of memory; close other programs") : 0;
}
