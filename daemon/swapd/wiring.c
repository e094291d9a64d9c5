// SPDX-License-Identifier: GPL-2.0-or-later
/* Knows all rooms: fills in every table of upcalls. */
#include <string.h>

#include "failover.h"
#include "swapd.h"
#include "swapd/io/engine.h"
#include "swapd/replicas/donor_asks.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/slab_mapping.h"

/* --- frontends -------------------------------------------------------------------- */

const struct frontend *frontend_find(const char *name)
{
	static const struct frontend *const all[] = { &fuse_frontend, &ublk_frontend };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(name, all[i]->name))
			return all[i];
	return NULL;
}

/* --- donors to replicas and engine ------------------------------------------------- */

static void donor_is_up(void *s)
{
	placing_retry(s);
}

static void donor_is_lost(void *s, struct donor *d)
{
	placing_lost(s, d);
}

static void leg_gone(void *owner, int number)
{
	struct swapd *s = owner;

	engine_donor_gone(s, &s->slots.slot[number / SLAB_COPIES], number % SLAB_COPIES);
}

static int donor_answered_map(void *s, struct donor *d, const struct wire_frame *f)
{
	return placing_answered(s, d, f);
}

static int donor_resumed(void *s, struct donor *d, const struct wire_frame *f)
{
	return placing_confirmed(s, d, f);
}

static int donor_asked(void *s, struct donor *d, const struct wire_frame *f,
		       const uint8_t *payload)
{
	return f->op == WIRE_EVICT ? donor_asks_back(s, d, f) :
				     donor_asks_activity(s, d, f, payload);
}

static uint64_t oldest_map(void *s, const struct donor *d)
{
	return placing_oldest(s, d);
}

static void ask_later(void *s, struct donor *d, uint64_t now)
{
	placing_ask_later(s, d, now);
}

/* --- engine to replicas ------------------------------------------------------------ */

static bool copy_wanted(void *s, uint32_t slab)
{
	return placing_open(s, slab, now_ns());
}

static void resynced(void *s, struct slot *slot)
{
	repair_resynced(s, slot);
}

static void exclusive(void *s, struct slot *slot)
{
	repair_exclusive(s, slot);
}

static void exclusive_backed(void *s, struct slot *slot)
{
	repair_exclusive_backed(s, slot);
}

void wiring_events(struct swapd *s)
{
	static const struct donor_events donor_events = {
		.up = donor_is_up, .lost = donor_is_lost, .leg_gone = leg_gone,
		.answered = donor_answered_map, .resumed = donor_resumed, .asked = donor_asked,
		.oldest = oldest_map, .ask_later = ask_later,
	};
	static const struct engine_events engine_events = {
		.wanted = copy_wanted, .resynced = resynced, .exclusive = exclusive,
		.exclusive_backed = exclusive_backed,
	};

	s->donor_events = &donor_events;
	s->engine_events = &engine_events;
}

/* --- frontend to engine ----------------------------------------------------------- */

static struct slot *get(void *engine)
{
	struct swapd *s = engine;

	return slot_get(&s->slots);
}

static void put(void *engine, struct slot *slot)
{
	struct swapd *s = engine;

	slot_put(&s->slots, slot);
}

static void start(void *engine, struct slot *slot)
{
	engine_start(engine, slot);
}

static void tend(void *engine, int ms)
{
	failover_tend(engine, ms);
}

static void last_words(void *engine, const char *text)
{
	failover_last_words(engine, "%s", text);
}

void wiring_frontend(struct swapd *s)
{
	struct frontend_host *h = &s->host;

	h->device = s->options.name;
	h->mount = s->options.mount;
	h->pages = s->map->pages;
	h->shared = &s->shared->frontend;
	h->count = s->count;
	h->beats = &s->shared->beats;
	h->engine = s;
	h->free = &s->slots.free_count;
	h->get = get;
	h->put = put;
	h->start = start;
	h->poll = tend;
	h->last_words = last_words;
}
