// SPDX-License-Identifier: GPL-2.0-or-later
/* Knows all modules: fills in every table of upcalls. */
#include <errno.h>
#include <string.h>

#include "swapd.h"
#include "swapd/process/failover.h"
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

/* --- donors to replicas and engine; their owner is struct replicas ------------------- */

static void transfer_done(void *owner, struct transfer *t)
{
	struct donor *d = owner;
	struct replicas *rs = d->table->owner;

	donor_count(d, t);
	if (t->result == -ESTALE)
		mapping_revoked(rs, d, (struct wire_loan){ t->remote, t->generation });
	engine_done(rs->engine, t);
}

static void up(void *rs)
{
	mapping_retry(rs);
}

static void away(void *rs, struct donor *d)
{
	mapping_away(rs, d);
}

static void lost(void *rs, struct donor *d)
{
	mapping_lost(rs, d);
}

static void resume(void *rs, struct donor *d)
{
	mapping_resume(rs, d);
}

static int answered(void *rs, struct donor *d, const struct wire_frame *f)
{
	return mapping_answered(rs, d, f);
}

static int resumed(void *rs, struct donor *d, const struct wire_frame *f)
{
	return mapping_confirmed(rs, d, f);
}

static int released(void *rs, struct donor *d)
{
	return mapping_released(rs, d);
}

static int asked(void *rs, struct donor *d, const struct wire_frame *f, const uint8_t *payload)
{
	switch (f->op) {
	case WIRE_EVICT:
		return donor_asks_back(rs, d, f);
	case WIRE_REVOKED:
		donor_tells_revoked(rs, d, f);
		return 0;
	default:
		return donor_asks_activity(rs, d, f, payload);
	}
}

static uint64_t oldest(void *rs, const struct donor *d)
{
	return mapping_oldest(rs, d);
}

static bool backed(void *rs)
{
	const struct engine *e = ((struct replicas *)rs)->engine;

	return backup_there(&e->backup) && !count_get(&e->map->stale);
}

static void ask_later(void *rs, struct donor *d, uint64_t now)
{
	mapping_ask_later(rs, d, now);
}

/* --- engine to replicas ------------------------------------------------------------ */

static bool copy_wanted(void *rs, uint32_t slab)
{
	return mapping_open(rs, slab, now_ns());
}

static bool room_awaited(void *rs)
{
	return mapping_room_awaited(rs, now_ns());
}

static void resynced(void *rs, struct slot *slot)
{
	repair_resynced(rs, slot);
}

static void withdrawn(void *rs, struct slot *slot)
{
	repair_withdrawn(rs, slot);
}

static void exclusive(void *rs, struct slot *slot)
{
	repair_exclusive(rs, slot);
}

static void exclusive_backed(void *rs, struct slot *slot)
{
	repair_exclusive_backed(rs, slot);
}

static void wire_donors(struct swapd *s)
{
	static const struct donor_ops ops = {
		.ready = donor_ready, .lost = donor_link_lost, .done = transfer_done,
	};
	static const struct donor_events events = {
		.up = up, .away = away, .lost = lost, .resume = resume, .answered = answered,
		.released = released, .resumed = resumed, .asked = asked, .oldest = oldest,
		.backed = backed, .ask_later = ask_later,
	};
	struct donors *ds = &s->donors;

	ds->ops = &ops;
	ds->events = &events;
	ds->owner = &s->replicas;
	ds->notes = &s->notes;
	ds->counters = s->count;
	ds->records = s->shared->donors;
	ds->device = s->options.name;
	ds->deadline = s->options.deadline;
	ds->backup = backup_there(&s->engine.backup);
	ds->replicas = s->replicas.wanted;
	ds->env.slab = s->options.slab;
	ds->env.connections = (uint32_t)s->options.connections;
	ds->env.links = MAX_DONORS;
	ds->env.transfers = SLOT_COUNT;
	ds->env.late_replies = &s->count->late_replies;
	ds->env.refused_transfers = &s->count->donor_errors;
}

static void wire_engine(struct swapd *s)
{
	static const struct engine_events events = {
		.wanted = copy_wanted, .room_awaited = room_awaited, .resynced = resynced,
		.withdrawn = withdrawn,
		.exclusive = exclusive, .exclusive_backed = exclusive_backed,
	};
	struct engine *e = &s->engine;

	e->donors = &s->donors;
	e->counters = s->count;
	e->notes = &s->notes;
	e->answer = s->frontend->answer;
	e->host = &s->host;
	e->events = &events;
	e->owner = &s->replicas;
	e->away_timeout = s->options.away_timeout;
	e->sealing.page = &s->shared->sealed;
	e->sealing.slots = &e->slots;
	e->sealing.notes = &s->notes;
}

void wiring_events(struct swapd *s)
{
	wire_donors(s);
	wire_engine(s);
	s->replicas.engine = &s->engine;
	s->replicas.donors = &s->donors;
	s->replicas.repair_rate = s->options.repair_rate;
	s->replicas.repair_delay = s->options.repair_delay;
	s->commands.replicas = &s->replicas;
}

/* --- frontend to engine ----------------------------------------------------------- */

static struct slot *get(void *engine)
{
	struct swapd *s = engine;

	return slot_get(&s->engine.slots);
}

static void put(void *engine, struct slot *slot)
{
	struct swapd *s = engine;

	slot_put(&s->engine.slots, slot);
}

static void start(void *engine, struct slot *slot)
{
	struct swapd *s = engine;

	engine_start(&s->engine, slot);
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
	h->pages = s->engine.map->pages;
	h->shared = &s->shared->frontend;
	h->count = s->count;
	h->beats = &s->shared->beats;
	h->engine = s;
	h->free = &s->engine.slots.free_count;
	h->get = get;
	h->put = put;
	h->start = start;
	h->poll = tend;
	h->last_words = last_words;
}
