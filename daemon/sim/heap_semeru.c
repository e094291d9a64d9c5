// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Semeru on a recorded program: servers trace evicted regions all the time (MSCT), each from its
 * remembered set; the CPU server stops the world to evacuate (CSSC).
 *
 * In contrast to the paper, references that the mutator overwrites are roots, too: G1's barrier has
 * them, and without them what the servers trace lacks live objects
 * (tests/unit/test_model_semeru.c).
 */
#include <stdlib.h>
#include <string.h>

#include "heap_regions.h"
#include "semeru_remset.h"
#include "semeru_tags.h"

#define ADDRESS 16 /* bytes of a message for each moved object, each updated reference */

/* Of a region: not traced since the last collection; traced; a to-space of this collection. */
enum { UNTRACED, TRACED, OPENED };

struct server {
	uint32_t region;           /* that is being traced, or HEAP_NO_REGION */
	uint64_t until;
	struct semeru_tags before;
	uint32_t to;               /* of evacuation, or HEAP_NO_REGION */
	uint64_t copied;           /* bytes in this collection */
};

struct semeru {
	struct heap_world *w;
	struct heap_regions rs;
	struct remset remset;
	struct server s[HEAP_SERVERS];
	struct semeru_tags *tags;  /* of each region */
	uint32_t tag_room;
	uint32_t collection, traces;
	uint32_t *closed;          /* trace in which each object was found alive */
	uint32_t *root;            /* last collection at which it was a root, or before its log */
	uint32_t *moved;           /* collection in which each object moved */
	struct heap_list stack, movers;
	uint64_t updates;          /* of references on servers, in this collection */
};

static void evicted(void *arg, uint32_t region)
{
	struct semeru *m = arg;

	m->tags = heap_grow(m->tags, &m->tag_room, region + 1, sizeof(*m->tags));
	m->tags[region] = semeru_evicted(semeru_evict(m->tags[region]));
}

static void *semeru_create(struct heap_world *w)
{
	struct semeru *m = heap_zeroed(1, sizeof(*m));

	m->w = w;
	heap_regions_init(&m->rs, w);
	m->rs.evicted = evicted;
	m->rs.arg = m;
	remset_init(&m->remset, w->file->objects);
	m->closed = heap_zeroed(w->file->objects, sizeof(*m->closed));
	m->root = heap_zeroed(w->file->objects, sizeof(*m->root));
	m->moved = heap_zeroed(w->file->objects, sizeof(*m->moved));
	m->collection = 1;
	for (uint32_t i = 0; i < HEAP_SERVERS; i++)
		m->s[i].region = m->s[i].to = HEAP_NO_REGION;
	return m;
}

static void semeru_destroy(void *state)
{
	struct semeru *m = state;

	heap_regions_free(&m->rs);
	remset_free(&m->remset);
	heap_list_free(&m->stack);
	heap_list_free(&m->movers);
	free(m->tags);
	free(m->closed);
	free(m->root);
	free(m->moved);
	free(m);
}

static uint64_t sent(const struct semeru *m, uint64_t bytes)
{
	return heap_time(bytes, m->w->config->bandwidth);
}

/* --- tracing a region ------------------------------------------------------------- */

static void reach(struct semeru *m, uint32_t region, uint32_t object)
{
	if (m->closed[object] == m->rs.at[region].trace || !heap_in(&m->rs, region, object))
		return;
	m->closed[object] = m->rs.at[region].trace;
	heap_list_add(&m->stack, object);
}

/*
 * Adds to the closure of @region what is reachable within it from its remembered set, from roots,
 * overwritten references and new objects.  Returns the bytes that were added.
 */
static uint64_t close_region(struct semeru *m, uint32_t region)
{
	struct heap_region *r = &m->rs.at[region];
	struct heap_world *w = m->w;
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < r->objects.count; k++) {
		uint32_t o = r->objects.at[k];

		if (k >= r->fresh || m->remset.targets[o] || m->root[o] == m->collection)
			reach(m, region, o);
	}
	while (m->stack.count) {
		uint32_t o = m->stack.at[--m->stack.count];

		bytes += w->file->size[o];
		for (uint32_t k = 1; k < heap_words(w, o); k++)
			if (w->slots[o][k].target)
				reach(m, region, w->slots[o][k].target - 1);
	}
	r->live += bytes;
	return bytes;
}

static uint64_t trace_afresh(struct semeru *m, uint32_t region)
{
	m->rs.at[region].trace = ++m->traces;
	m->rs.at[region].live = 0;
	return close_region(m, region);
}

static bool is_mostly_cached(const struct semeru *m, uint32_t region)
{
	uint32_t pages = (m->rs.at[region].used + HEAP_PAGE - 1) / HEAP_PAGE;

	return heap_region_cached(&m->rs, region) * 2 >= pages;
}

/* Regions of one object are not evacuated. */
static bool is_traceable(const struct semeru *m, uint32_t region)
{
	const struct heap_region *r = &m->rs.at[region];

	return r->span == 1 && r->objects.count && region != m->rs.current;
}

/* The youngest, and of those the one with fewest cached pages. */
static uint32_t next_region(const struct semeru *m, uint32_t server)
{
	uint32_t best = HEAP_NO_REGION;

	for (uint32_t i = server; i < m->rs.count; i += m->w->config->servers) {
		if (!is_traceable(m, i) || m->rs.at[i].state == TRACED || is_mostly_cached(m, i))
			continue;
		if (best == HEAP_NO_REGION || m->rs.at[i].age < m->rs.at[best].age ||
		    (m->rs.at[i].age == m->rs.at[best].age &&
		     heap_region_cached(&m->rs, i) < heap_region_cached(&m->rs, best)))
			best = i;
	}
	return best;
}

static void end_trace(struct semeru *m, struct server *s)
{
	if (semeru_traced(s->before, m->tags[s->region])) {
		m->rs.at[s->region].state = TRACED;
		m->w->r.rounds++;
	} else {
		m->w->r.discarded++;
	}
	s->region = HEAP_NO_REGION;
}

static void semeru_run(void *state)
{
	struct semeru *m = state;
	struct heap_world *w = m->w;

	for (uint32_t i = 0; i < w->config->servers; i++) {
		struct server *s = &m->s[i];

		while (s->region == HEAP_NO_REGION || s->until <= w->now) {
			uint64_t from = s->region == HEAP_NO_REGION ? w->now : s->until, bytes;

			if (s->region != HEAP_NO_REGION)
				end_trace(m, s);
			s->region = next_region(m, i);
			if (s->region == HEAP_NO_REGION)
				break;
			m->tags = heap_grow(m->tags, &m->tag_room, s->region + 1, sizeof(*m->tags));
			s->before = m->tags[s->region];
			bytes = trace_afresh(m, s->region);
			w->r.traced += bytes;
			/* An empty closure takes the time to look. */
			s->until = from + heap_time(bytes + HEAP_PAGE, w->config->tracing);
		}
	}
}

/* --- the collection --------------------------------------------------------------- */

static bool is_closed(const struct semeru *m, uint32_t region, uint32_t object)
{
	return heap_in(&m->rs, region, object) && m->closed[object] == m->rs.at[region].trace;
}

/* Puts @object into the to-space *@to of @server, or of any; a full one is replaced. */
static void move(struct semeru *m, uint32_t object, uint32_t server, uint32_t *to,
		 struct heap_list *opened)
{
	if (*to == HEAP_NO_REGION || !heap_region_put(&m->rs, *to, object)) {
		*to = heap_region_new(&m->rs, server);
		heap_list_add(opened, *to);
		m->rs.at[*to].state = OPENED;
		heap_region_put(&m->rs, *to, object);
	}
	m->moved[object] = m->collection;
	heap_list_add(&m->movers, object);
}

/* Frees the dead and the region. */
static void empty(struct semeru *m, uint32_t region)
{
	struct heap_region *r = &m->rs.at[region];

	for (uint32_t k = 0; k < r->objects.count; k++)
		if (heap_in(&m->rs, region, r->objects.at[k]))
			heap_freed(m->w, r->objects.at[k]);
	heap_region_release(&m->rs, region);
}

/* Returns the time of the CPU server. */
static uint64_t move_here(struct semeru *m, uint32_t region, uint32_t *to, struct heap_list *opened)
{
	struct heap_region *r = &m->rs.at[region];
	uint64_t time = 0;

	for (uint32_t k = 0; k < r->objects.count; k++) {
		uint32_t o = r->objects.at[k], size = m->w->file->size[o];

		if (!is_closed(m, region, o))
			continue;
		time += heap_region_touch(&m->rs, o, 0, size, false);
		move(m, o, HEAP_NO_REGION, to, opened);
		time += heap_region_touch(&m->rs, o, 0, size, true);
		time += heap_time(size, m->w->config->copying);
		m->w->r.moved_here += size;
		r = &m->rs.at[region];
	}
	empty(m, region);
	return time;
}

static void move_there(struct semeru *m, uint32_t region, struct heap_list *opened)
{
	uint32_t server = heap_server(&m->rs, region);
	struct heap_region *r = &m->rs.at[region];

	for (uint32_t k = 0; k < r->objects.count; k++) {
		uint32_t o = r->objects.at[k];

		if (!is_closed(m, region, o))
			continue;
		move(m, o, server, &m->s[server].to, opened);
		m->s[server].copied += m->w->file->size[o];
		m->w->r.moved += m->w->file->size[o];
		r = &m->rs.at[region];
	}
	empty(m, region);
}

/* Drops pairs with a dead end; counts references on servers to objects that have moved. */
static bool keep(void *arg, uint32_t source, uint32_t target)
{
	struct semeru *m = arg;
	const struct heap_region *r = &m->rs.at[m->rs.of[source]];

	if (m->w->freed[source] || m->w->freed[target])
		return false;
	if (r->state == TRACED && m->closed[source] != r->trace &&
	    m->moved[source] != m->collection)
		return false;
	if (m->moved[target] == m->collection && !is_mostly_cached(m, m->rs.of[source]))
		m->updates++;
	return true;
}

/* References between objects that were in one region and are not any more. */
static void remember_moved(struct semeru *m)
{
	for (uint32_t i = 0; i < m->movers.count; i++) {
		uint32_t o = m->movers.at[i];

		for (uint32_t k = 1; k < heap_words(m->w, o); k++) {
			uint32_t target = m->w->slots[o][k].target;

			if (target && m->rs.of[target - 1] != m->rs.of[o])
				remset_add(&m->remset, o, target - 1);
		}
	}
	m->movers.count = 0;
}

static void note_roots(struct semeru *m)
{
	for (uint32_t k = 0; k < m->w->roots.count; k++)
		m->root[m->w->roots.at[k]] = m->collection;
}

/* Returns the bytes of remembered targets and roots that servers get for their next traces. */
static uint64_t roots_bytes(const struct semeru *m)
{
	uint64_t n = m->w->roots.count;

	for (uint32_t o = 0; o < m->w->born; o++)
		n += m->remset.targets[o] && !m->w->freed[o];
	return 8 * n;
}

static uint64_t tables(const struct semeru *m, uint64_t used)
{
	/* A bit per 8 bytes, and forward tables of what is traced: 8 bytes per object. */
	return (uint64_t)m->remset.count * REMSET_PAIR + used / 64 + 8ull * m->w->born / 2;
}

/* What happens to each region; returns the CPU server's time, and what it writes in *@out. */
static uint64_t reclaim(struct semeru *m, uint64_t *out, struct heap_list *here,
			struct heap_list *there)
{
	const struct heap_config *c = m->w->config;
	uint64_t time = 0, messages = 0;
	uint32_t to = HEAP_NO_REGION, regions = m->rs.count;

	for (uint32_t i = 0; i < regions; i++) {
		struct heap_region *r = &m->rs.at[i];
		bool cached;

		if (!r->span || !r->objects.count || i == m->rs.current || r->state == OPENED)
			continue;
		cached = is_mostly_cached(m, i);
		if (r->state == TRACED) {
			/* New objects, roots and the log are added to what the server knows. */
			m->w->r.traced += close_region(m, i);
		} else if (cached || r->span > 1) {
			uint64_t bytes = trace_afresh(m, i);

			m->w->r.traced_here += bytes;
			time += heap_time(bytes, c->tracing);
			r->state = TRACED;
		} else {
			continue;
		}
		if (!r->live)
			empty(m, i);
		else if (r->span > 1 || r->live * 100 > (uint64_t)c->sparse * m->rs.bytes)
			r->age++;
		else if (cached)
			time += move_here(m, i, &to, here);
		else {
			*out += heap_region_write(&m->rs, i, true);
			messages += ADDRESS;
			move_there(m, i, there);
		}
	}
	for (uint32_t i = 0; i < c->servers; i++)
		heap_message(m->w, messages / c->servers);
	return time;
}

/* All is brought to the CPU server, traced and compacted: returns its time. */
static uint64_t collect_all(struct semeru *m)
{
	struct heap_world *w = m->w;
	struct heap_list opened = { 0 };
	uint32_t to = HEAP_NO_REGION, regions = m->rs.count, trace = ++m->traces;
	uint64_t time = 0;

	for (uint32_t k = 0; k < w->roots.count; k++)
		heap_list_add(&m->stack, w->roots.at[k]);
	while (m->stack.count) {
		uint32_t o = m->stack.at[--m->stack.count];

		if (m->closed[o] == trace)
			continue;
		m->closed[o] = trace;
		w->r.traced_here += w->file->size[o];
		time += heap_region_touch(&m->rs, o, 0, w->file->size[o], false) +
			heap_time(w->file->size[o], w->config->tracing);
		for (uint32_t k = 1; k < heap_words(w, o); k++)
			if (w->slots[o][k].target)
				heap_list_add(&m->stack, w->slots[o][k].target - 1);
	}
	m->rs.current = HEAP_NO_REGION;
	for (uint32_t i = 0; i < regions; i++)
		m->rs.at[i].state = UNTRACED;
	for (uint32_t i = 0; i < regions; i++) {
		struct heap_region *r = &m->rs.at[i];

		if (!r->span || !r->objects.count || r->state == OPENED)
			continue;
		r->trace = trace;
		if (r->span == 1)
			time += move_here(m, i, &to, &opened);
		else if (!is_closed(m, i, r->objects.at[0]))
			empty(m, i);
	}
	w->r.full++;
	heap_list_free(&opened);
	return time;
}

static void reset_regions(struct semeru *m)
{
	for (uint32_t i = 0; i < m->rs.count; i++) {
		m->rs.at[i].state = UNTRACED;
		m->rs.at[i].fresh = m->rs.at[i].objects.count;
	}
	for (uint32_t i = 0; i < HEAP_SERVERS; i++) {
		m->s[i].region = m->s[i].to = HEAP_NO_REGION;
		m->s[i].copied = 0;
	}
}

static void semeru_collect(void *state)
{
	struct semeru *m = state;
	struct heap_world *w = m->w;
	const struct heap_config *c = w->config;
	struct heap_list here = { 0 }, there = { 0 };
	uint64_t cpu, servers = 0, out = 0, used, moved, bytes;

	w->r.cycles++;
	used = (uint64_t)m->rs.in_use * m->rs.bytes;
	heap_overhead(w, tables(m, used), used);
	note_roots(m);
	/* What is being allocated in is not reclaimed, nor is anything in it known to be dead. */
	if (m->rs.current != HEAP_NO_REGION)
		m->rs.at[m->rs.current].state = UNTRACED;
	cpu = reclaim(m, &out, &here, &there);
	for (uint32_t k = 0; k < here.count; k++)
		out += heap_region_write(&m->rs, here.at[k], false);
	for (uint32_t k = 0; k < there.count; k++)
		heap_region_remote(&m->rs, there.at[k]);
	for (uint32_t i = 0; i < c->servers; i++) {
		uint64_t time = heap_time(m->s[i].copied, c->copying);

		servers = time > servers ? time : servers;
	}
	moved = m->movers.count;
	m->updates = 0;
	remember_moved(m);
	cpu += (uint64_t)m->remset.count * c->touch;
	remset_clean(&m->remset, keep, m);
	/* To and from each server: addresses, updates, then dead sources and roots. */
	bytes = ADDRESS * (moved + m->updates) + roots_bytes(m);
	for (uint32_t i = 0; i < 4 * c->servers; i++)
		heap_message(w, bytes / (4 * c->servers));
	if ((uint64_t)m->rs.in_use * m->rs.bytes * 100 > w->file->head.peak_bytes * c->full) {
		cpu += collect_all(m);
		remember_moved(m);
		remset_clean(&m->remset, keep, m);
	}
	heap_stop(w, HEAP_STOP_WORLD, w->now + c->stop + 4 * c->trip + sent(m, out + bytes) +
					      (cpu > servers ? cpu : servers));
	reset_regions(m);
	m->collection++;
	note_roots(m);
	heap_list_free(&here);
	heap_list_free(&there);
}

/* --- the mutator ------------------------------------------------------------------ */

static void touched(struct semeru *m, uint64_t wait)
{
	if (wait)
		heap_fetch(m->w, wait);
}

static void semeru_born(void *state, uint32_t object)
{
	struct semeru *m = state;
	bool opened;
	uint64_t used;

	heap_region_allocate(&m->rs, object, &opened);
	if (opened) {
		used = (uint64_t)m->rs.in_use * m->rs.bytes;
		heap_overhead(m->w, tables(m, used), used);
	}
	touched(m, heap_region_touch(&m->rs, object, 0, m->w->file->size[object], true));
}

static void semeru_touch(void *state, uint32_t object, uint32_t at, uint32_t bytes, bool write)
{
	struct semeru *m = state;

	touched(m, heap_region_touch(&m->rs, object, at, bytes, write));
}

static void semeru_load(void *state, struct heap_slot *slot)
{
	(void)state;
	(void)slot;
}

static void semeru_store(void *state, uint32_t owner, struct heap_slot *slot, uint32_t target)
{
	struct semeru *m = state;

	if (slot->target)
		m->root[slot->target - 1] = m->collection;
	if (target && m->rs.of[owner] != m->rs.of[target - 1])
		remset_add(&m->remset, owner, target - 1);
}

const struct heap_scheme heap_semeru = {
	.name = "semeru", .title = "Semeru", .create = semeru_create, .destroy = semeru_destroy,
	.born = semeru_born, .touch = semeru_touch, .store = semeru_store, .load = semeru_load,
	.collect = semeru_collect, .run = semeru_run,
};
