// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "bits.h"
#include "fuse_file.h"
#include "page_io.h"
#include "swapd.h"

static void read_on(struct swapd *s, struct slot *slot);
static void write_on(struct swapd *s, struct slot *slot);

static void go_on(struct swapd *s, struct slot *slot)
{
	if (slot->kind == SLOT_READ)
		read_on(s, slot);
	else
		write_on(s, slot);
}

static void launch(struct swapd *s, struct slot *slot)
{
	slot_activate(&s->slots, slot);
	if (slot->kind == SLOT_WRITE)
		backup_submit(&s->backup, slot);
	go_on(s, slot);
}

void page_io_start(struct swapd *s, struct slot *slot)
{
	count_add(&s->count->received, 1);
	if (slot_conflicts(&s->slots, slot)) {
		count_add(&s->count->conflicts, 1);
		slot->blocked = true;
		slot_append(&s->slots, &s->slots.blocked, slot);
		return;
	}
	launch(s, slot);
}

/* Answers @slot with @error (0 or -errno) and lets go those it held up. */
static void answer(struct swapd *s, struct slot *slot, int error)
{
	slot_retire(&s->slots, slot);
	slot->answered = true;
	if (error)
		fuse_answer_error(s, slot->unique, error);
	else if (slot->kind == SLOT_READ)
		fuse_answer_read(s, slot);
	else
		fuse_answer_write(s, slot);
	count_add(&s->count->completed, 1);
	if (!slot->backing)
		slot_put(&s->slots, slot);
	for (int i = s->slots.blocked.head; i >= 0;) {
		struct slot *b = &s->slots.slot[i];

		if (slot_conflicts(&s->slots, b)) {
			i = b->next;
			continue;
		}
		slot_remove(&s->slots, &s->slots.blocked, b);
		b->blocked = false;
		launch(s, b);
		/* That may have answered others: look again from the first. */
		i = s->slots.blocked.head;
	}
}

static void answer_read(struct swapd *s, struct slot *slot, int error)
{
	count_add(&s->count->read_requests, 1);
	if (error)
		count_add(&s->count->read_failed, slot->count);
	answer(s, slot, error);
}

/* The donor has done the present run. */
static void leg_done(struct swapd *s, struct slot *slot)
{
	if (slot->kind == SLOT_WRITE) {
		bits_set(s->valid, slot->first + slot->cursor, slot->run);
		count_add(&s->count->written_donor, slot->run);
	} else {
		count_add(&s->count->read_donor, slot->run);
	}
	slot->leg = LEG_NONE;
	slot->cursor += slot->run;
}

/* True when @pages of @slot are through already; else page_io_donor_reply() comes. */
static bool move(struct swapd *s, const struct slab *slab, struct slot *slot, enum wire_op op,
		 uint32_t pages)
{
	struct donor *d = &s->donors[slab->donor];

	if (d->transport->submit(s, d, slot, op, pages) == TRANSPORT_UNDER_WAY)
		return false;
	leg_done(s, slot);
	return true;
}

static void read_on(struct swapd *s, struct slot *slot)
{
	while (slot->cursor < slot->count) {
		uint32_t page = slot->first + slot->cursor, left = slot->count - slot->cursor;
		const struct slab *slab = slab_of_page(&s->table, page);
		uint32_t run;

		if (bits_test(s->valid, page)) {
			run = bits_run(s->valid, page, slab_run(&s->table, page, left));
			if (!move(s, slab, slot, WIRE_READ, run))
				return;
			continue;
		}
		/* Up to where a donor has it, then up to where the source changes. */
		run = bits_run(s->written, page, bits_run(s->valid, page, left));
		if (bits_test(s->written, page)) {
			if (bits_test(s->spoilt, page)) {
				answer_read(s, slot, -EIO);
				return;
			}
			slot->run = bits_run(s->spoilt, page, run);
			slot->leg = LEG_BACKUP;
			s->need_backup++;
			backup_submit(&s->backup, slot);
			return;
		}
		memset(slot->payload + slot->cursor * (size_t)PAGE, 0, run * (size_t)PAGE);
		count_add(&s->count->read_zero, run);
		slot->cursor += run;
	}
	answer_read(s, slot, 0);
}

/* Answers a write that is through with the donors, as soon as it may be. */
static void write_settle(struct swapd *s, struct slot *slot)
{
	int error = 0;

	if (slot->degraded) {
		if (slot->backing)
			return;
		error = slot->backup_result;
		s->need_backup--;
	} else if (slot->backing) {
		if (s->backlog >= SLOT_BACKLOG) {
			slot_append(&s->slots, &s->slots.unanswered, slot);
			s->need_backup++;
			return;
		}
		s->backlog++;
	}
	count_add(&s->count->write_requests, 1);
	if (error)
		count_add(&s->count->write_failed, slot->count);
	answer(s, slot, error);
}

/* The present run reached no donor: only the backup has it. */
static void degrade(struct swapd *s, struct slot *slot, uint32_t run)
{
	bits_clear(s->valid, slot->first + slot->cursor, run);
	count_add(&s->count->written_backup_only, run);
	if (!slot->degraded)
		s->need_backup++;
	slot->degraded = true;
	slot->cursor += run;
}

static void write_on(struct swapd *s, struct slot *slot)
{
	while (slot->cursor < slot->count) {
		uint32_t page = slot->first + slot->cursor;
		uint32_t run = slab_run(&s->table, page, slot->count - slot->cursor);
		uint32_t index = page / s->table.pages;
		struct slab *slab = &s->table.slabs[index];

		if (slab->state == SLAB_MAPPED) {
			if (!move(s, slab, slot, WIRE_WRITE, run))
				return;
			continue;
		}
		if (slab->state == SLAB_MAPPING || donor_ask_slab(s, index)) {
			struct slot_list list = { slab->waiting_head, slab->waiting_tail };

			slot->leg = LEG_SLAB;
			slot_append(&s->slots, &list, slot);
			slab->waiting_head = list.head;
			slab->waiting_tail = list.tail;
			return;
		}
		degrade(s, slot, run);
	}
	slot->leg = LEG_DONE;
	bits_set(s->written, slot->first, slot->count);
	write_settle(s, slot);
}

void page_io_donor_reply(struct swapd *s, struct slot *slot)
{
	leg_done(s, slot);
	go_on(s, slot);
}

void page_io_donor_gone(struct swapd *s, struct slot *slot)
{
	slot->leg = LEG_NONE;
	/* A read comes again and finds the bits cleared. */
	bits_clear(s->valid, slot->first + slot->cursor, slot->run);
	if (slot->kind == SLOT_WRITE)
		degrade(s, slot, slot->run);
	go_on(s, slot);
}

void page_io_slab_settled(struct swapd *s, uint32_t index)
{
	struct slab *slab = &s->table.slabs[index];
	struct slot_list list = { slab->waiting_head, slab->waiting_tail };

	/* Those who must wait again queue up anew. */
	slab->waiting_head = slab->waiting_tail = -1;
	while (list.head >= 0) {
		struct slot *slot = &s->slots.slot[list.head];

		slot_remove(&s->slots, &list, slot);
		slot->leg = LEG_NONE;
		go_on(s, slot);
	}
}

static void read_backed(struct swapd *s, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;

	s->need_backup--;
	slot->leg = LEG_NONE;
	if (slot->backup_result) {
		count_add(&s->count->backup_errors, 1);
		answer_read(s, slot, slot->backup_result);
		return;
	}
	/* A write queued before this read may have failed meanwhile. */
	if (bits_count(s->spoilt, page, slot->run)) {
		answer_read(s, slot, -EIO);
		return;
	}
	count_add(&s->count->read_backup, slot->run);
	slot->cursor += slot->run;
	read_on(s, slot);
}

/* One place in the backlog is free. */
static void answer_next(struct swapd *s)
{
	int i = s->slots.unanswered.head;

	if (i < 0 || s->backlog >= SLOT_BACKLOG)
		return;
	slot_remove(&s->slots, &s->slots.unanswered, &s->slots.slot[i]);
	s->need_backup--;
	write_settle(s, &s->slots.slot[i]);
}

void page_io_backed(struct swapd *s, struct slot *slot)
{
	if (slot->kind == SLOT_READ) {
		read_backed(s, slot);
		return;
	}
	if (slot->backup_result) {
		bits_set(s->spoilt, slot->first, slot->count);
		count_add(&s->count->backup_errors, 1);
		if (s->count->backup_errors == 1)
			note(&s->notes, LOG_LVL_ERR,
			     "backup %s: %s; pages are safe at the donors only, watch `status`",
			     s->backup.path, strerror(-slot->backup_result));
	} else {
		bits_clear(s->spoilt, slot->first, slot->count);
	}
	if (slot->answered) {
		s->backlog--;
		slot_put(&s->slots, slot);
		answer_next(s);
	} else if (slot->leg == LEG_DONE) {
		if (!slot->degraded) {
			slot_remove(&s->slots, &s->slots.unanswered, slot);
			s->need_backup--;
		}
		write_settle(s, slot);
	}
}
