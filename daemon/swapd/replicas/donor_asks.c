// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "donor_asks.h"
#include "lib/base/clock.h"
#include "repair.h"
#include "replicas.h"
#include "slab_mapping.h"

/* Hash table by the donor's number of the slab: chains are short at this size. */
#define BUCKETS 256
_Static_assert(BUCKETS >= 2 * WIRE_LOANS, "half empty at least");

#define SECOND 1000000000ull
#define ASKS_A_SECOND 256u
#define ASKS_MOST (2 * ASKS_A_SECOND)
#define ACTIVITY_COST 8u

/* Returns whether @d may send a request of cost @cost. */
static bool may_ask(struct replicas *rs, struct donor *d, uint32_t cost)
{
	struct asks *a = &d->asks;
	uint64_t now = now_ns(), more = (now - a->at) / (SECOND / ASKS_A_SECOND);

	if (more) {
		a->left = more < ASKS_MOST - a->left ? a->left + (uint32_t)more : ASKS_MOST;
		a->at = now;
	}
	if (a->left >= cost) {
		a->told = a->told && a->left < ASKS_MOST;
		a->left -= cost;
		return true;
	}
	count_add(&rs->engine->counters->asks_ignored, 1);
	if (!a->told && donor_may_log(d))
		note(rs->engine->notes, LOG_LVL_WARN,
		     "donor %s: recalls slabs too often, and gets none until it slows down; see its log",
		     d->address.text);
	a->told = true;
	return false;
}

struct asked {
	uint16_t bucket[BUCKETS]; /* element + 1; 0 = empty */
};

static uint32_t hash(uint32_t slab)
{
	return slab * 2654435761u >> 24;
}

int donor_asks_activity(struct replicas *rs, struct donor *d, const struct wire_frame *f,
		      const uint8_t *payload)
{
	uint32_t n = f->length / WIRE_LOAN_SIZE;
	struct wire_frame reply = *f;
	struct asked asked = { { 0 } };
	bool look = may_ask(rs, d, ACTIVITY_COST);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t b = hash(wire_get_loan(payload, i).slab) % BUCKETS;

		while (asked.bucket[b])
			b = (b + 1) % BUCKETS;
		asked.bucket[b] = (uint16_t)(i + 1);
		wire_put_rate(d->rates, i, 0);
	}
	for (uint32_t i = 0; look && i < rs->engine->table.count; i++) {
		const struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c < 0 || slab->copy[c].state != COPY_MAPPED)
			continue;
		for (uint32_t b = hash(slab->copy[c].mapping.remote) % BUCKETS; asked.bucket[b];
		     b = (b + 1) % BUCKETS) {
			uint32_t at = asked.bucket[b] - 1u;
			struct wire_loan loan = wire_get_loan(payload, at);

			if (loan.slab == slab->copy[c].mapping.remote &&
			    loan.generation == slab->copy[c].mapping.generation)
				wire_put_rate(d->rates, at, (uint64_t)(slab->activity.rate * 1000));
		}
	}
	reply.direction = WIRE_REPLY;
	/* -ENOSPC: it asked more than it may before it had answers. */
	return stream_push(&d->link.tx, &reply, d->rates, 0) ? -EPROTO : 0;
}

static enum wire_status evict(struct replicas *rs, struct donor *d, const struct wire_frame *f)
{
	enum wire_status status = WIRE_NO_SLAB;

	if (!may_ask(rs, d, 1))
		return WIRE_NO_ROOM;
	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c < 0 || slab->copy[c].state == COPY_MAPPING ||
		    slab->copy[c].mapping.remote != f->slab)
			continue;
		if (slab->copy[c].mapping.generation != f->generation) {
			status = WIRE_STALE;
			continue;
		}
		if (!repair_can_leave(rs, i, c))
			return WIRE_NO_ROOM;
		slab->copy[c].leaving = true;
		/* While AWAY, .since is the time of REMAP. */
		if (slab->copy[c].state == COPY_MAPPED)
			slab->copy[c].since = now_ns();
		slab->not_before = 0;
		count_add(&rs->engine->counters->evictions, 1);
		return WIRE_OK;
	}
	return status;
}

int donor_asks_back(struct replicas *rs, struct donor *d, const struct wire_frame *f)
{
	struct wire_frame reply = *f;

	reply.direction = WIRE_REPLY;
	reply.status = evict(rs, d, f);
	if (reply.status == WIRE_NO_ROOM)
		count_add(&rs->engine->counters->eviction_refusals, 1);
	return stream_push(&d->link.tx, &reply, NULL, 0) ? -EPROTO : 0;
}

void donor_tells_revoked(struct replicas *rs, struct donor *d, const struct wire_frame *f)
{
	/* Transfers to a slab that is mapped here have no reply, and it would stay mapped. */
	if (d->link.transport->maps_here || may_ask(rs, d, 1))
		mapping_revoked(rs, d, (struct wire_loan){ f->slab, f->generation });
}

void donor_asks_tick(struct replicas *rs, uint32_t seconds)
{
	static const struct activity_rule rule = ACTIVITY_RULE_DEFAULT;

	for (uint32_t i = 0; i < rs->engine->table.count; i++)
		activity_tick(&slab_at(rs, i)->activity, &rule, seconds);
}
