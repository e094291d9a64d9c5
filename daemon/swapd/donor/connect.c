// SPDX-License-Identifier: GPL-2.0-or-later
#include "connect.h"
#include "lib/base/clock.h"
#include "lib/base/draw.h"

/* Time without an answer of a name server after which the donor's last address is tried. */
#define NAME_PATIENCE 1000000000ull

void connect_ask_name(struct donor *d, uint64_t now)
{
	d->place = d->place_count;
	d->asked_name = now;
	resolver_ask(&d->table->resolver, d->index, d->address.text);
}

/* Takes the resolver's result; returns false while one may still come. */
static bool name_answered(struct donor *d, uint64_t now)
{
	struct address found[RESOLVER_PLACES];
	int n = resolver_take(&d->table->resolver, d->index, d->address.text, found), good = 0;

	for (int i = 0; i < n; i++)
		if (donor_may_be_at(d->table, &found[i]))
			d->places[good++] = found[i];
	if (good)
		d->place_count = (uint8_t)good;
	return n || now - d->asked_name >= NAME_PATIENCE;
}

bool connect_next_place(struct donor *d, uint64_t now)
{
	if (!d->place_count)
		return true;
	if (d->place >= d->place_count) {
		if (!d->asked_name)
			connect_ask_name(d, now);
		if (d->table->resolver.lookups && !name_answered(d, now))
			return false;
		d->asked_name = 0;
		d->place = 0;
	}
	d->link.at = d->places[d->place++];
	return true;
}

void connect_back_off(struct donor *d, uint64_t now, uint64_t most)
{
	d->retry_at = now + draw_back_off(&d->table->jitter, d->backoff);
	d->backoff = d->backoff * 2 < most ? d->backoff * 2 : most;
}

int connect_open(struct donor *d)
{
	int r = link_open(&d->link);

	if (r)
		return r;
	/* A donor that a predecessor used keeps its identity until it has confirmed its slabs. */
	if (!d->resume)
		d->identity = 0;
	d->shared_key = false;
	donor_set_state(d, DONOR_CONNECTING, now_ns());
	return 0;
}
