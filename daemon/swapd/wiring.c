// SPDX-License-Identifier: GPL-2.0-or-later
/* The one file that knows all rooms: every table of upcalls is filled in here. */
#include <string.h>

#include "failover.h"
#include "swapd.h"
#include "swapd/io/engine.h"

/* --- frontends -------------------------------------------------------------------- */

const struct frontend *frontend_find(const char *name)
{
	static const struct frontend *const all[] = { &fuse_frontend, &ublk_frontend };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(name, all[i]->name))
			return all[i];
	return NULL;
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
	takeover_tend(engine, ms);
}

static void last_words(void *engine, const char *text)
{
	takeover_last_words(engine, "%s", text);
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
