// SPDX-License-Identifier: GPL-2.0-or-later
/* Every interleaving, and random walks, in the world of model/world.h. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/draw.h"
#include "swapd/request/request_seal.h"
#include "model/world.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* --- saving, restoring, recognising ------------------------------------------ */

static void save_lane(struct lane_parts *to, const struct backup_lane *l)
{
	to->submitted = l->submitted;
	to->completed = l->completed;
	to->reaped = l->reaped;
	memcpy(to->jobs, l->jobs, sizeof(to->jobs));
}

static void restore_lane(const struct lane_parts *from, struct backup_lane *l)
{
	l->submitted = from->submitted;
	l->completed = from->completed;
	l->reaped = from->reaped;
	memcpy(l->jobs, from->jobs, sizeof(from->jobs));
}

/* Without the donors that the model lacks: this is most of what a search does. */
static void save(struct saved *to)
{
	const struct slots *sl = &m.s.engine.slots;
	struct parts *p = &to->p;

	for (int i = 0; i < SLOTS; i++)
		for (uint32_t k = 0; k < PAGES; k++)
			memcpy(W.payload[i][k], payload_of(&W.slot[i], k), 16);
	to->w = W;
	memcpy(p->donor, m.s.donors.donor, (size_t)m.s.donors.count * sizeof(*p->donor));
	p->free = sl->free;
	p->blocked = sl->blocked;
	p->ready = sl->ready;
	p->unanswered = sl->unanswered;
	p->free_count = sl->free_count;
	p->active_count = sl->active_count;
	p->active_excluding = sl->active_excluding;
	memcpy(p->active, sl->active, sizeof(p->active));
	memcpy(p->range, sl->range, sizeof(p->range));
	save_lane(&p->queue, &m.s.engine.backup.queue);
	save_lane(&p->reads, &m.s.engine.backup.reads);
	p->backlog = m.s.engine.backlog;
	p->need_backup = m.s.engine.need_backup;
	p->held = m.s.engine.held;
	p->resyncs_held = m.s.engine.resyncs_held;
	p->now = m.s.engine.now;
	p->seed = m.s.replicas.seed;
	p->repair = m.s.replicas.repair;
	p->told_backed = m.s.replicas.told_backed;
}

static void restore(const struct saved *from)
{
	struct slots *sl = &m.s.engine.slots;
	const struct parts *p = &from->p;

	W = from->w;
	for (int i = 0; i < SLOTS; i++)
		for (uint32_t k = 0; k < PAGES; k++)
			memcpy(payload_of(&W.slot[i], k), W.payload[i][k], 16);
	memcpy(m.s.donors.donor, p->donor, (size_t)m.s.donors.count * sizeof(*p->donor));
	sl->free = p->free;
	sl->blocked = p->blocked;
	sl->ready = p->ready;
	sl->unanswered = p->unanswered;
	sl->free_count = p->free_count;
	sl->active_count = p->active_count;
	sl->active_excluding = p->active_excluding;
	memcpy(sl->active, p->active, sizeof(p->active));
	memcpy(sl->range, p->range, sizeof(p->range));
	restore_lane(&p->queue, &m.s.engine.backup.queue);
	restore_lane(&p->reads, &m.s.engine.backup.reads);
	m.s.engine.backlog = p->backlog;
	m.s.engine.need_backup = p->need_backup;
	m.s.engine.held = p->held;
	m.s.engine.resyncs_held = p->resyncs_held;
	m.s.engine.now = p->now;
	m.s.replicas.seed = p->seed;
	m.s.replicas.repair = p->repair;
	m.s.replicas.told_backed = p->told_backed;
}

static void mix(uint64_t *h, uint64_t v)
{
	*h = (*h ^ v) * 0x9e3779b97f4a7c15ull;
	*h ^= *h >> 29;
}

/* What a stamp says: zero, the newest of its page, or an older one. */
static uint64_t rank(uint32_t page, uint64_t stamp)
{
	return !stamp ? 0 : stamp == W.newest[page] ? 2 : 1;
}

static void mix_slot(uint64_t *h, int i)
{
	const struct slot *slot = &W.slot[i];
	const struct slab *slab;

	mix(h, slot->kind);
	if (slot->kind <= SLOT_NEW)
		return;
	slab = slab_of_page(&m.s.engine.table, slot->first);
	mix(h, slot->held | slot->gave_up << 1 | (uint64_t)(slot->until != 0) << 2);
	mix(h, slot->wait | slot->pending << 8 | slot->blocked << 16 | slot->answered << 17 |
	    slot->degraded << 18 | slot->backing << 19 | slot->fetched << 20 |
	    (uint64_t)slot->copy << 24 | (uint64_t)slot->purpose << 32 | slot->same_filled << 40);
	mix(h, slot->first | slot->count << 8 | slot->cursor << 16 | (uint64_t)slot->run << 24 |
	    (uint64_t)(slot->copy != RESYNC_BACKUP &&
		       slot->serial == slab->copy[slot->copy].serial) << 32);
	mix(h, (uint64_t)(slot->next + 1) << 8 | (uint64_t)(slot->previous + 1));
	for (uint32_t p = 0; p < slot->count && slot->kind != SLOT_EXCLUSIVE; p++) {
		mix(h, rank(slot->first + p, payload_of(slot, p)[0]));
		if (slot->kind == SLOT_READ && !slot->answered)
			mix(h, rank(slot->first + p, W.expected[slot->unique].stamp[p]) << 4 |
			    (W.expected[slot->unique].stamp[p] == payload_of(slot, p)[0]));
	}
}

/*
 * Of all that decides what may follow.  Numbers that only grow (generations,
 * sequences, serials) count by what they are compared with.
 */
static uint64_t fingerprint(void)
{
	uint64_t h = 1;

	for (size_t i = 0; i < sizeof(W.left); i++)
		mix(&h, ((const uint8_t *)&W.left)[i]);
	for (uint32_t p = 0; p < PAGES; p++)
		mix(&h, rank(p, W.disk[p]) << 8 | (W.newest[p] == 0) |
		    (W.failed[p] == W.newest[p]) << 1 |
		    (uint64_t)(rank(p, WORD(p)) << 16));
	mix(&h, WRITTEN | SAME_FILLED << 8 | STALE << 16 | EMPTIED << 24);
	for (int d = 0; d < m.s.donors.count; d++) {
		const struct donor *dn = &m.s.donors.donor[d];

		mix(&h, dn->resume);
		mix(&h, dn->state | dn->leaving << 8 |
		    (uint64_t)(dn->free / m.s.options.slab) << 16);
		for (int r = 0; r < REMOTE; r++) {
			const struct loan *l = &W.loan[d][r];

			mix(&h, l->lent | l->claimed << 1 | l->untold << 2 | l->revoked << 3);
			for (uint32_t p = 0; l->lent && p < m.model->slab_pages; p++)
				mix(&h, l->slab << 8 |
				    rank(l->slab * m.model->slab_pages + p, l->stamp[p]));
		}
		for (const struct transfer *t = dn->link.waiting.head; t; t = t->next)
			mix(&h, (uint64_t)t->number + 7);
	}
	for (uint32_t i = 0; i < m.s.engine.table.count; i++) {
		const struct slab *slab = &W.slab[i];

		mix(&h, slab->opening | slab->lost << 1 | (uint64_t)slab->jobs << 8 |
		    (uint64_t)(slab->idle_since != 0) << 16 |
		    (uint64_t)(slab->rewrite_at > W.now) << 17 |
		    (uint64_t)(slab->opening && slab->open_until > m.s.engine.now) << 18 |
		    (uint64_t)(slab->waiting_head + 1) << 24);
		for (int c = 0; c < SLAB_COPIES; c++) {
			const struct copy *k = &slab->copy[c];

			mix(&h, k->state | k->leaving << 8 | k->partial << 9 |
			    k->told_backed << 10 | k->donor << 16 |
			    (uint64_t)k->mapping.remote << 32 | (uint64_t)k->repaired << 40);
			mix(&h, STORED(c));
		}
	}
	for (uint32_t i = 0; i < W.ops; i++) {
		const struct op *o = &W.op[i];

		mix(&h, (uint64_t)o->number << 32 | o->donor << 24 | o->op << 16 | o->first << 8 |
		    o->count | (uint64_t)o->served << 7);
		for (uint32_t p = 0; o->served && o->op == WIRE_READ && p < o->count; p++)
			mix(&h, rank(W.slot[o->number / SLAB_COPIES].first +
					     W.slot[o->number / SLAB_COPIES].cursor + p,
				     o->stamp[p]));
	}
	for (uint32_t i = 0; i < W.controls; i++)
		mix(&h, W.control[i].donor | W.control[i].frame.op << 8 |
		    (uint64_t)W.control[i].frame.slab << 16 |
		    (uint64_t)(W.control[i].frame.tag & 0xffffffffff) << 24);
	mix(&h, W.have_late);
	for (int i = 0; i < SLOTS; i++)
		mix_slot(&h, i);
	for (int i = m.s.engine.slots.free.head; i >= 0; i = W.slot[i].next)
		mix(&h, (uint64_t)i + 3);
	for (uint32_t i = m.s.engine.backup.queue.completed; i != m.s.engine.backup.queue.submitted;
	     i++)
		mix(&h, m.s.engine.backup.queue.jobs[i % SLOT_COUNT]);
	for (uint32_t i = m.s.engine.backup.reads.completed; i != m.s.engine.backup.reads.submitted;
	     i++)
		mix(&h, m.s.engine.backup.reads.jobs[i % SLOT_COUNT] | 1 << 16);
	mix(&h, m.s.engine.backlog | m.s.engine.need_backup << 8 |
			(uint64_t)m.s.replicas.repair.running << 16 |
			(uint64_t)m.s.replicas.repair.work_count << 24 |
			(uint64_t)(m.s.engine.slots.blocked.head + 1) << 32 |
			(uint64_t)(m.s.engine.slots.unanswered.head + 1) << 40);
	return h ? h : 1;
}

static uint64_t *place_of(uint64_t print)
{
	uint32_t at = (uint32_t)(print >> 20) & (m.seen_size - 1);

	while (m.seen[at] && m.seen[at] != print)
		at = (at + 1) & (m.seen_size - 1);
	return &m.seen[at];
}

/* Doubles the table of states: a search of few states has a small one. */
static void grow(void)
{
	uint64_t *before = m.seen;
	uint32_t size = m.seen_size;

	m.seen_size = 2 * size;
	m.seen = calloc(m.seen_size, sizeof(*m.seen));
	assert_non_null(m.seen);
	for (uint32_t i = 0; i < size; i++)
		if (before[i])
			*place_of(before[i]) = before[i];
	free(before);
}

/* True the first time. */
static bool is_new(uint64_t print)
{
	uint64_t *place = place_of(print);

	if (*place)
		return false;
	*place = print;
	if (++m.states > m.seen_size / 2)
		grow();
	return true;
}

/* --- the search -------------------------------------------------------------- */

/* Completes all requests in flight, then checks each page. */
static void settle_and_check(void)
{
	struct step steps[STEPS];
	const struct budget some = { .reads = 1, .ticks = 1 };
	int n;

	W.left = (struct budget){ 0 };
	for (int d = 0; d < m.s.donors.count; d++)
		if (donor_is_away(&m.s.donors.donor[d]) && m.s.donors.donor[d].state != DONOR_UP)
			come_back(d);
	for (int round = 0; round < 12; round++) {
		for (int i = 0; i < 40 && (n = possible(steps)) > 0; i++)
			take(&steps[0]);
		if (round == 10 && m.s.engine.slots.active_count)
			violated("a request that nothing answers", m.s.engine.slots.active_count, 0);
		W.left = some;
		if (round % 4 == 3)
			take(&(struct step){ STEP_READ, 2, 0 });
		else
			take(&(struct step){ STEP_TICK, 0, 0 });
		W.left = (struct budget){ 0 };
	}
	while (possible(steps) > 0)
		take(&steps[0]);
	if (m.s.engine.slots.free_count != SLOTS || m.s.replicas.repair.running ||
	    W.answered != W.requests)
		violated("something is left over", m.s.engine.slots.free_count, W.answered);
	if (m.s.engine.backlog || m.s.engine.need_backup)
		violated("the backup is miscounted", m.s.engine.backlog, m.s.engine.need_backup);
	check_state();
}

static void explore(int depth)
{
	struct step steps[STEPS];
	int n;

	if (depth >= DEPTH - 130)
		violated("too deep", (uint64_t)depth, 0);
	n = possible(steps);
	save(&m.saved[depth]);
	for (int i = 0; i < n; i++) {
		take(&steps[i]);
		check_state();
		if (is_new(fingerprint()))
			explore(depth + 1);
		m.depth = depth;
		restore(&m.saved[depth]);
	}
	if (!n) {
		settle_and_check();
		m.depth = depth;
	}
}

static int with_model(void **state)
{
	m.memory = calloc(SLOTS * PAGES, PAGE);
	m.saved = calloc(DEPTH, sizeof(*m.saved));
	m.used = calloc(COUNTERS, 1);
	return m.memory && m.saved && m.used &&
	       !seal_table_init(&m.s.engine.sealing.seals, PAGES, NULL) &&
	       !sealer_init(&m.s.engine.sealing.sealer, &m.s.engine.sealing.seals, NULL) ? 0 : -1;
}

static int without_model(void **state)
{
	sealing_free(&m.s.engine.sealing);
	free(m.memory);
	free(m.saved);
	free(m.used);
	return 0;
}

static void search(const struct model *model)
{
	begin(model);
	m.states = 0;
	m.seen_size = 1u << 14;
	m.seen = calloc(m.seen_size, sizeof(*m.seen));
	assert_non_null(m.seen);
	explore(0);
	free(m.seen);
	printf("%s: %u states\n", model->name, m.states);
	assert_true(m.states >= model->states);
}

static void every_interleaving(void **state)
{
	static const struct model models[] = {
		{ .name = "disk, a crash",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .crashes = 1, .returns = 1, .ticks = 2 },
		  .states = 200000 },
		{ .name = "disk, an eviction",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .evictions = 1, .ticks = 2 },
		  .states = 100000 },
		{ .name = "disk, a discard",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .discards = 1, .reads = 1, .ticks = 2 },
		  .states = 150000 },
		{ .name = "disk, one word",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .same = 1, .reads = 1, .evictions = 1, .ticks = 2 },
		  .states = 25000 },
		{ .name = "disk, errors",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2,
			      .reads = 1,
			      .crashes = 1,
			      .disk_errors = 1,
			      .evictions = 1,
			      .ticks = 1 },
		  .states = 300000 },
		{ .name = "disk, two slabs",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 1,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .crashes = 1, .ticks = 1 },
		  .states = 50000 },
		{ .name = "replicas, crashes",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .crashes = 2, .returns = 1, .ticks = 2 },
		  .states = 250000 },
		{ .name = "replicas, a discard",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .discards = 1, .reads = 1, .crashes = 1, .ticks = 1 },
		  .states = 100000 },
		{ .name = "none, a migration",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .discards = 1, .reads = 1, .migrations = 1, .ticks = 2 },
		  .states = 250000 },
		{ .name = "none, a migration and a crash",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 2, .migrations = 1, .crashes = 1, .ticks = 3 },
		  .states = 25000 },
		{ .name = "disk, a kill",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .kills = 1, .ticks = 1 },
		  .states = 20000 },
		{ .name = "disk, a kill and a crash",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .crashes = 1, .kills = 1, .ticks = 1 },
		  .states = 3000 },
		{ .name = "disk, two kills and a discard",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .discards = 1, .reads = 1, .kills = 2, .ticks = 1 },
		  .states = 3000 },
		{ .name = "replicas, a kill and a crash",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .crashes = 1, .kills = 1, .ticks = 1 },
		  .states = 20000 },
		{ .name = "replicas, a cut",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .cuts = 1, .returns = 1 },
		  .states = 20000 },
		{ .name = "none, two cuts",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .cuts = 2, .returns = 2 },
		  .states = 20000 },
		{ .name = "none, a cut and a kill",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1,
			      .reads = 1,
			      .cuts = 1,
			      .kills = 1,
			      .returns = 1,
			      .ticks = 1 },
		  .states = 2000 },
		{ .name = "none, a cut and a migration",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1,
			      .reads = 1,
			      .cuts = 1,
			      .migrations = 1,
			      .returns = 1,
			      .ticks = 2 },
		  .states = 2000 },
		{ .name = "disk, a cut",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .cuts = 1, .returns = 1, .ticks = 1 },
		  .states = 20000 },
		{ .name = "disk, a revocation",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .revocations = 1, .ticks = 1 },
		  .states = 60000 },
		{ .name = "disk, a revocation and a discard",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .discards = 1, .revocations = 1, .ticks = 1 },
		  .states = 40000 },
		{ .name = "replicas, a revocation",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .revocations = 1, .ticks = 1 },
		  .states = 80000 },
		{ .name = "none, a revocation and a migration",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .migrations = 1, .revocations = 1,
			      .ticks = 2 },
		  .states = 250000 },
		{ .name = "disk, a revocation and a cut",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .revocations = 1, .cuts = 1,
			      .returns = 1, .ticks = 1 },
		  .states = 40000 },
		{ .name = "replicas, a revocation and a cut",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .revocations = 1, .cuts = 1,
			      .returns = 1, .ticks = 1 },
		  .states = 250000 },
		{ .name = "disk, a revocation and an eviction",
		  .wanted = 1,
		  .backup = true,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .revocations = 1, .evictions = 1,
			      .ticks = 2 },
		  .states = 25000 },
		{ .name = "none, a revocation and an eviction",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .revocations = 1, .evictions = 1,
			      .ticks = 2 },
		  .states = 9000 },
		{ .name = "replicas, a revocation and a kill",
		  .wanted = 2,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .revocations = 1, .kills = 1, .ticks = 1 },
		  .states = 13000 },
		{ .name = "none, a kill and a migration",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 2, .reads = 1, .migrations = 1, .kills = 1, .ticks = 2 },
		  .states = 20000 },
		{ .name = "none, a kill, a crash and a migration",
		  .wanted = 1,
		  .backup = false,
		  .slab_pages = 2,
		  .room = 1,
		  .budget = { .writes = 1, .reads = 1, .migrations = 1, .kills = 1, .crashes = 1,
			      .returns = 1, .ticks = 2 },
		  .states = 20000 },
	};

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		search(&models[i]);
}

static void walk(const struct model *model, int walks, uint64_t seed)
{
	m.bad_pages = 0;
	for (int i = 0; i < walks; i++) {
		struct step steps[STEPS];
		int n;

		begin(model);
		m.lazy = i % 2;
		for (int d = 0; d < 90 && (n = possible(steps)) > 0; d++) {
			if (m.depth == DEPTH - 130)
				m.depth = 0; /* the path shows the end only */
			take(&steps[draw_below(&seed, (uint32_t)n)]);
			check_state();
			if (model->sealed)
				check_counters();
		}
		if (!model->sealed)
			settle_and_check();
	}
	m.lazy = false;
}

#define MANY .writes = 12, .same = 3, .reads = 12, .ticks = 12, .kills = 3

/* Longer histories than can all be looked at. */
static void random_walks(void **state)
{
	static const struct model models[] = {
		{ .name = "disk", .wanted = 1, .backup = true, .slab_pages = 2, .room = 1,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .disk_errors = 2, .drains = 1 } },
		{ .name = "disk, two slabs", .wanted = 1, .backup = true, .slab_pages = 1, .room = 2,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .disk_errors = 2, .drains = 1,
			      .revocations = 3 } },
		{ .name = "replicas", .wanted = 2, .slab_pages = 2, .room = 2,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .drains = 1, .revocations = 2 } },
		{ .name = "none", .wanted = 1, .slab_pages = 1, .room = 2,
		  .budget = { MANY, .discards = 4, .crashes = 1, .returns = 1, .evictions = 3,
			      .migrations = 2, .drains = 1, .revocations = 1 } },
		{ .name = "disk, three donors", .wanted = 1, .backup = true, .slab_pages = 1,
		  .room = 2, .donors = 3,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .disk_errors = 6, .drains = 3,
			      .revocations = 4 } },
		{ .name = "replicas, three donors", .wanted = 2, .slab_pages = 2, .room = 2,
		  .donors = 3,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .drains = 4, .revocations = 3 } },
		{ .name = "disk, cuts", .wanted = 1, .backup = true, .slab_pages = 2, .room = 1,
		  .budget = { MANY, .discards = 4, .crashes = 2, .cuts = 6, .returns = 8,
			      .evictions = 3, .migrations = 2, .disk_errors = 2, .drains = 1,
			      .revocations = 3 } },
		{ .name = "replicas, cuts", .wanted = 2, .slab_pages = 2, .room = 2, .donors = 3,
		  .budget = { MANY, .discards = 4, .crashes = 1, .cuts = 6, .returns = 8,
			      .evictions = 3, .migrations = 2, .drains = 4, .revocations = 3 } },
		{ .name = "none, cuts", .wanted = 1, .slab_pages = 1, .room = 2, .donors = 3,
		  .budget = { MANY, .discards = 4, .cuts = 6, .returns = 8, .evictions = 3,
			      .migrations = 2, .drains = 1, .revocations = 2 } },
		{ .name = "replicas, three copies", .wanted = 3, .slab_pages = 1, .room = 2,
		  .donors = 3,
		  .budget = { MANY, .discards = 4, .crashes = 3, .returns = 3, .evictions = 3,
			      .migrations = 2, .drains = 4, .revocations = 4 } },
	};

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		walk(&models[i], 4000, 12345 + i);
}

static void donors_that_forge(void **state)
{
	static const struct model models[] = {
		{ .name = "sealed, disk", .wanted = 1, .backup = true, .slab_pages = 2, .room = 1,
		  .sealed = true,
		  .budget = { MANY, .discards = 2, .crashes = 1, .returns = 2, .evictions = 2,
			      .migrations = 1, .forgeries = 3 } },
		{ .name = "sealed, replicas", .wanted = 2, .slab_pages = 2, .room = 1, .sealed = true,
		  .budget = { MANY, .discards = 2, .crashes = 1, .returns = 2, .evictions = 2,
			      .migrations = 1, .forgeries = 3 } },
		{ .name = "sealed, none", .wanted = 1, .slab_pages = 2, .room = 1, .sealed = true,
		  .budget = { MANY, .discards = 2, .evictions = 1, .migrations = 2,
			      .forgeries = 3 } },
	};

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
		walk(&models[i], 1500, 54321 + i);
		/* They are found out, or these walks show nothing. */
		assert_true(m.bad_pages > 300);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(random_walks),
		cmocka_unit_test(donors_that_forge),
	};

	return cmocka_run_group_tests_name("model", tests, with_model, without_model);
}
