// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "common/clock.h"
#include "ebbd/map_ahead.h"

#define SETTLE_AT_ONCE 8        /* batches looked at in a turn */
#define SENTINEL_MASK 3         /* a page in four, by hash */

struct batch {
	uint32_t tgid, exec, n;
	bool mapped_yet;
	uint64_t owner, since_ns;
	uint64_t chosen;        /* bits: not sentinels */
	uint64_t mapped;        /* mapped by us, and not counted as used or wasted */
	uint64_t vpn[MAP_AHEAD_PAGES];
};

struct map_ahead {
	struct attachments *attachments;
	uint64_t expire_ns;
	struct map_ahead_stats stats;
	uint32_t n;
	struct batch batch[MAP_AHEAD_BATCHES]; /* the oldest first */
};

uint64_t map_ahead_choose(const uint64_t *vpn, uint32_t n)
{
	uint64_t mask = 0;
	uint32_t run = 0;

	/* The last one stays: nothing would tell of those before it. */
	for (uint32_t i = 0; i + 1 < n; i++) {
		uint64_t hash = vpn[i] * 0x9e3779b97f4a7c15ULL >> 32;

		if (run == MAP_AHEAD_GROUP || !(hash & SENTINEL_MASK)) {
			run = 0;
			continue;
		}
		mask |= 1ULL << i;
		run++;
	}
	return mask;
}

uint64_t map_ahead_passed(uint64_t chosen, uint64_t mapped, uint64_t seen, uint32_t n)
{
	uint64_t passed = 0;
	bool touched = false;

	for (uint32_t i = n; i-- > 0;) {
		uint64_t bit = 1ULL << i;

		if (!(chosen & bit))
			touched = seen & bit;
		else if (touched && (mapped & bit))
			passed |= bit;
	}
	return passed;
}

struct map_ahead *map_ahead_new(struct attachments *a, uint64_t expire_ns)
{
	struct map_ahead *m = calloc(1, sizeof(*m));

	if (m) {
		m->attachments = a;
		m->expire_ns = expire_ns;
	}
	return m;
}

void map_ahead_free(struct map_ahead **m)
{
	free(*m);
	*m = NULL;
}

void map_ahead_add_stats(const struct map_ahead *m, struct map_ahead_stats *sum)
{
	sum->mapped += m->stats.mapped;
	sum->map_ns += m->stats.map_ns;
}

void map_ahead_add(struct map_ahead *m, const struct target *t, uint64_t owner, const uint64_t *vpn,
		   uint32_t n, uint64_t now)
{
	struct batch *b = &m->batch[m->n];

	if (m->n == MAP_AHEAD_BATCHES || n < 2 || n > MAP_AHEAD_PAGES)
		return;
	*b = (struct batch){
		.tgid = t->tgid, .exec = t->exec, .n = n, .owner = owner, .since_ns = now,
		.chosen = map_ahead_choose(vpn, n),
	};
	memcpy(b->vpn, vpn, n * sizeof(*vpn));
	m->n++;
}

/* Takes what will be mapped out of the prefetched set: no fault will find it there. */
static void claim(struct map_ahead *m, struct batch *b)
{
	pthread_mutex_lock(&m->attachments->lock);
	for (uint32_t i = 0; i < b->n; i++) {
		struct ebb_page page = { b->tgid, b->exec, b->vpn[i] };

		/* Not there: the program was faster, and its hit is counted. */
		if ((b->chosen >> i & 1) &&
		    bpf_map_delete_elem(m->attachments->plane->prefetched, &page) == 0)
			b->mapped |= 1ULL << i;
	}
	pthread_mutex_unlock(&m->attachments->lock);
}

static void map(struct map_ahead *m, struct batch *b)
{
	struct iovec remote[MAP_AHEAD_PAGES], local;
	char byte[MAP_AHEAD_PAGES];
	uint64_t from = now_ns();
	uint32_t n = 0;
	ssize_t done;

	b->mapped_yet = true;
	claim(m, b);
	for (uint32_t i = 0; i < b->n; i++)
		if (b->mapped >> i & 1)
			remote[n++] = (struct iovec){
				(void *)(uintptr_t)(b->vpn[i] << EBB_PAGE_SHIFT), 1 };
	if (!n)
		return;
	local = (struct iovec){ byte, n };
	/* What is no longer there is found to be wasted. */
	done = process_vm_readv((pid_t)b->tgid, &local, 1, remote, n, 0);
	m->stats.mapped += done > 0 ? (uint64_t)done : 0;
	m->stats.map_ns += now_ns() - from;
}

/*
 * The fault on a sentinel takes it out of the prefetched set.  Whether it is present
 * says nothing: it may have been paged out behind the stream by now.
 */
static uint64_t touched(const struct map_ahead *m, const struct batch *b)
{
	struct ebb_prefetch sentinel;
	uint64_t mask = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		struct ebb_page page = { b->tgid, b->exec, b->vpn[i] };

		if (!(b->chosen >> i & 1) &&
		    bpf_map_lookup_elem(m->attachments->plane->prefetched, &page, &sentinel) < 0)
			mask |= 1ULL << i;
	}
	return mask;
}

/* @t is NULL when the process is gone. */
static void count(struct map_ahead *m, const struct target *t, struct batch *b, uint64_t now)
{
	/* After that long a sentinel may be out of the set because it was given up. */
	bool over = !t || now - b->since_ns > m->expire_ns;
	uint64_t used = over ? 0 : map_ahead_passed(b->chosen, b->mapped, touched(m, b), b->n);
	uint64_t wasted = over ? b->mapped : 0;
	struct attachment *a;

	b->mapped &= ~(used | wasted);
	if (!used && !wasted)
		return;
	pthread_mutex_lock(&m->attachments->lock);
	a = attachments_find(m->attachments, b->owner);
	if (a) {
		a->mapped_used += (uint64_t)__builtin_popcountll(used);
		a->expired += (uint64_t)__builtin_popcountll(wasted);
	}
	pthread_mutex_unlock(&m->attachments->lock);
}

static bool settled(const struct map_ahead *m, const struct batch *b, uint64_t now)
{
	return b->mapped_yet ? !b->mapped : now - b->since_ns > m->expire_ns;
}

static void sweep_out(struct map_ahead *m, uint64_t now)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < m->n; i++)
		if (!settled(m, &m->batch[i], now)) {
			if (kept != i)
				m->batch[kept] = m->batch[i];
			kept++;
		}
	m->n = kept;
}

static bool is_of(const struct batch *b, const struct target *t)
{
	return b->tgid == t->tgid && b->exec == t->exec;
}

void map_ahead_turn(struct map_ahead *m, const struct target *t, uint64_t before)
{
	uint64_t now = now_ns();
	uint32_t looked = 0;

	for (uint32_t i = 0; i < m->n; i++) {
		struct batch *b = &m->batch[i];

		if (!is_of(b, t) || b->since_ns >= before)
			continue;
		if (!b->mapped_yet)
			map(m, b);
		else if (b->mapped && looked++ < SETTLE_AT_ONCE)
			count(m, t, b, now);
	}
	sweep_out(m, now);
}

void map_ahead_settle(struct map_ahead *m, map_ahead_target target_of, void *data, uint64_t now)
{
	for (uint32_t i = 0; i < m->n; i++) {
		struct batch *b = &m->batch[i];

		if (b->mapped)
			count(m, target_of(data, b->tgid, b->exec, b->owner), b, now);
	}
	sweep_out(m, now);
}
