// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving on two pages and two donors: the real page, slab, slot, placing
 * and repair code with a transport, donors and a backup disk that do one step when
 * they are told to.  The search takes each step that is possible in each state it
 * comes to, and comes to no state twice.
 *
 * Requests for the same page are done in the order they arrive; so at its arrival it
 * is known what a read must return: the stamp of the last write that arrived before,
 * or 0 behind a discard.  An error is right only when that stamp is nowhere.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/draw.h"
#include "swapd/bits.h"
#include "swapd/fuse_file.h"
#include "swapd/page_io.h"
#include "swapd/pages.h"
#include "swapd/placing.h"
#include "swapd/repair.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { PAGES = 2, DONORS = 2, REMOTE = 2, SLOTS = 5, OPS = 8, CONTROL = 8, REQUESTS = 64,
       QUEUE = 600, DEPTH = 200 };

/* --- the world outside the code under test ---------------------------------------- */

struct loan {
	uint32_t generation;
	bool lent;
	uint32_t slab;         /* the borrower's number, for checks only */
	uint64_t stamp[PAGES];
};

/* A READ or WRITE on its way. */
struct op {
	uint8_t donor, op, first, count; /* pages of the slab */
	int number;                      /* of the leg */
	uint32_t remote, generation;
	uint64_t tag;
	uint64_t stamp[PAGES];
};

struct expected {
	uint8_t kind, first, count;
	bool unreadable;       /* the disk failed to read it */
	uint64_t stamp[PAGES];
};

/* How often each may happen, still. */
struct budget {
	uint8_t writes, same, reads, discards, crashes, returns, evictions, ticks, migrations,
		disk_errors, drains;
};

struct world {
	struct budget left;
	struct loan loan[DONORS][REMOTE];
	struct op op[OPS];
	uint32_t ops;
	struct op late;        /* of a dead connection */
	bool have_late;
	struct { uint8_t donor; struct wire_frame frame; } control[CONTROL];
	uint32_t controls;
	uint64_t disk[PAGES];
	uint64_t newest[PAGES]; /* by arrival */
	uint64_t stamps;
	struct expected expected[REQUESTS];
	uint32_t requests, answered;
	uint64_t now;
	/* what the code under test has */
	struct slab slab[PAGES];
	uint64_t valid[SLAB_COPIES], written, same, spoilt, word[PAGES];
	struct slot slot[SLOTS];
	uint64_t payload[SLOTS][PAGES][2]; /* while saved: all that counts of a page */
};

struct model {
	const char *name;
	int wanted;
	bool backup;
	uint32_t slab_pages; /* 1: two slabs, 2: one */
	uint32_t room;       /* slabs a donor lends */
	struct budget budget;
	uint32_t states;     /* at least so many are to be found: a search that ends early fails */
};

/* What is saved and restored beside struct world. */
struct parts {
	struct donor donor[DONORS];
	struct slot_list free, blocked, unanswered;
	uint32_t free_count, active_count, active_excluding;
	uint16_t active[SLOTS];
	struct slot_range range[SLOTS];
	uint32_t submitted, completed, reaped;
	uint16_t jobs[256];
	uint32_t backlog, need_backup;
	uint64_t live, seed;
	struct repair repair;
};

struct saved {
	struct world w;
	struct parts p;
};

static struct {
	const struct model *model;
	struct world w;
	struct swapd s;
	struct shared shared;
	struct stream_entry entries[DONORS][QUEUE];
	uint8_t *memory;     /* of the slots */
	struct saved *saved; /* DEPTH */
	uint64_t *seen;
	uint32_t seen_size, states;
	char path[DEPTH][24];
	int depth;
} m;

#define W (m.w)

static void violated(const char *what, uint64_t a, uint64_t b)
{
	fprintf(stderr, "%s: %s (%llu, %llu) after:", m.model->name, what, (unsigned long long)a,
		(unsigned long long)b);
	for (int i = 0; i < m.depth; i++)
		fprintf(stderr, " %s", m.path[i]);
	fprintf(stderr, "\n");
	fail_msg("%s", what);
}

static uint64_t *payload_of(const struct slot *slot, uint32_t page)
{
	return (uint64_t *)(slot->payload + page * (size_t)PAGE);
}

static void put_stamp(const struct slot *slot, uint32_t page, uint64_t stamp)
{
	/* 0 is a page of zeroes; stamps of pages to be written are never one word. */
	payload_of(slot, page)[0] = stamp;
	payload_of(slot, page)[1] = stamp ? ~stamp : 0;
}

/* Whether UNMAP is on its way for it: its pages are nobody's any more. */
static bool given_back(int donor, int remote)
{
	for (uint32_t i = 0; i < W.controls; i++)
		if (W.control[i].donor == donor && W.control[i].frame.op == WIRE_UNMAP &&
		    W.control[i].frame.slab == (uint32_t)remote)
			return true;
	return false;
}

/* Whether @stamp of @page is in memory or on disk anywhere, or on its way to the disk. */
static bool exists(uint32_t page, uint64_t stamp)
{
	uint32_t slab = page / m.model->slab_pages, at = page % m.model->slab_pages;

	if (!stamp)
		return true;
	for (int d = 0; d < DONORS; d++)
		for (int r = 0; r < REMOTE; r++)
			if (W.loan[d][r].lent && W.loan[d][r].slab == slab &&
			    W.loan[d][r].stamp[at] == stamp && !given_back(d, r))
				return true;
	if (!m.model->backup)
		return false;
	if (W.disk[page] == stamp)
		return true;
	for (uint32_t i = m.s.backup.completed; i != m.s.backup.submitted; i++) {
		const struct slot *slot = &W.slot[m.s.backup.jobs[i % SLOT_COUNT]];

		if (slot->kind == SLOT_WRITE && page >= slot->first &&
		    page < slot->first + slot->count &&
		    payload_of(slot, page - slot->first)[0] == stamp)
			return true;
	}
	return false;
}

/* The kernel's side; these take the place of fuse_file.c's. */
static void check_answer(uint64_t unique, const struct slot *slot, int error)
{
	struct expected *e = &W.expected[unique];
	bool gone = e->unreadable;

	W.answered++;
	if (error && e->kind == SLOT_DISCARD)
		violated("a discard failed", unique, 0);
	for (uint32_t i = 0; i < e->count; i++)
		gone |= !exists(e->first + i, e->stamp[i]);
	if (error && !gone)
		violated("an error, and the page is there", unique, e->stamp[0]);
	if (error || e->kind != SLOT_READ)
		return;
	for (uint32_t i = 0; i < e->count; i++)
		if (payload_of(slot, i)[0] != e->stamp[i])
			violated("a page that is not the newest", payload_of(slot, i)[0], e->stamp[i]);
}

void fuse_answer_error(struct swapd *s, uint64_t unique, int error)
{
	check_answer(unique, NULL, error);
}

void fuse_answer_read(struct swapd *s, struct slot *slot)
{
	check_answer(slot->unique, slot, 0);
}

void fuse_answer_write(struct swapd *s, struct slot *slot)
{
	check_answer(slot->unique, slot, 0);
}

/* --- the transport ------------------------------------------------------------------ */

static enum transport_progress submit(struct swapd *s, struct donor *d, struct slot *slot,
				      int leg, const struct copy *copy, enum wire_op op)
{
	uint32_t page = slot->first + slot->cursor;
	struct op *o = &W.op[W.ops++];

	assert_in_range(W.ops, 1, OPS);
	donor_wait(s, d, slot, leg);
	*o = (struct op){
		.donor = (uint8_t)d->index,
		.op = (uint8_t)op,
		.first = (uint8_t)(page % s->table.pages),
		.count = (uint8_t)slot->run,
		.number = leg_number(&s->slots, slot, leg),
		.remote = copy->remote,
		.generation = copy->generation,
		.tag = donor_leg_tag(s, slot, leg),
	};
	for (uint32_t i = 0; op == WIRE_WRITE && i < slot->run; i++)
		o->stamp[i] = payload_of(slot, slot->cursor + i)[0];
	return TRANSPORT_UNDER_WAY;
}

static const struct transport transport_model = { .name = "model", .submit = submit };

/* Whether a completion of @o would be taken for one of a leg under way. */
static bool is_under_way(const struct op *o)
{
	const struct slot *slot = &W.slot[o->number / SLAB_COPIES];
	int leg = o->number % SLAB_COPIES;

	return slot->pending >> leg & 1 && slot->leg[leg].donor == o->donor &&
	       donor_leg_tag(&m.s, slot, leg) == o->tag;
}

static void deliver(uint32_t i)
{
	struct op o = W.op[i];
	struct loan *loan = &W.loan[o.donor][o.remote];
	struct slot *slot = &W.slot[o.number / SLAB_COPIES];

	W.op[i] = W.op[--W.ops];
	if (!loan->lent || loan->generation != o.generation)
		violated("a page asked of what is not lent", o.remote, o.generation);
	if (!is_under_way(&o))
		violated("a leg that nobody waits for", (uint64_t)o.number, o.tag);
	for (uint32_t j = 0; j < o.count; j++) {
		if (o.op == WIRE_WRITE)
			loan->stamp[o.first + j] = o.stamp[j];
		else
			put_stamp(slot, slot->cursor + j, loan->stamp[o.first + j]);
	}
	donor_answered(&m.s, &m.s.donors[o.donor], o.number);
	page_io_donor_reply(&m.s, slot, o.number % SLAB_COPIES);
}

/* --- donors ---------------------------------------------------------------------------- */

static void take_control(uint32_t i)
{
	struct wire_frame f = W.control[i].frame;
	struct donor *d = &m.s.donors[W.control[i].donor];
	struct loan *loans = W.loan[d->index];
	uint32_t free = 0;

	memmove(&W.control[i], &W.control[i + 1], (--W.controls - i) * sizeof(W.control[0]));
	if (f.op == WIRE_UNMAP) {
		if (!loans[f.slab].lent || loans[f.slab].generation != f.generation)
			violated("what is not lent was given back", f.slab, f.generation);
		for (uint32_t j = 0; j < W.ops; j++)
			if (W.op[j].donor == d->index && W.op[j].remote == f.slab)
				violated("given back with a page under way", f.slab, 0);
		loans[f.slab].lent = false;
		f.direction = WIRE_REPLY;
		assert_int_equal(donor_frame(&m.s, d, &f, NULL), 0);
	} else if (f.op == WIRE_MAP) {
		uint32_t r = 0;

		while (r < m.model->room && loans[r].lent)
			r++;
		f.direction = WIRE_REPLY;
		f.length = 0;
		f.status = r < m.model->room ? WIRE_OK : WIRE_NO_SPACE;
		if (!f.status) {
			loans[r] = (struct loan){ .lent = true, .slab = (uint32_t)f.tag,
						  .generation = loans[r].generation + 1 };
			f.slab = r;
			f.generation = loans[r].generation;
		}
		assert_int_equal(donor_frame(&m.s, d, &f, NULL), 0);
	}
	/* What a PING would tell. */
	for (uint32_t r = 0; r < m.model->room; r++)
		free += !loans[r].lent;
	d->free = free * m.s.options.slab;
}

static void crash(int donor)
{
	struct donor *d = &m.s.donors[donor];
	uint32_t kept = 0;

	for (int r = 0; r < REMOTE; r++)
		W.loan[donor][r].lent = false;
	/* One of its answers may come when all is over. */
	for (uint32_t i = 0; i < W.ops; i++) {
		if (W.op[i].donor != donor) {
			W.op[kept++] = W.op[i];
		} else if (!W.have_late) {
			W.late = W.op[i];
			W.have_late = true;
		}
	}
	W.ops = kept;
	kept = 0;
	for (uint32_t i = 0; i < W.controls; i++)
		if (W.control[i].donor != donor)
			W.control[kept++] = W.control[i];
	W.controls = kept;
	donor_lose(&m.s, d, "killed");
}

static void come_back(int donor)
{
	struct donor *d = &m.s.donors[donor];

	d->state = DONOR_UP;
	d->free = m.model->room * m.s.options.slab;
}

static void evict(int donor, int remote)
{
	struct wire_frame f = { .op = WIRE_EVICT, .slab = (uint32_t)remote,
				.generation = W.loan[donor][remote].generation };

	assert_int_equal(donor_frame(&m.s, &m.s.donors[donor], &f, NULL), 0);
}

/* --- the backup disk -------------------------------------------------------------------- */

static void disk_step(bool fails)
{
	struct backup *b = &m.s.backup;
	struct slot *slot = &W.slot[b->jobs[b->completed % SLOT_COUNT]];
	uint32_t at = slot->first + slot->cursor;

	switch (slot->kind) {
	case SLOT_WRITE:
		for (uint32_t i = 0; i < slot->count && !fails; i++)
			W.disk[slot->first + i] = payload_of(slot, i)[0];
		break;
	case SLOT_READ:
	case SLOT_FILL:
		for (uint32_t i = 0; i < slot->run && !fails; i++)
			put_stamp(slot, slot->cursor + i, W.disk[at + i]);
		break;
	case SLOT_DISCARD:
		for (uint32_t i = 0; i < slot->count && !fails; i++)
			W.disk[slot->first + i] = 0;
		break;
	}
	if (fails && slot->kind == SLOT_READ)
		W.expected[slot->unique].unreadable = true;
	slot->backup_result = fails ? -EIO : 0;
	b->completed++;
	page_io_backed(&m.s, backup_reap(b));
}

/* --- requests ------------------------------------------------------------------------------ */

static void request(enum slot_kind kind, uint32_t first, uint32_t count, bool same)
{
	struct slot *slot = slot_get(&m.s.slots);
	struct expected *e = &W.expected[W.requests];

	assert_in_range(W.requests, 0, REQUESTS - 1);
	slot->kind = (uint8_t)kind;
	slot->unique = W.requests++;
	slot->first = first;
	slot->count = count;
	*e = (struct expected){ .kind = (uint8_t)kind, .first = (uint8_t)first,
				.count = (uint8_t)count };
	for (uint32_t i = 0; i < count; i++) {
		uint64_t stamp = ++W.stamps;

		if (kind == SLOT_WRITE && same)
			for (uint32_t w = 0; w < PAGE / 8; w++)
				payload_of(slot, i)[w] = stamp;
		else if (kind == SLOT_WRITE)
			put_stamp(slot, i, stamp);
		if (kind != SLOT_READ)
			W.newest[first + i] = kind == SLOT_WRITE ? stamp : 0;
		e->stamp[i] = W.newest[first + i];
	}
	page_io_start(&m.s, slot);
}

/* --- steps ------------------------------------------------------------------------------ */

enum step_kind { STEP_WRITE, STEP_SAME, STEP_READ, STEP_DISCARD, STEP_DELIVER, STEP_CONTROL,
		 STEP_DISK, STEP_DISK_ERROR, STEP_TICK, STEP_CRASH, STEP_RETURN, STEP_EVICT,
		 STEP_LATE, STEP_MIGRATE, STEP_DRAIN, STEP_KINDS };

static const char *const names[STEP_KINDS] = {
	"write", "same", "read", "discard", "deliver", "control", "disk", "disk-error", "tick",
	"crash", "return", "evict", "late", "migrate", "drain",
};

struct step {
	uint8_t kind, a, b;
};

/* Pages of a request: the first, the second, both. */
static const struct { uint8_t first, count; } ranges[] = { { 0, 1 }, { 1, 1 }, { 0, 2 } };

static bool is_own(const struct step *t)
{
	return t->kind == STEP_DELIVER || t->kind == STEP_CONTROL || t->kind == STEP_DISK;
}

/* The steps that are possible; each kind of request only while there are slots. */
static int possible(struct step out[static 64])
{
	const struct budget *b = &W.left;
	bool slot = m.s.slots.free_count > 0;
	int n = 0;

#define ADD(k, x, y) (out[n++] = (struct step){ (k), (uint8_t)(x), (uint8_t)(y) })
	for (uint32_t i = 0; i < W.ops; i++)
		ADD(STEP_DELIVER, i, 0);
	/* A connection keeps the order of its frames. */
	for (int d = 0; d < DONORS; d++)
		for (uint32_t i = 0; i < W.controls; i++)
			if (W.control[i].donor == d) {
				ADD(STEP_CONTROL, i, 0);
				break;
			}
	if (m.s.backup.completed != m.s.backup.submitted) {
		ADD(STEP_DISK, 0, 0);
		if (b->disk_errors)
			ADD(STEP_DISK_ERROR, 0, 0);
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
	if (b->ticks)
		ADD(STEP_TICK, 0, 0);
	if (W.have_late)
		ADD(STEP_LATE, 0, 0);
	for (int d = 0; d < DONORS; d++) {
		bool up = m.s.donors[d].state == DONOR_UP;

		if (b->crashes && up)
			ADD(STEP_CRASH, d, 0);
		if (b->returns && !up)
			ADD(STEP_RETURN, d, 0);
		if (b->drains && up && !m.s.donors[d].leaving)
			ADD(STEP_DRAIN, d, 0);
		for (int r = 0; r < REMOTE; r++)
			if (b->evictions && up && W.loan[d][r].lent)
				ADD(STEP_EVICT, d, r);
	}
	for (uint32_t i = 0; b->migrations && i < m.s.table.count; i++)
		if (slab_copies(&W.slab[i], COPY_MAPPED))
			ADD(STEP_MIGRATE, i, 0);
#undef ADD
	assert_in_range(n, 0, 63);
	return n;
}

/* What the code under test has sent: it is on its way. */
static void pump(void)
{
	for (int d = 0; d < DONORS; d++) {
		struct stream_tx *tx = &m.s.donors[d].tx;

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
	while (repair_run(&m.s))
		;
}

static void take(const struct step *t)
{
	uint8_t first = ranges[t->a % 3].first, count = ranges[t->a % 3].count;
	struct budget *b = &W.left;

	snprintf(m.path[m.depth++], sizeof(m.path[0]), "%s:%u.%u", names[t->kind], t->a, t->b);
	for (uint32_t i = 0; i < m.s.table.count; i++)
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
		disk_step(false);
		break;
	case STEP_DISK_ERROR:
		b->disk_errors--;
		disk_step(true);
		break;
	case STEP_TICK:
		b->ticks--;
		W.now += 10000000000ull;
		repair_tick(&m.s, W.now);
		break;
	case STEP_CRASH:
		b->crashes--;
		crash(t->a);
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
		m.s.donors[t->a].leaving = DONOR_DRAINED;
		break;
	case STEP_LATE:
		W.have_late = false;
		if (is_under_way(&W.late))
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
	case STEP_KINDS:
		break;
	}
	run_repair();
	pump();
}

/* --- what is always true -------------------------------------------------------------------- */

static bool changes(uint32_t page)
{
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *slot = &W.slot[i];

		if (slot->kind > SLOT_NEW && !slot->answered && slot_excludes(slot->kind) &&
		    slot->kind != SLOT_ALONE && page >= slot->first && page < slot->first + slot->count)
			return true;
	}
	return false;
}

static void check_state(void)
{
	uint32_t live[PAGES] = { 0 }, copies[DONORS] = { 0 };

	for (uint32_t page = 0; page < PAGES; page++) {
		uint32_t index = page / m.model->slab_pages;
		const struct slab *slab = &W.slab[index];

		live[index] += (W.written & ~W.same) >> page & 1;
		for (int c = 0; c < SLAB_COPIES; c++) {
			const struct copy *copy = &slab->copy[c];

			if (!(W.valid[c] >> page & 1))
				continue;
			if (copy->state != COPY_MAPPED)
				violated("valid, and no copy", page, (uint64_t)c);
			if (!changes(page) &&
			    W.loan[copy->donor][copy->remote].stamp[page % m.model->slab_pages] !=
			    W.newest[page])
				violated("valid, and old", page, (uint64_t)c);
		}
	}
	for (uint32_t i = 0; i < m.s.table.count; i++) {
		if (live[i] != W.slab[i].live)
			violated("live pages miscounted", live[i], W.slab[i].live);
		for (int c = 0; c < SLAB_COPIES; c++)
			if (W.slab[i].copy[c].state != COPY_NONE)
				copies[W.slab[i].copy[c].donor]++;
	}
	if (m.s.live != (uint64_t)live[0] + live[1])
		violated("live pages miscounted", live[0] + live[1], m.s.live);
	for (int d = 0; d < DONORS; d++)
		if (copies[d] != m.s.donors[d].copies)
			violated("copies miscounted", copies[d], m.s.donors[d].copies);
}

/* --- saving, restoring, recognising ------------------------------------------------------------ */

static void save(struct saved *to)
{
	struct slots *sl = &m.s.slots;

	for (int i = 0; i < SLOTS; i++)
		for (uint32_t p = 0; p < PAGES; p++)
			memcpy(W.payload[i][p], payload_of(&W.slot[i], p), 16);
	to->w = W;
	to->p = (struct parts){
		.donor = { m.s.donors[0], m.s.donors[1] },
		.free = sl->free, .blocked = sl->blocked, .unanswered = sl->unanswered,
		.free_count = sl->free_count, .active_count = sl->active_count,
		.active_excluding = sl->active_excluding,
		.submitted = m.s.backup.submitted, .completed = m.s.backup.completed,
		.reaped = m.s.backup.reaped,
		.backlog = m.s.backlog, .need_backup = m.s.need_backup, .live = m.s.live,
		.seed = m.s.seed, .repair = m.s.repair,
	};
	memcpy(to->p.active, sl->active, sizeof(to->p.active));
	memcpy(to->p.range, sl->range, sizeof(to->p.range));
	memcpy(to->p.jobs, m.s.backup.jobs, sizeof(to->p.jobs));
}

static void restore(const struct saved *from)
{
	struct slots *sl = &m.s.slots;

	W = from->w;
	for (int i = 0; i < SLOTS; i++)
		for (uint32_t p = 0; p < PAGES; p++)
			memcpy(payload_of(&W.slot[i], p), W.payload[i][p], 16);
	m.s.donors[0] = from->p.donor[0];
	m.s.donors[1] = from->p.donor[1];
	sl->free = from->p.free;
	sl->blocked = from->p.blocked;
	sl->unanswered = from->p.unanswered;
	sl->free_count = from->p.free_count;
	sl->active_count = from->p.active_count;
	sl->active_excluding = from->p.active_excluding;
	memcpy(sl->active, from->p.active, sizeof(from->p.active));
	memcpy(sl->range, from->p.range, sizeof(from->p.range));
	m.s.backup.submitted = from->p.submitted;
	m.s.backup.completed = from->p.completed;
	m.s.backup.reaped = from->p.reaped;
	memcpy(m.s.backup.jobs, from->p.jobs, sizeof(from->p.jobs));
	m.s.backlog = from->p.backlog;
	m.s.need_backup = from->p.need_backup;
	m.s.live = from->p.live;
	m.s.seed = from->p.seed;
	m.s.repair = from->p.repair;
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
	slab = slab_of_page(&m.s.table, slot->first);
	mix(h, slot->wait | slot->pending << 8 | slot->blocked << 16 | slot->answered << 17 |
	    slot->degraded << 18 | slot->backing << 19 | slot->fetched << 20 |
	    (uint64_t)slot->copy << 24 | (uint64_t)slot->purpose << 32 | slot->same << 40);
	mix(h, slot->first | slot->count << 8 | slot->cursor << 16 | (uint64_t)slot->run << 24 |
	    (uint64_t)(slot->serial == slab->copy[slot->copy].serial) << 32);
	mix(h, (uint64_t)(slot->next + 1) << 8 | (uint64_t)(slot->previous + 1));
	for (uint32_t p = 0; p < slot->count && slot->kind != SLOT_ALONE; p++) {
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
		    (uint64_t)(rank(p, W.word[p]) << 16));
	mix(&h, W.written | W.same << 8 | W.spoilt << 16);
	for (int d = 0; d < DONORS; d++) {
		const struct donor *dn = &m.s.donors[d];

		mix(&h, dn->state | dn->leaving << 8 | (uint64_t)(dn->free / m.s.options.slab) << 16);
		for (int r = 0; r < REMOTE; r++) {
			const struct loan *l = &W.loan[d][r];

			mix(&h, l->lent);
			for (uint32_t p = 0; l->lent && p < m.model->slab_pages; p++)
				mix(&h, l->slab << 8 | rank(l->slab * m.model->slab_pages + p, l->stamp[p]));
		}
		for (int n = dn->waiting.head; n >= 0; n = leg_at(&m.s.slots, n)->next)
			mix(&h, (uint64_t)n + 7);
	}
	for (uint32_t i = 0; i < m.s.table.count; i++) {
		const struct slab *slab = &W.slab[i];

		mix(&h, slab->opening | slab->lost << 1 | (uint64_t)slab->jobs << 8 |
		    (uint64_t)(slab->idle_since != 0) << 16 |
		    (uint64_t)(slab->waiting_head + 1) << 24);
		for (int c = 0; c < SLAB_COPIES; c++) {
			const struct copy *k = &slab->copy[c];

			mix(&h, k->state | k->leaving << 8 | k->partial << 9 | k->donor << 16 |
			    (uint64_t)k->remote << 32 | (uint64_t)k->repaired << 40);
			mix(&h, W.valid[c]);
		}
	}
	for (uint32_t i = 0; i < W.ops; i++) {
		const struct op *o = &W.op[i];

		mix(&h, (uint64_t)o->number << 32 | o->donor << 24 | o->op << 16 | o->first << 8 | o->count);
	}
	for (uint32_t i = 0; i < W.controls; i++)
		mix(&h, W.control[i].donor | W.control[i].frame.op << 8 |
		    (uint64_t)W.control[i].frame.slab << 16 |
		    (uint64_t)(W.control[i].frame.tag & 0xffffffffff) << 24);
	mix(&h, W.have_late);
	for (int i = 0; i < SLOTS; i++)
		mix_slot(&h, i);
	for (int i = m.s.slots.free.head; i >= 0; i = W.slot[i].next)
		mix(&h, (uint64_t)i + 3);
	for (uint32_t i = m.s.backup.completed; i != m.s.backup.submitted; i++)
		mix(&h, m.s.backup.jobs[i % SLOT_COUNT]);
	mix(&h, m.s.backlog | m.s.need_backup << 8 | (uint64_t)m.s.repair.running << 16 |
	    (uint64_t)m.s.repair.work_count << 24 | (uint64_t)(m.s.slots.blocked.head + 1) << 32 |
	    (uint64_t)(m.s.slots.unanswered.head + 1) << 40);
	return h ? h : 1;
}

/* True the first time. */
static bool is_new(uint64_t print)
{
	uint32_t at = (uint32_t)(print >> 20) & (m.seen_size - 1);

	while (m.seen[at] && m.seen[at] != print)
		at = (at + 1) & (m.seen_size - 1);
	if (m.seen[at])
		return false;
	m.seen[at] = print;
	if (++m.states > m.seen_size / 4 * 3)
		violated("more states than room for them", m.states, m.seen_size);
	return true;
}

/* --- the search ---------------------------------------------------------------------------------- */

/* Everything under way comes to its end, and each page is what it should be. */
static void settle_and_check(void)
{
	struct step steps[64];
	const struct budget some = { .reads = 1, .ticks = 1 };
	int n;

	W.left = (struct budget){ 0 };
	for (int round = 0; round < 12; round++) {
		for (int i = 0; i < 40 && (n = possible(steps)) > 0; i++)
			take(&steps[0]);
		if (round == 10 && m.s.slots.active_count)
			violated("a request that nothing answers", m.s.slots.active_count, 0);
		W.left = some;
		if (round % 4 == 3)
			take(&(struct step){ STEP_READ, 2, 0 });
		else
			take(&(struct step){ STEP_TICK, 0, 0 });
		W.left = (struct budget){ 0 };
	}
	while (possible(steps) > 0)
		take(&steps[0]);
	if (m.s.slots.free_count != SLOTS || m.s.repair.running || W.answered != W.requests)
		violated("something is left over", m.s.slots.free_count, W.answered);
	if (m.s.backlog || m.s.need_backup)
		violated("the backup is miscounted", m.s.backlog, m.s.need_backup);
	check_state();
}

static void explore(int depth)
{
	struct step steps[64];
	int n, external = 0;

	if (depth >= DEPTH - 130)
		violated("too deep", (uint64_t)depth, 0);
	n = possible(steps);
	for (int i = 0; i < n; i++)
		external += !is_own(&steps[i]);
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

static void begin(const struct model *model)
{
	static const struct error none;
	uint32_t seen_size = m.seen_size;

	(void)none;
	W = (struct world){ .left = model->budget, .now = 1 };
	m.model = model;
	m.depth = 0;
	m.shared = (struct shared){ .beats = 0 };
	m.s = (struct swapd){
		.options = { .name = "model", .slab = model->slab_pages * (uint64_t)PAGE,
			     .repair_rate = 1 << 30 },
		.shared = &m.shared, .count = &m.shared.counters,
		.pages = PAGES,
		.written = &W.written, .same = &W.same, .spoilt = &W.spoilt, .word = W.word,
		.seed = 1, .wanted = model->wanted, .choices = 2,
		.activity_rule = { .alpha = 0.2, .read_weight = 1, .write_weight = 1 },
		.donor_count = DONORS,
		.backlog_most = 1,
		.backup = { .fd = model->backup ? 1 << 20 : -1 },
		.slots = { .slot = W.slot, .free = SLOT_LIST_EMPTY, .blocked = SLOT_LIST_EMPTY,
			   .unanswered = SLOT_LIST_EMPTY },
	};
	m.seen_size = seen_size;
	for (int c = 0; c <= model->wanted; c++)
		m.s.valid[c] = &W.valid[c];
	slab_init(&m.s.table, W.slab, PAGES / model->slab_pages, model->slab_pages);
	m.s.backup.slots = &m.s.slots;
	for (int i = SLOTS - 1; i >= 0; i--) {
		W.slot[i].payload = m.memory + i * PAGES * (size_t)PAGE;
		slot_put(&m.s.slots, &W.slot[i]);
	}
	for (int d = 0; d < DONORS; d++)
		m.s.donors[d] = (struct donor){
			.index = (uint16_t)d, .transport = &transport_model, .state = DONOR_UP,
			.fd = -1, .arriving = -1, .waiting = LEG_LIST_EMPTY,
			.total = model->room * m.s.options.slab,
			.free = model->room * m.s.options.slab,
			.slab_size = m.s.options.slab,
			.tx = { .entries = m.entries[d], .size = QUEUE },
		};
}

static int with_model(void **state)
{
	m.seen_size = 1u << 23;
	m.memory = calloc(SLOTS * PAGES, PAGE);
	m.saved = calloc(DEPTH, sizeof(*m.saved));
	m.seen = calloc(m.seen_size, sizeof(*m.seen));
	return m.memory && m.saved && m.seen ? 0 : -1;
}

static int without_model(void **state)
{
	free(m.memory);
	free(m.saved);
	free(m.seen);
	return 0;
}

static void search(const struct model *model)
{
	begin(model);
	m.states = 0;
	memset(m.seen, 0, m.seen_size * sizeof(*m.seen));
	explore(0);
	printf("%s: %u states\n", model->name, m.states);
	assert_true(m.states >= model->states);
}

static void every_interleaving(void **state)
{
	static const struct model models[] = {
		{ "disk, a crash", 1, true, 2, 1,
		  { .writes = 2, .reads = 1, .crashes = 1, .returns = 1, .ticks = 2 }, 200000 },
		{ "disk, an eviction", 1, true, 2, 1,
		  { .writes = 2, .reads = 1, .evictions = 1, .ticks = 2 }, 100000 },
		{ "disk, a discard", 1, true, 2, 1,
		  { .writes = 2, .discards = 1, .reads = 1, .ticks = 2 }, 150000 },
		{ "disk, one word", 1, true, 2, 1,
		  { .writes = 1, .same = 1, .reads = 1, .evictions = 1, .ticks = 2 }, 25000 },
		{ "disk, errors", 1, true, 2, 1,
		  { .writes = 2, .reads = 1, .crashes = 1, .disk_errors = 1, .evictions = 1,
		    .ticks = 1 }, 300000 },
		{ "disk, two slabs", 1, true, 1, 1,
		  { .writes = 2, .reads = 1, .crashes = 1, .ticks = 1 }, 50000 },
		{ "replicas, crashes", 2, false, 2, 1,
		  { .writes = 2, .reads = 1, .crashes = 2, .returns = 1, .ticks = 2 }, 250000 },
		{ "replicas, a discard", 2, false, 2, 1,
		  { .writes = 2, .discards = 1, .reads = 1, .crashes = 1, .ticks = 1 }, 100000 },
		{ "none, a migration", 1, false, 2, 1,
		  { .writes = 2, .discards = 1, .reads = 1, .migrations = 1, .ticks = 2 }, 250000 },
		{ "none, a migration and a crash", 1, false, 2, 1,
		  { .writes = 1, .reads = 2, .migrations = 1, .crashes = 1, .ticks = 3 }, 25000 },
	};

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		search(&models[i]);
}

/* Longer histories than can all be looked at. */
static void random_walks(void **state)
{
	static const struct model models[] = {
		{ "disk", 1, true, 2, 1,
		  { 12, 3, 12, 4, 3, 3, 3, 12, 2, 2, 1 }, 0 },
		{ "disk, two slabs", 1, true, 1, 2,
		  { 12, 3, 12, 4, 3, 3, 3, 12, 2, 2, 1 }, 0 },
		{ "replicas", 2, false, 2, 2,
		  { 12, 3, 12, 4, 3, 3, 3, 12, 2, 0, 1 }, 0 },
		{ "none", 1, false, 1, 2,
		  { 12, 3, 12, 4, 1, 1, 3, 12, 2, 0, 1 }, 0 },
	};
	uint64_t seed = 12345;

	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		for (int walk = 0; walk < 4000; walk++) {
			struct step steps[64];
			int n;

			begin(&models[i]);
			for (int d = 0; d < 90 && (n = possible(steps)) > 0; d++) {
				take(&steps[draw_below(&seed, (uint32_t)n)]);
				m.depth %= DEPTH - 1;
				check_state();
			}
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(random_walks),
	};

	return cmocka_run_group_tests_name("model", tests, with_model, without_model);
}
