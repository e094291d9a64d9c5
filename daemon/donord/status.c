// SPDX-License-Identifier: GPL-2.0-or-later
/* What the donor tells of itself: to borrowers, and to who asks its control socket. */
#include <string.h>

#include "donord.h"

static uint64_t bytes_of(const struct lender *l, uint32_t slabs)
{
	return slabs * l->pool->slab_size;
}

uint32_t lender_allocated(const struct lender *l)
{
	return lend_present(l->pool) + l->pool->in[LEND_COMING] + l->pool->in[LEND_GOING];
}

static uint64_t total_bytes(const struct lender *l)
{
	uint32_t slabs = lend_present(l->pool), room = headroom_slabs(&l->room, &l->rule);

	if (l->draining)
		return bytes_of(l, slabs);
	/* What was handed over is made anew; what HeadRoom leaves is made when it is wanted. */
	if (!l->options.headroom)
		return bytes_of(l, lender_allocated(l));
	room = room < l->pool->count ? room : l->pool->count;
	return bytes_of(l, room > slabs ? room : slabs);
}

static uint64_t free_bytes(const struct lender *l)
{
	return l->draining ? 0 : bytes_of(l, lend_free_slabs(l->pool));
}

struct rdma_lent lender_kernels(const struct lender *l)
{
	return l->kernels ? rdma_lender_lent(l->kernels) : (struct rdma_lent){ 0 };
}

void lender_told(const struct lender *l, struct wire_donor *d)
{
	uint64_t lent = bytes_of(l, l->pool->in[LEND_LENT]);
	uint64_t idle = bytes_of(l, lender_allocated(l)) - lent;
	uint64_t used = l->sample.memory - l->sample.available;

	*d = (struct wire_donor){
		.version = WIRE_VERSION,
		.flags = l->draining ? WIRE_DRAINING : 0,
		.slab_size = l->pool->slab_size,
		.total = total_bytes(l),
		.free = free_bytes(l),
		.memory = l->sample.memory,
		.identity = l->identity,
	};
	/* Slabs that nobody has are ready for use, not in use. */
	used = used > idle + lent ? used - idle : lent;
	d->used = used < d->memory ? used : d->memory;
}

static void count_asked(const struct lender *l, struct donor_status *status,
			struct borrower_status *of[CONNECTIONS])
{
	for (uint32_t i = 0; i < l->pool->count; i++) {
		const struct lend_slab *s = &l->pool->slabs[i];
		struct borrower_status *b;

		if (s->state != LEND_LENT)
			continue;
		b = of[s->owner];
		b->slabs++;
		b->asked_back += s->asked != LEND_NOT_ASKED;
		b->refused += s->asked == LEND_REFUSED;
		b->overdue += s->overdue;
		status->asked_back += s->asked != LEND_NOT_ASKED;
		status->refused += s->asked == LEND_REFUSED;
		status->overdue += s->overdue;
	}
}

void lender_status(const struct lender *l, struct donor_status *s)
{
	struct borrower_status *of[CONNECTIONS] = { NULL };
	uint64_t now = l->now;

	memset(s, 0, sizeof(*s));
	s->slab_size = l->pool->slab_size;
	s->headroom = l->options.headroom;
	s->total = total_bytes(l);
	s->free = free_bytes(l);
	s->sample = l->sample;
	s->kernels = lender_kernels(l);
	memcpy(s->in, l->pool->in, sizeof(s->in));
	s->evictions = l->eviction.counts;
	s->draining = l->draining;
	s->ending = l->ending;
	s->ends_in = l->ending && l->drain_end > now ? (l->drain_end - now) / SECOND : 0;
	for (int i = 0; i < CONNECTIONS; i++) {
		const struct connection *c = &l->connections[i];
		struct borrower_status *b = &s->borrowers[s->borrower_count];

		if (connection_is_free(c) || !c->greeted || connection_is_data(c))
			continue;
		of[i] = b;
		s->borrower_count++;
		memcpy(b->name, c->name, sizeof(b->name));
		memcpy(b->key, c->key, sizeof(b->key));
		connection_peer_text(c, b->peer, sizeof(b->peer));
		b->quota = c->quota;
		b->reads = c->reads;
		b->writes = c->writes;
		b->connected = (now - c->since) / SECOND;
		b->local = c->local;
	}
	count_asked(l, s, of);
}
