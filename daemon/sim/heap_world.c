// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include "heap_world.h"

#define PS_PER_S UINT64_C(1000000000000)
/* Servers work in steps of so much of the mutator's time. */
#define STEP (10000u * HEAP_PS_PER_NS)
#define MESSAGE_HEAD 64 /* bytes: head of a frame, and of TCP and IP */

uint64_t heap_time(uint64_t bytes, uint64_t per_second)
{
	return (uint64_t)((unsigned __int128)bytes * PS_PER_S / per_second);
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void heap_fetch(struct heap_world *w, uint64_t ps)
{
	w->r.miss_time += ps;
	w->now += ps;
}

void heap_stop(struct heap_world *w, enum heap_stop kind, uint64_t until)
{
	struct heap_result *r = &w->r;
	uint64_t length;

	if (until <= w->now)
		return;
	length = until - w->now;
	if (kind == HEAP_STOP_WORLD) {
		r->stops++;
		r->stop_time += length;
		r->stop_most = most(r->stop_most, length);
	} else {
		r->waits++;
		r->wait_time += length;
		r->wait_most = most(r->wait_most, length);
	}
	if (r->pauses == r->pause_room)
		r->pause = heap_grow(r->pause, &r->pause_room, r->pauses + 1, sizeof(*r->pause));
	r->pause[r->pauses++] = (struct heap_pause){ w->now, length, kind };
	w->now = until;
}

void heap_message(struct heap_world *w, uint64_t bytes)
{
	w->r.messages++;
	w->r.control += bytes + MESSAGE_HEAD;
}

void heap_overhead(struct heap_world *w, uint64_t tables, uint64_t used)
{
	w->r.used_most = most(w->r.used_most, used);
	if (tables <= w->r.overhead)
		return;
	w->r.overhead = tables;
	w->r.overhead_of = used;
}

void heap_freed(struct heap_world *w, uint32_t object)
{
	w->freed[object] = 1;
	free(w->slots[object]);
	w->slots[object] = NULL;
	w->r.lost += w->alive[object];
}

static void store(struct heap_world *w, const struct heap_pair *p)
{
	uint32_t target = p->access == HEAP_STORED ? p->target + 1 : 0;
	struct heap_slot **slots = &w->slots[p->owner];

	if (!*slots)
		*slots = heap_zeroed(w->file->size[p->owner] / 8, sizeof(**slots));
	w->scheme->store(w->state, p->owner, &(*slots)[p->slot], target);
	(*slots)[p->slot].target = target;
}

static void load(struct heap_world *w, const struct heap_pair *p)
{
	struct heap_slot *slot = w->slots[p->owner] ? &w->slots[p->owner][p->slot] : NULL;

	/* What a program stores without telling is not in the graph. */
	if (!slot || slot->target != p->target + 1)
		return;
	w->r.loads++;
	w->scheme->load(w->state, slot);
}

static void touch(struct heap_world *w, uint64_t event)
{
	uint32_t object = heap_number(event), at = 0, bytes = w->file->size[object];
	enum heap_kind kind = heap_kind(event);

	if (kind == HEAP_READ_LARGE || kind == HEAP_WRITE_LARGE) {
		at = (uint32_t)(heap_place(event) - w->file->place[object]);
		bytes = 8;
	}
	w->r.touches++;
	heap_spend(w, w->config->touch);
	w->scheme->touch(w->state, object, at, bytes,
			 kind == HEAP_WRITE || kind == HEAP_WRITE_LARGE);
}

static void died(struct heap_world *w, uint32_t object)
{
	w->alive[object] = 0;
	w->live -= w->file->size[object];
}

/* Handles event @i; returns how many are used.  *@collecting: roots come. */
static size_t take(struct heap_world *w, size_t i, bool *collecting)
{
	uint64_t e = w->file->event[i];
	bool reference = heap_kind(e) == HEAP_MARK && e & HEAP_REFERENCE;
	struct heap_pair p;

	if (reference) {
		p = heap_file_pair(w->file, i);
		if (p.access == HEAP_ROOT) {
			heap_list_add(&w->roots, p.target);
			return 2;
		}
	}
	if (*collecting)
		w->scheme->collect(w->state);
	*collecting = false;
	switch (heap_kind(e)) {
	case HEAP_BORN:
		w->alive[w->born] = 1;
		w->live += heap_size(e);
		w->scheme->born(w->state, w->born++);
		break;
	case HEAP_READ:
	case HEAP_WRITE:
	case HEAP_READ_LARGE:
	case HEAP_WRITE_LARGE:
		touch(w, e);
		break;
	case HEAP_DIED:
		died(w, heap_number(e));
		break;
	case HEAP_DROP:
		break;
	case HEAP_MARK:
		if (reference) {
			if (p.access == HEAP_LOADED)
				load(w, &p);
			else
				store(w, &p);
			return 2;
		}
		if (heap_number(e) == HEAP_COLLECTED) {
			w->roots.count = 0;
			*collecting = true;
		}
		break;
	}
	return 1;
}

void heap_run(const struct heap_file *file, const struct heap_config *config,
	      const struct heap_scheme *scheme, struct heap_result *result)
{
	struct heap_world w = { .file = file, .config = config, .scheme = scheme };
	bool collecting = false;

	w.slots = heap_zeroed(file->objects, sizeof(struct heap_slot *));
	w.alive = heap_zeroed(file->objects, 1);
	w.freed = heap_zeroed(file->objects, 1);
	w.state = scheme->create(&w);
	for (size_t i = 0; i < file->events;) {
		i += take(&w, i, &collecting);
		if (w.now - w.ran >= STEP) {
			w.ran = w.now;
			scheme->run(w.state);
		}
	}
	w.r.time = w.now;
	for (uint32_t o = 0; o < w.born; o++)
		if (!w.alive[o] && !w.freed[o])
			w.r.floating += file->size[o];
	scheme->destroy(w.state);
	for (uint32_t o = 0; o < file->objects; o++)
		free(w.slots[o]);
	free(w.slots);
	free(w.alive);
	free(w.freed);
	heap_list_free(&w.roots);
	*result = w.r;
}

void heap_result_free(struct heap_result *r)
{
	free(r->pause);
	memset(r, 0, sizeof(*r));
}
