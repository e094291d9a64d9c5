// SPDX-License-Identifier: GPL-2.0-or-later
/* What may happen next, and what is true after it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "swapd/request/engine.h"
#include "swapd/replicas/repair.h"
#include "world.h"

#include <cmocka.h>

static const char *const names[STEP_KINDS] = {
	"write", "same", "read", "discard", "deliver", "control", "disk", "disk-error", "tick",
	"crash", "return", "evict", "late", "migrate", "drain", "forge", "kill", "cut", "run",
	"revoke", "revoked",
};

/* Pages of a request: the first, the second, both. */
static const struct { uint8_t first, count; } ranges[] = { { 0, 1 }, { 1, 1 }, { 0, 2 } };

/* The steps that are possible; each kind of request only while there are slots. */
int possible(struct step out[static STEPS])
{
	const struct budget *b = &W.left;
	bool slot = m.s.engine.slots.free_count > 0;
	int n = 0;

#define ADD(k, x, y) (out[n++] = (struct step){ (k), (uint8_t)(x), (uint8_t)(y) })
	for (uint32_t i = 0; i < W.ops; i++)
		ADD(STEP_DELIVER, i, 0);
	/* A connection keeps the order of its frames. */
	for (int d = 0; d < m.s.donors.count; d++)
		for (uint32_t i = 0; i < W.controls; i++)
			if (W.control[i].donor == d) {
				ADD(STEP_CONTROL, i, 0);
				break;
			}
	for (int l = 0; l < 2; l++) {
		if (!backup_lane_queued(lane_of(l)))
			continue;
		ADD(STEP_DISK, l, 0);
		if (b->disk_errors)
			ADD(STEP_DISK_ERROR, l, 0);
	}
	for (int r = 0; r < 3 && slot; r++) {
		if (b->writes)
			ADD(STEP_WRITE, r, 0);
		if (b->same)
			ADD(STEP_SAME, r, 0);
		if (b->reads)
			ADD(STEP_READ, r, 0);
		if (b->discards)
			ADD(STEP_DISCARD, r, 0);
	}
	if (m.s.engine.slots.ready.head >= 0)
		ADD(STEP_RUN, 0, 0);
	if (b->ticks)
		ADD(STEP_TICK, 0, 0);
	if (W.have_late)
		ADD(STEP_LATE, 0, 0);
	for (int d = 0; d < m.s.donors.count; d++) {
		bool up = m.s.donors.donor[d].state == DONOR_UP;

		if (b->crashes && up)
			ADD(STEP_CRASH, d, 0);
		for (int how = 0; b->cuts && up && how < 2; how++)
			ADD(STEP_CUT, d, how);
		if (b->returns && !up)
			ADD(STEP_RETURN, d, 0);
		if (b->drains && up)
			ADD(STEP_DRAIN, d, 0);
		for (int r = 0; r < REMOTE; r++) {
			if (b->evictions && up && W.loan[d][r].lent)
				ADD(STEP_EVICT, d, r);
			if (b->forgeries && up && W.loan[d][r].lent)
				ADD(STEP_FORGE, d, r);
			/* Also while its borrower is away. */
			for (int how = 0; b->revocations && W.loan[d][r].lent && how < 2; how++)
				ADD(STEP_REVOKE, d, r + REMOTE * how);
			if (W.loan[d][r].untold)
				ADD(STEP_REVOKED, d, r);
		}
	}
	for (uint32_t i = 0; b->migrations && i < m.s.engine.table.count; i++)
		if (slab_copies(&W.slab[i], COPY_MAPPED))
			ADD(STEP_MIGRATE, i, 0);
	for (int how = 0; how < 4 && b->kills; how++)
		if ((!(how & 1) || W.ops) &&
		    (!(how & 2) ||
		     m.s.engine.backup.queue.completed != m.s.engine.backup.queue.submitted))
			ADD(STEP_KILL, how, 0);
#undef ADD
	assert_in_range(n, 0, STEPS - 1);
	return n;
}

/* What the code under test has sent: it is on its way. */
static void pump(void)
{
	for (int d = 0; d < m.s.donors.count; d++) {
		struct stream_tx *tx = &m.s.donors.donor[d].link.tx;

		for (uint32_t i = 0; i < tx->count; i++) {
			struct wire_frame f;

			assert_int_equal(wire_parse(tx->entries[i].bytes, WIRE_HEADER,
						    WIRE_AT_DONOR, &f), 1);
			if (f.direction == WIRE_REPLY)
				continue; /* to EVICT: only UNMAP counts */
			assert_in_range(W.controls, 0, CONTROL - 1);
			W.control[W.controls].donor = (uint8_t)d;
			W.control[W.controls++].frame = f;
		}
		tx->head = tx->count = 0;
	}
}

static void run_repair(void)
{
	while (repair_run(&m.s.replicas))
		;
}

void take(const struct step *t)
{
	uint8_t first = ranges[t->a % 3].first, count = ranges[t->a % 3].count;
	struct budget *b = &W.left;

	snprintf(m.path[m.depth++], sizeof(m.path[0]), "%s:%u.%u", names[t->kind], t->a, t->b);
	for (uint32_t i = 0; i < m.s.engine.table.count; i++)
		W.slab[i].not_before = 0;
	switch ((enum step_kind)t->kind) {
	case STEP_WRITE:
		b->writes--;
		request(SLOT_WRITE, first, count, false);
		break;
	case STEP_SAME:
		b->same--;
		request(SLOT_WRITE, first, count, true);
		break;
	case STEP_READ:
		b->reads--;
		request(SLOT_READ, first, count, false);
		break;
	case STEP_DISCARD:
		b->discards--;
		request(SLOT_DISCARD, first, count, false);
		break;
	case STEP_DELIVER:
		deliver(t->a);
		break;
	case STEP_CONTROL:
		take_control(t->a);
		break;
	case STEP_DISK:
		disk_step(lane_of(t->a), false);
		break;
	case STEP_DISK_ERROR:
		b->disk_errors--;
		disk_step(lane_of(t->a), true);
		break;
	case STEP_TICK:
		b->ticks--;
		W.now += 10000000000ull;
		/*
		 * Counters are of all paths together; what they tell of business would be chance.
		 */
		m.s.replicas.repair.received = m.shared.counters.received;
		engine_tick(&m.s.engine, W.now);
		repair_tick(&m.s.replicas, W.now);
		break;
	case STEP_CRASH:
		b->crashes--;
		crash(t->a);
		break;
	case STEP_CUT:
		b->cuts--;
		cut(t->a, t->b);
		break;
	case STEP_RETURN:
		b->returns--;
		come_back(t->a);
		break;
	case STEP_EVICT:
		b->evictions--;
		evict(t->a, t->b);
		break;
	case STEP_DRAIN:
		b->drains--;
		m.s.donors.donor[t->a].leaving ^= DONOR_DRAINED; /* or undrained */
		break;
	case STEP_LATE:
		W.have_late = false;
		if (is_in_flight(&W.late))
			violated("a dead connection's answer was taken", W.late.tag, 0);
		break;
	case STEP_MIGRATE:
		b->migrations--;
		for (int c = 0; c < SLAB_COPIES; c++)
			if (W.slab[t->a].copy[c].state == COPY_MAPPED) {
				W.slab[t->a].copy[c].leaving = true;
				break;
			}
		break;
	case STEP_FORGE:
		forge(t->a, t->b, b->forgeries-- % 3);
		break;
	case STEP_KILL:
		b->kills--;
		kill_server(t->a);
		break;
	case STEP_RUN:
		engine_run(&m.s.engine);
		break;
	case STEP_REVOKE:
		b->revocations--;
		revoke_loan(t->a, t->b % REMOTE, t->b / REMOTE);
		break;
	case STEP_REVOKED:
		revoked(t->a, t->b);
		break;
	case STEP_KINDS:
		break;
	}
	while (!m.lazy && engine_run(&m.s.engine))
		;
	run_repair();
	quarantine();
	pump();
}

/* --- what is always true -------------------------------------------------------------------- */

static bool changes(uint32_t page)
{
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *slot = &W.slot[i];

		if (slot->kind > SLOT_NEW && !slot->answered && slot_excludes(slot->kind) &&
		    slot->kind != SLOT_EXCLUSIVE && page >= slot->first &&
		    page < slot->first + slot->count)
			return true;
	}
	return false;
}

void check_state(void)
{
	uint32_t live[PAGES] = { 0 }, copies[DONORS] = { 0 };

	for (uint32_t page = 0; page < PAGES; page++) {
		uint32_t index = page / m.model->slab_pages;
		const struct slab *slab = &W.slab[index];

		live[index] += (WRITTEN & ~SAME_FILLED) >> page & 1;
		for (int c = 0; c < SLAB_COPIES; c++) {
			const struct copy *copy = &slab->copy[c];
			uint64_t held;

			if (!(STORED(c) >> page & 1))
				continue;
			if (copy->state != COPY_MAPPED && copy->state != COPY_AWAY)
				violated("valid, and no copy", page, (uint64_t)c);
			/* REMAP will tell. */
			if (copy->state == COPY_AWAY &&
			    W.loan[copy->donor][copy->mapping.remote].generation !=
				    copy->mapping.generation)
				continue;
			held = W.loan[copy->donor][copy->mapping.remote]
				       .stamp[page % m.model->slab_pages];
			if (!changes(page) && held != W.newest[page] &&
			    (held != FORGED || !m.model->sealed))
				violated("valid, and old", page, (uint64_t)c);
		}
	}
	for (uint32_t i = 0; i < m.s.engine.table.count; i++) {
		if (live[i] != page_map_live(m.s.engine.map, i))
			violated("live pages miscounted", live[i], page_map_live(m.s.engine.map, i));
		for (int c = 0; c < SLAB_COPIES; c++)
			if (W.slab[i].copy[c].state != COPY_NONE)
				copies[W.slab[i].copy[c].donor]++;
	}
	if (m.s.engine.map->live != (uint64_t)live[0] + live[1])
		violated("live pages miscounted", live[0] + live[1], m.s.engine.map->live);
	for (int d = 0; d < m.s.donors.count; d++)
		if (copies[d] != m.s.donors.donor[d].copies)
			violated("copies miscounted", copies[d], m.s.donors.donor[d].copies);
}

/* No number is used for a second sealing, in all walks together. */
void check_counters(void)
{
	for (uint32_t page = 0; page < PAGES; page++) {
		uint64_t counter = m.s.engine.sealing.seals.memory->seal[page].counter;

		if (!counter || counter == m.counter[page])
			continue;
		if (counter >= COUNTERS || m.used[counter])
			violated("a number used twice for sealing", page, counter);
		m.used[counter] = 1;
		m.counter[page] = counter;
	}
}
