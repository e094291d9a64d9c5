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

static void transfer_done(void *owner, struct transfer *t)
{
	struct donor *d = owner;

	donor_count(d, t);
	engine_done(d->table->owner, t);
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
	struct donors *ds = &s->donors;
	static const struct donor_ops donor_ops = {
		.ready = donor_ready, .lost = donor_link_lost, .done = transfer_done,
	};
	static const struct donor_events donor_events = {
		.up = donor_is_up, .lost = donor_is_lost, .answered = donor_answered_map,
		.resumed = donor_resumed, .asked = donor_asked, .oldest = oldest_map,
		.ask_later = ask_later,
	};
	static const struct engine_events engine_events = {
		.wanted = copy_wanted, .resynced = resynced, .exclusive = exclusive,
		.exclusive_backed = exclusive_backed,
	};

	ds->ops = &donor_ops;
	ds->events = &donor_events;
	ds->owner = s;
	ds->backup = backup_there(&s->backup);
	ds->replicas = s->wanted;
	ds->notes = &s->notes;
	ds->counters = s->count;
	ds->records = s->shared->donors;
	ds->device = s->options.name;
	ds->deadline = s->options.deadline;
	ds->env.slab = s->options.slab;
	ds->env.connections = (uint32_t)s->options.connections;
	ds->env.links = MAX_DONORS;
	ds->env.transfers = SLOT_COUNT;
	ds->env.late_replies = &s->count->late_replies;
	ds->env.refused_transfers = &s->count->donor_errors;
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
