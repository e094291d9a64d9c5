// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "lib/base/clock.h"
#include "status.h"

static struct borrower_status *add_borrower(const struct loop *l, struct borrower *b,
					    uint64_t since, struct donor_status *s)
{
	struct borrower_status *of = &s->borrowers[s->borrower_count++];

	memcpy(of->name, b->name, sizeof(of->name));
	memcpy(of->key, b->key, sizeof(of->key));
	of->quota = b->quota;
	of->reserved = b->reserved;
	of->connected = (l->now - since) / SECOND;
	b->in_status = s->borrower_count;
	return of;
}

static void add_connections(const struct loop *l, struct donor_status *s)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->sessions.connections[i];
		struct borrower_status *b;

		if (connection_is_free(c) || !c->greeted || connection_is_data(c) || c->is_far)
			continue;
		b = add_borrower(l, &c->borrower, c->since, s);
		connection_peer_text(c, b->peer, sizeof(b->peer));
		b->reads = c->reads;
		b->writes = c->writes;
		b->transport = c->local ? "shm" : c->by_rdma ? "rdma" : "tcp";
	}
}

/* Counts the slabs of all borrowers in one pass: the loop serves none of them meanwhile. */
static void count_slabs(const struct pool *p, struct donor_status *sum)
{
	for (uint32_t i = 0; i < p->count; i++) {
		const struct lend_slab *s = &p->slabs[i];
		struct borrower_status *of;

		if (s->state != LEND_LENT || !s->owner->in_status)
			continue;
		of = &sum->borrowers[s->owner->in_status - 1];
		of->slabs++;
		of->asked_back += s->asked != LEND_NOT_ASKED;
		of->refused += s->asked == LEND_REFUSED;
		of->overdue += s->overdue;
		sum->backed += s->backed;
		sum->asked_back += s->asked != LEND_NOT_ASKED;
		sum->refused += s->asked == LEND_REFUSED;
		sum->overdue += s->overdue;
	}
}

static void add_payers(const struct loop *l, struct donor_status *s)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		const struct payer *p = &l->sessions.payers[i];
		struct payer_status *to = &s->payers[s->payer_count];

		to->waited = payer_waited(p, l->now) / 1000000;
		if (!to->waited)
			continue;
		payer_text(p, to->name, sizeof(to->name));
		s->payer_count++;
	}
}

static void add_kernel(const struct loop *l, struct kernel_session *k,
		       struct donor_status *s)
{
	struct borrower_status *b = add_borrower(l, &k->borrower, k->since, s);

	memcpy(b->peer, k->peer, sizeof(b->peer));
	b->transport = "rdma";
}

static void add_kernels(const struct loop *l, struct donor_status *s)
{
	if (!l->kernels)
		return;
	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		struct kernel_session *k = l->kernels->sessions[i];

		if (k && k->resumes)
			add_kernel(l, k->resumes, s);
		else if (k && k->greeted)
			add_kernel(l, k, s);
	}
	/* KERNEL_SESSIONS at most. */
	for (struct kernel_session *k = l->kernels->kept; k; k = k->next)
		add_kernel(l, k, s);
}

static void add_far(const struct far *far, struct donor_status *s)
{
	s->far = far->most * s->slab_size;
	s->far_used = far->used * s->slab_size;
	s->far_counts = far->counts;
	for (uint32_t i = 0; i < FAR_POOLS; i++) {
		const struct far_pool *fp = &far->pools[i];
		struct far_status *to = &s->far_pools[s->far_pool_count];

		if (!*fp->name)
			continue;
		far_describe(fp, &to->pool);
		memcpy(to->key, fp->borrower.key, sizeof(to->key));
		to->recovering = fp->fenced;
		to->metadata = far_metadata(fp);
		to->extents = far_count_extents(&fp->extents);
		to->extent_bytes = far_count_bytes(&fp->extents);
		s->far_pool_count++;
	}
}

static void add_jobs(const struct jobs *j, struct donor_status *s)
{
	s->jobs = j->memory.bytes;
	s->jobs_used = j->memory.used;
	s->jobs_percent = j->percent;
	s->job_heaps = j->heaps;
	s->job_regions = j->regions;
	s->job_counts = j->counts;
}

void loop_status(const struct loop *l, struct donor_status *s)
{
	const struct key *first;

	memset(s, 0, sizeof(*s));
	s->slab_size = l->pool->slab_size;
	s->headroom = l->options.headroom;
	s->rate = l->options.sessions.rate;
	s->total = headroom_follow_total(&l->follow);
	s->free = headroom_follow_free(&l->follow);
	s->promised = pool_promised(l->pool) * s->slab_size;
	s->lendable = pool_lendable(l->pool) * s->slab_size;
	s->sample = l->follow.sample;
	memcpy(s->in, l->pool->in, sizeof(s->in));
	s->evictions = l->eviction.counts;
	s->keys = l->sessions.keys.count;
	s->shared_keys = keyring_shared(&l->sessions.keys, &first);
	s->draining = l->pool->draining;
	s->ending = l->ending;
	s->ends_in = l->ending && l->drain_end > l->now ? (l->drain_end - l->now) / SECOND : 0;
	if (l->far)
		add_far(l->far, s);
	if (l->jobs)
		add_jobs(l->jobs, s);
	for (struct borrower *b = l->pool->borrowers; b; b = b->next)
		b->in_status = 0;
	add_connections(l, s);
	add_kernels(l, s);
	count_slabs(l->pool, s);
	add_payers(l, s);
}
