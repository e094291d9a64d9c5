// SPDX-License-Identifier: GPL-2.0-or-later
/* The world outside the code under test: kernel, transport, donors, disk. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "swapd/process/failover.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/request/engine.h"
#include "swapd/frontend/frontend.h"
#include "swapd/page/page_map.h"
#include "world.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

struct state m;

void violated(const char *what, uint64_t a, uint64_t b)
{
	fprintf(stderr, "%s: %s (%llu, %llu) after:", m.model->name, what, (unsigned long long)a,
		(unsigned long long)b);
	for (int i = 0; i < m.depth; i++)
		fprintf(stderr, " %s", m.path[i]);
	fprintf(stderr, "\n");
	fail_msg("%s", what);
}

uint64_t *payload_of(const struct slot *slot, uint32_t page)
{
	return (uint64_t *)(slot->payload + page * (size_t)PAGE);
}

static void put_stamp(const struct slot *slot, uint32_t page, uint64_t stamp)
{
	/* 0 is a page of zeroes; stamps of pages to be written are never one word. */
	payload_of(slot, page)[0] = stamp;
	payload_of(slot, page)[1] = stamp ? ~stamp : 0;
}

/* What page @i of @slot is in clear. */
static uint64_t stamp_of(const struct slot *slot, uint32_t i)
{
	if (!m.model->sealed)
		return payload_of(slot, i)[0];
	return slot->kind == SLOT_WRITE ? W.expected[slot->unique].stamp[i] :
					  m.arrived[slot_index(&m.s.engine.slots, slot)][i];
}

/* Page @i of the WRITE or RESYNC @slot goes to @to, whose page has @stamp then. */
static void page_out(const struct slot *slot, uint32_t i, uint64_t *stamp, struct bytes *to)
{
	*stamp = stamp_of(slot, i);
	if (!m.model->sealed)
		return;
	memcpy(to->before, to->page, PAGE);
	memcpy(to->page, payload_of(slot, i), PAGE);
}

/* The other way. */
static void page_in(const struct slot *slot, uint32_t i, uint64_t stamp, const struct bytes *from)
{
	if (!m.model->sealed) {
		put_stamp(slot, i, stamp);
		return;
	}
	memcpy(payload_of(slot, i), from->page, PAGE);
	m.arrived[slot_index(&m.s.engine.slots, slot)][i] = stamp;
}

/* Returns whether its UNMAP is in flight: its pages are free. */
static bool given_back(int donor, int remote)
{
	for (uint32_t i = 0; i < W.controls; i++)
		if (W.control[i].donor == donor && W.control[i].frame.op == WIRE_UNMAP &&
		    W.control[i].frame.slab == (uint32_t)remote)
			return true;
	return false;
}

/* Whether a RESYNC has it, on its way from one place to another. */
static bool carried(uint32_t page, uint64_t stamp)
{
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *fill = &W.slot[i];
		uint32_t at = page - fill->first;

		if (fill->kind == SLOT_RESYNC && fill->fetched && page >= fill->first &&
		    at >= fill->cursor && at < fill->cursor + fill->run &&
		    stamp_of(fill, at) == stamp)
			return true;
	}
	return false;
}

/* Whether @stamp of @page is in memory or on disk anywhere, or on its way. */
static bool exists(uint32_t page, uint64_t stamp)
{
	uint32_t slab = page / m.model->slab_pages, at = page % m.model->slab_pages;

	if (!stamp || carried(page, stamp))
		return true;
	for (int d = 0; d < m.s.donors.count; d++)
		for (int r = 0; r < REMOTE; r++)
			if (W.loan[d][r].lent && W.loan[d][r].slab == slab &&
			    W.loan[d][r].stamp[at] == stamp && !given_back(d, r))
				return true;
	if (!m.model->backup)
		return false;
	if (W.disk[page] == stamp)
		return true;
	for (uint32_t i = m.s.engine.backup.queue.completed; i != m.s.engine.backup.queue.submitted;
	     i++) {
		const struct slot *slot = &W.slot[m.s.engine.backup.queue.jobs[i % SLOT_COUNT]];

		if (slot->kind == SLOT_WRITE && page >= slot->first &&
		    page < slot->first + slot->count &&
		    stamp_of(slot, page - slot->first) == stamp)
			return true;
	}
	return false;
}

/* The kernel's side. */
static void check_answer(uint64_t unique, const struct slot *slot, int error)
{
	struct expected *e = &W.expected[unique];
	bool gone = e->unreadable;

	W.answered++;
	/* The kernel keeps a page that it could not write, and does not read it. */
	for (uint32_t i = 0; i < e->count && error && m.model->budget.cuts; i++)
		if (e->kind == SLOT_WRITE)
			W.failed[e->first + i] = e->stamp[i];
	if (error && e->kind == SLOT_DISCARD)
		violated("a discard failed", unique, 0);
	for (uint32_t i = 0; i < e->count; i++)
		gone |= W.failed[e->first + i] == e->stamp[i] ||
			!exists(e->first + i, e->stamp[i]);
	if (error && !gone)
		violated("an error, and the page is there", unique, e->stamp[0]);
	if (error || e->kind != SLOT_READ)
		return;
	for (uint32_t i = 0; i < e->count; i++)
		if (payload_of(slot, i)[0] != e->stamp[i])
			violated("a page that is not the newest", payload_of(slot, i)[0],
				 e->stamp[i]);
}

static enum slot_after answer(void *host, struct slot *slot, int error)
{
	check_answer(slot->unique, slot, error);
	return SLOT_DONE;
}

static int take_over(struct frontend_host *s, struct slot *reading)
{
	if (reading)
		violated("a request that is still being read", reading->unique, 0);
	return 0;
}

static const struct frontend frontend_fake = {
	.name = "fake", .answer = answer, .take_over = take_over,
};

/* --- the transport ------------------------------------------------------------------ */

/*
 * What the RESYNC @slot got from the backup's queue came past page_in(): it is known by its seal.
 */
static void learn_from_queue(const struct slot *slot)
{
	for (uint32_t i = slot->cursor; i < slot->cursor + slot->run; i++)
		for (uint32_t j = m.s.engine.backup.queue.reaped;
		     j != m.s.engine.backup.queue.submitted; j++) {
			const struct slot *w =
				&W.slot[m.s.engine.backup.queue.jobs[j % SLOT_COUNT]];
			uint32_t at = slot->first + i - w->first;

			if (w->kind == SLOT_WRITE && slot->first + i >= w->first && at < w->count &&
			    !memcmp(payload_of(w, at), payload_of(slot, i), PAGE))
				m.arrived[slot_index(&m.s.engine.slots, slot)][i] =
					W.expected[w->unique].stamp[at];
		}
}

static void submit(struct link *l, const struct mapping *map, struct transfer *t)
{
	const struct slot *slot = slot_of_transfer(&m.s.engine.slots, t->number);
	struct op *o = &W.op[W.ops++];

	assert_in_range(W.ops, 1, OPS);
	if (m.model->sealed && slot->kind == SLOT_RESYNC && t->op == WIRE_WRITE)
		learn_from_queue(slot);
	link_wait(l, map, t, 0);
	*o = (struct op){
		.donor = (uint8_t)l->index,
		.op = t->op,
		.first = (uint8_t)(t->offset / PAGE),
		.count = (uint8_t)(t->length / PAGE),
		.number = t->number,
		.remote = map->remote,
		.generation = map->generation,
		.tag = t->tag,
	};
	for (uint32_t i = 0; t->op == WIRE_WRITE && i < o->count; i++)
		o->stamp[i] = stamp_of(slot, slot->cursor + i);
}

static const struct transport transport_model = { .name = "model", .submit = submit };

static struct transfer *transfer_of(const struct op *o)
{
	return link_find(&m.s.donors.donor[o->donor].link, o->tag);
}

/* Returns whether the engine would accept a completion of @o for a transfer in flight. */
bool is_in_flight(const struct op *o)
{
	return transfer_of(o) != NULL;
}

/* Returns whether its loan, when it arrives there, is the one it was for. */
static bool reaches(const struct op *o)
{
	const struct loan *loan = &W.loan[o->donor][o->remote];

	return loan->lent && loan->generation == o->generation;
}

void deliver(uint32_t i)
{
	struct op o = W.op[i];
	struct loan *loan = &W.loan[o.donor][o.remote];
	const struct slot *slot = slot_of_transfer(&m.s.engine.slots, o.number);

	W.op[i] = W.op[--W.ops];
	if (!is_in_flight(&o))
		violated("a transfer that is not in flight", o.number, o.tag);
	if (o.served) {
		for (uint32_t j = 0; o.op == WIRE_READ && j < o.count; j++)
			page_in(slot, slot->cursor + j, o.stamp[j], NULL);
		link_done(&m.s.donors.donor[o.donor].link, transfer_of(&o), 0);
		return;
	}
	/* It may have been lent again since. */
	if (loan->revoked && !reaches(&o)) {
		link_done(&m.s.donors.donor[o.donor].link, transfer_of(&o), -ESTALE);
		return;
	}
	if (!reaches(&o))
		violated("a page asked of what is not lent", o.remote, o.generation);
	for (uint32_t j = 0; j < o.count; j++) {
		struct bytes *bytes = &m.lent[o.donor][o.remote][o.first + j];

		if (o.op == WIRE_READ) {
			page_in(slot, slot->cursor + j, loan->stamp[o.first + j], bytes);
			continue;
		}
		page_out(slot, slot->cursor + j, &loan->stamp[o.first + j], bytes);
		if (loan->stamp[o.first + j] != o.stamp[j])
			violated("a page changed on its way", loan->stamp[o.first + j], o.stamp[j]);
	}
	link_done(&m.s.donors.donor[o.donor].link, transfer_of(&o), 0);
}

/* --- donors ---------------------------------------------------------------------------- */

/* Donor @d serves @f, which becomes its reply; false if there is none to take. */
static bool serve(struct donor *d, struct wire_frame *request)
{
	struct loan *loans = W.loan[d->index];
	struct wire_frame f = *request;

	f.direction = WIRE_REPLY;
	f.length = 0;
	if (f.op == WIRE_UNMAP && loans[f.slab].revoked &&
	    (!loans[f.slab].lent || loans[f.slab].generation != f.generation)) {
		f.status = WIRE_STALE;
	} else if (f.op == WIRE_UNMAP) {
		if (!loans[f.slab].lent || loans[f.slab].generation != f.generation)
			violated("a slab that is not lent was released", f.slab, f.generation);
		for (uint32_t j = 0; j < W.ops; j++)
			/* Those of a loan that was revoked end by their own replies. */
			if (W.op[j].donor == d->index && W.op[j].remote == f.slab &&
			    W.op[j].generation == f.generation)
				violated("released with a page in flight", f.slab, 0);
		loans[f.slab].lent = false;
	} else if (f.op == WIRE_MAP) {
		uint32_t r = 0;

		while (r < m.model->room && loans[r].lent)
			r++;
		f.status = r < m.model->room ? WIRE_OK : WIRE_NO_SPACE;
		if (!f.status) {
			loans[r] = (struct loan){ .lent = true, .claimed = true,
						  .revoked = loans[r].revoked,
						  .slab = (uint32_t)f.tag,
						  .generation = loans[r].generation + 1 };
			f.slab = r;
			f.generation = loans[r].generation;
		}
	} else if (f.op == WIRE_REMAP) {
		bool lent = loans[f.slab].lent && loans[f.slab].generation == f.generation;

		f.status = lent ? WIRE_OK : WIRE_STALE;
		loans[f.slab].claimed |= lent;
	} else if (f.op == WIRE_RELEASE) {
		for (uint32_t r = 0; r < m.model->room; r++)
			loans[r].lent &= loans[r].claimed;
	} else if (f.op == WIRE_PING) {
		d->pinged = 0;
		return false;
	}
	*request = f;
	return true;
}

void take_control(uint32_t i)
{
	struct wire_frame f = W.control[i].frame;
	struct donor *d = &m.s.donors.donor[W.control[i].donor];
	const struct loan *loans = W.loan[d->index];
	uint32_t free = 0;

	memmove(&W.control[i], &W.control[i + 1], (--W.controls - i) * sizeof(W.control[0]));
	/* A connection keeps the order of its frames. */
	for (int r = 0; r < REMOTE; r++)
		if (loans[r].untold)
			revoked(d->index, r);
	if (serve(d, &f))
		assert_int_equal(donor_frame(d, &f, NULL), 0);
	/* What a PING would tell. */
	for (uint32_t r = 0; r < m.model->room; r++)
		free += !loans[r].lent;
	d->free = free * m.s.options.slab;
}

/* What is left of @donor's connection when it ends. */
static void end_connection(int donor)
{
	uint32_t kept = 0;

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
	for (int r = 0; r < REMOTE; r++)
		W.loan[donor][r].untold = false;
}

/* So does the donor's session. */
static void disconnect(int donor)
{
	for (int r = 0; r < REMOTE; r++)
		W.loan[donor][r].lent = false;
	end_connection(donor);
}

void cut(int donor, int how)
{
	for (uint32_t i = 0; i < W.ops && how; i++) {
		const struct op *o = &W.op[i];

		/* Without an acknowledgement no page of it may be read. */
		for (uint32_t j = 0; o->donor == donor && o->op == WIRE_WRITE && reaches(o) &&
				     j < o->count; j++)
			W.loan[donor][o->remote].stamp[o->first + j] = FORGED;
	}
	for (uint32_t i = 0; i < W.controls && how; i++)
		if (W.control[i].donor == donor)
			serve(&m.s.donors.donor[donor], &W.control[i].frame);
	end_connection(donor);
	for (int r = 0; r < REMOTE; r++)
		W.loan[donor][r].claimed = false;
	m.s.donors.donor[donor].pinged = 0;
	donor_part(&m.s.donors.donor[donor], "cut");
}

void crash(int donor)
{
	disconnect(donor);
	donor_lose(&m.s.donors.donor[donor], "killed");
}

/* A donor changes a bit, exchanges its two pages, or gives an older content. */
void forge(int donor, int remote, int how)
{
	struct loan *loan = &W.loan[donor][remote];
	struct bytes *b = m.lent[donor][remote];
	static uint8_t page[PAGE];

	if (how == 0) {
		b[0].page[W.stamps % PAGE] ^= 1;
		loan->stamp[0] = FORGED;
	} else if (how == 1) {
		memcpy(page, b[0].page, PAGE);
		memcpy(b[0].page, b[1].page, PAGE);
		memcpy(b[1].page, page, PAGE);
		loan->stamp[0] = loan->stamp[1] = FORGED;
	} else {
		memcpy(b[1].page, b[1].before, PAGE);
		loan->stamp[1] = FORGED;
	}
}

/* What donors_flush() does about donors that gave other pages than were written. */
void quarantine(void)
{
	for (int i = 0; i < m.s.donors.count; i++) {
		struct donor *d = &m.s.donors.donor[i];

		if (!d->blamed)
			continue;
		m.bad_pages++;
		if (m.model->backup)
			disconnect(i);
		donor_quarantine(d, d->why);
		d->blamed = false;
	}
}

void come_back(int donor)
{
	struct donor *d = &m.s.donors.donor[donor];

	donor_trust(d, 0);
	d->state = DONOR_UP;
	d->free = m.model->room * m.s.options.slab;
	if (donor_is_away(d))
		mapping_resume(&m.s.replicas, d);
}

void evict(int donor, int remote)
{
	struct wire_frame f = { .op = WIRE_EVICT, .slab = (uint32_t)remote,
				.generation = W.loan[donor][remote].generation };

	assert_int_equal(donor_frame(&m.s.donors.donor[donor], &f, NULL), 0);
}

void revoke_loan(int donor, int remote, int how)
{
	struct loan *loan = &W.loan[donor][remote];

	for (uint32_t i = 0; how && i < W.ops; i++) {
		struct op *o = &W.op[i];

		if (o->donor != donor || o->remote != (uint32_t)remote ||
		    o->generation != loan->generation)
			continue;
		o->served = true;
		for (uint32_t j = 0; j < o->count; j++)
			if (o->op == WIRE_READ)
				o->stamp[j] = loan->stamp[o->first + j];
			else
				loan->stamp[o->first + j] = o->stamp[j];
	}
	loan->lent = false;
	loan->revoked = true;
	/* The replies to REMAP tell a borrower that is away. */
	loan->untold = m.s.donors.donor[donor].state == DONOR_UP;
}

void revoked(int donor, int remote)
{
	struct wire_frame f = { .op = WIRE_REVOKED, .slab = (uint32_t)remote,
				.generation = W.loan[donor][remote].generation };

	W.loan[donor][remote].untold = false;
	assert_int_equal(donor_frame(&m.s.donors.donor[donor], &f, NULL), 0);
}

/* --- the backup disk -------------------------------------------------------------------- */

struct backup_lane *lane_of(int which)
{
	return which ? &m.s.engine.backup.reads : &m.s.engine.backup.queue;
}

void disk_step(struct backup_lane *l, bool fails)
{
	struct slot *slot = &W.slot[l->jobs[l->completed % SLOT_COUNT]];
	uint32_t at = slot->first + slot->cursor;

	switch (slot->kind) {
	case SLOT_WRITE:
		for (uint32_t i = 0; i < slot->count && !fails; i++)
			page_out(slot, i, &W.disk[slot->first + i], &m.disk[slot->first + i]);
		/* A predecessor had written it; it may be torn now. */
		for (uint32_t i = 0; i < slot->count && fails; i++)
			if (W.disk[slot->first + i] == stamp_of(slot, i))
				W.disk[slot->first + i] = FORGED;
		break;
	case SLOT_READ:
	case SLOT_RESYNC:
		for (uint32_t i = 0; i < slot->run && slot->fetched && !fails; i++)
			page_out(slot, slot->cursor + i, &W.disk[at + i], &m.disk[at + i]);
		for (uint32_t i = 0; i < slot->run && !slot->fetched && !fails; i++)
			page_in(slot, slot->cursor + i, W.disk[at + i], &m.disk[at + i]);
		break;
	}
	if (fails && slot->kind == SLOT_READ)
		W.expected[slot->unique].unreadable = true;
	slot->backup_result = fails ? -EIO : 0;
	l->completed++;
	engine_backed(&m.s.engine, backup_reap(&m.s.engine.backup));
}

/* --- the server dies ---------------------------------------------------------------------- */

/* The pages of @slot's job that go to the disk. */
static void write_out(const struct slot *slot)
{
	uint32_t from = slot->kind == SLOT_WRITE ? 0 : slot->cursor;
	uint32_t count = slot->kind == SLOT_WRITE ? slot->count : slot->run;

	if (slot->kind != SLOT_WRITE && !(slot->kind == SLOT_RESYNC && slot->fetched))
		return;
	for (uint32_t i = from; i < from + count; i++) {
		page_out(slot, i, &W.disk[slot->first + i], &m.disk[slot->first + i]);
		/* The resync that would repair it is lost with the server. */
		if (slot->kind == SLOT_RESYNC)
			W.disk[slot->first + i] = FORGED;
	}
}

/* Its writes in flight arrive or are lost. */
static void leave_in_flight(int how)
{
	struct backup *b = &m.s.engine.backup;

	for (uint32_t i = 0; i < W.ops && how & 1; i++) {
		const struct op *o = &W.op[i];
		const struct slot *slot = &W.slot[o->number / SLAB_COPIES];

		for (uint32_t j = 0; j < o->count && o->op == WIRE_WRITE && reaches(o); j++) {
			uint64_t *stamp = &W.loan[o->donor][o->remote].stamp[o->first + j];

			page_out(slot, slot->cursor + j, stamp,
				 &m.lent[o->donor][o->remote][o->first + j]);
			/* Not acknowledged: no page of it may be read before it is repeated. */
			if (m.model->budget.cuts || slot->kind == SLOT_RESYNC)
				*stamp = FORGED;
		}
	}
	for (uint32_t i = b->queue.completed; i != b->queue.submitted && how & 2; i++)
		write_out(&W.slot[b->queue.jobs[i % SLOT_COUNT]]);
	W.ops = W.controls = 0;
	for (int d = 0; d < m.s.donors.count; d++)
		for (int r = 0; r < REMOTE; r++)
			W.loan[d][r].untold = false;
	b->queue.submitted = b->queue.completed = b->queue.reaped = 0;
	b->reads.submitted = b->reads.completed = b->reads.reaped = 0;
}

/* @donor is asked for what it has of ours, and takes the rest back. */
static void resume(int donor)
{
	struct donor *d = &m.s.donors.donor[donor];
	bool known[REMOTE] = { false };
	uint32_t free = 0;

	for (uint32_t i = 0; i < m.s.engine.table.count; i++) {
		int c = slab_copy_at(&W.slab[i], d->index);
		const struct copy *copy = &W.slab[i].copy[c];

		if (c < 0 || copy->state != COPY_AWAY)
			continue;
		if (W.loan[donor][copy->mapping.remote].revoked &&
		    (!W.loan[donor][copy->mapping.remote].lent ||
		     W.loan[donor][copy->mapping.remote].generation != copy->mapping.generation)) {
			d->copies--;
			slab_lose(&W.slab[i], c);
			page_map_replica_gone(m.s.engine.map, i, c);
			continue;
		}
		if (!W.loan[donor][copy->mapping.remote].lent ||
		    W.loan[donor][copy->mapping.remote].generation != copy->mapping.generation)
			violated("a copy that its donor does not know", i, copy->mapping.remote);
		known[copy->mapping.remote] = true;
		slab_back(&W.slab[i], c);
	}
	for (uint32_t r = 0; r < m.model->room; r++) {
		W.loan[donor][r].lent &= known[r];
		free += !W.loan[donor][r].lent;
	}
	d->free = free * m.s.options.slab;
	d->resume = RESUME_NOTHING;
}

void kill_server(int how)
{
	uint8_t state[DONORS];

	leave_in_flight(how);
	m.s.engine.backlog = m.s.engine.need_backup = 0;
	m.s.engine.held = m.s.engine.resyncs_held = 0;
	m.s.replicas.repair = (struct repair){ 0 };
	m.s.replicas.told_backed = false;
	for (int i = 0; i < m.s.donors.count; i++) {
		struct donor *d = &m.s.donors.donor[i];

		state[i] = d->state;
		d->state = DONOR_DOWN;
		d->link.waiting = (struct transfer_list){ 0 };
		memset(d->link.by_tag, 0, sizeof(d->link.by_tag));
		d->link.tx.head = d->link.tx.count = d->link.data_queued = 0;
		d->copies = d->mapping = d->later = 0;
		d->blamed = false;
		d->pinged = 0;
	}
	failover_slabs(&m.s);
	for (int i = 0; i < m.s.donors.count; i++) {
		m.s.donors.donor[i].state = state[i];
		if (state[i] == DONOR_UP)
			resume(i);
	}
	failover_slots(&m.s, SLOTS);
}

/* --- requests ------------------------------------------------------------------------------ */

void request(enum slot_kind kind, uint32_t first, uint32_t count, bool same)
{
	struct slot *slot = slot_get(&m.s.engine.slots);
	struct expected *e = &W.expected[W.requests];

	assert_in_range(W.requests, 0, REQUESTS - 1);
	slot->kind = (uint8_t)kind;
	slot->unique = W.requests++;
	slot->order = ++m.shared.frontend.arrivals;
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
	engine_start(&m.s.engine, slot);
}

void begin(const struct model *model)
{
	struct seal_table seals = m.s.engine.sealing.seals;
	struct sealer sealer = m.s.engine.sealing.sealer;

	W = (struct world){ .left = model->budget, .now = 1 };
	m.model = model;
	m.depth = 0;
	m.shared = (struct shared){ .beats = 0 };
	m.s = (struct swapd){
		.options = { .name = "model",
			     .slab = model->slab_pages * (uint64_t)PAGE,
			     .away_timeout = UINT64_MAX / 2,
			     .repair_rate = 1 << 30 },
		.frontend = &frontend_fake,
		.shared = &m.shared,
		.count = &m.shared.counters,
		.engine.map = (struct page_map *)W.map,
		.replicas.seed = 1,
		.replicas.wanted = model->wanted,
		.replicas.choices = 2,
		.donors.count = model->donors ? model->donors : 2,
		.engine.backlog_most = 1,
		.engine.backup = { .fd = model->backup ? 1 << 20 : -1 },
		.engine.slots = { .slot = W.slot,
				  .free = SLOT_LIST_EMPTY,
				  .blocked = SLOT_LIST_EMPTY,
				  .ready = SLOT_LIST_EMPTY,
				  .unanswered = SLOT_LIST_EMPTY },
	};
	wiring_events(&m.s);
	m.s.engine.sealing.seals = seals;
	m.s.engine.sealing.sealer = sealer;
	m.s.engine.sealing.on = model->sealed;
	memset(m.lent, 0, sizeof(m.lent));
	assert_true(page_map_size(PAGES, model->slab_pages) <= sizeof(W.map));
	page_map_init(m.s.engine.map, PAGES, model->slab_pages, model->backup);
	slab_init(&m.s.engine.table, W.slab, PAGES / model->slab_pages, model->slab_pages);
	m.s.engine.backup.slots = &m.s.engine.slots;
	for (int i = SLOTS - 1; i >= 0; i--) {
		W.slot[i].payload = m.memory + i * PAGES * (size_t)PAGE;
		slot_put(&m.s.engine.slots, &W.slot[i]);
	}
	for (int d = 0; d < m.s.donors.count; d++)
		m.s.donors.donor[d] = (struct donor){
			.table = &m.s.donors, .index = (uint16_t)d, .state = DONOR_UP,
			.version = WIRE_VERSION,
			.total = model->room * m.s.options.slab,
			.free = model->room * m.s.options.slab,
			.grace = 1ull << 62,
			.link = {
				.transport = &transport_model, .env = &m.s.donors.env,
				.ops = m.s.donors.ops, .owner = &m.s.donors.donor[d],
				.index = (uint16_t)d, .fd = -1, .slab_size = m.s.options.slab,
				.tx = { .entries = m.entries[d], .size = QUEUE },
			},
		};
}
