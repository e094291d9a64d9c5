// SPDX-License-Identifier: GPL-2.0-or-later
#include "failover.h"
#include "swapd/replicas/repair.h"
#include "swapd/swapd.h"

/* --- tables ----------------------------------------------------------------------- */

static void take_slab(struct swapd *s, uint32_t index)
{
	struct slab *slab = &s->engine.table.slabs[index];

	slab_orphan(slab);
	for (int c = 0; c < SLAB_COPIES; c++) {
		struct donor *d = &s->donors.donor[slab->copy[c].donor];

		/*
		 * The server died before it took a lost copy off the table, or cleared the copy's
		 * bits.
		 */
		if (slab->copy[c].state == COPY_AWAY && d->state != DONOR_DOWN)
			slab_lose(slab, c);
		if (slab->copy[c].state == COPY_NONE) {
			page_map_replica_gone(s->engine.map, index, c);
			continue;
		}
		d->copies++;
		d->resume = RESUME_WANTED;
		if (!page_map_live(s->engine.map, index))
			page_map_note_emptied(s->engine.map, index);
	}
}

void failover_slabs(struct swapd *s)
{
	page_map_recount(s->engine.map);
	for (uint32_t i = 0; i < s->engine.table.count; i++)
		take_slab(s, i);
}

/* --- requests --------------------------------------------------------------------- */

/*
 * Returns whether the request at @i of @n in @list need not be restarted, because the kernel
 * repeats it: it is no write, or a later one writes all of its pages.  That is usually its
 * repetition to a predecessor: otherwise each death would take more slots.
 */
static bool is_needless(const struct swapd *s, const uint16_t *list, uint32_t n, uint32_t i)
{
	const struct slot *slot = &s->engine.slots.slot[list[i]];

	for (uint32_t j = i + 1; j < n && slot->kind == SLOT_WRITE; j++) {
		const struct slot *later = &s->engine.slots.slot[list[j]];

		if (later->kind == SLOT_WRITE && !later->answered && later->first <= slot->first &&
		    later->first + later->count >= slot->first + slot->count)
			return true;
	}
	return slot->kind != SLOT_WRITE;
}

/* Lists slots with requests in order of arrival; returns their number. */
static uint32_t requests(struct swapd *s, uint16_t list[static SLOT_COUNT], uint32_t slots)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots; i++) {
		struct slot *slot = &s->engine.slots.slot[i];
		uint32_t at;

		if (slot->kind != SLOT_READ && slot->kind != SLOT_WRITE &&
		    slot->kind != SLOT_DISCARD)
			continue;
		/* The kernel repeats its requests later; this completes those that had begun. */
		if (s->frontend->asks_again)
			slot->unique = 0;
		slot_restart(slot);
		for (at = n++; at && s->engine.slots.slot[list[at - 1]].order > slot->order; at--)
			list[at] = list[at - 1];
		list[at] = (uint16_t)i;
	}
	return n;
}

/*
 * Returns whether @slot, which was answered, may still have pages for the backup.  Same-filled
 * pages, and pages that could not be sealed, never go there: they are in clear until the slot is
 * free.
 */
static bool is_for_backup(const struct swapd *s, const struct slot *slot)
{
	uint64_t all = slot->count < 64 ? (1ull << slot->count) - 1 : ~0ull;

	return slot->kind == SLOT_WRITE && backup_there(&s->engine.backup) &&
	       slot->same_filled != all &&
	       (!s->engine.sealing.on || (slot->same_filled | slot->sealed) == all);
}

int failover_slots(struct swapd *s, uint32_t slots)
{
	struct slot *reading = NULL;
	uint16_t list[SLOT_COUNT];
	uint32_t n;

	sealing_take_over(&s->engine.sealing);
	slots_forget(&s->engine.slots);
	n = requests(s, list, slots);
	for (uint32_t i = slots; i--;) {
		struct slot *slot = &s->engine.slots.slot[i];

		if (slot->kind == SLOT_READING) {
			slot_restart(slot);
			reading = slot;
		} else if (slot->kind == SLOT_FREE || slot->kind == SLOT_NEW ||
			   slot->kind == SLOT_EXCLUSIVE) {
			slot_put(&s->engine.slots, slot);
		}
	}
	/* Answered writes go to the disk before any later ones. */
	for (uint32_t i = 0; i < n; i++) {
		struct slot *slot = &s->engine.slots.slot[list[i]];

		if (!slot->answered)
			continue;
		if (!is_for_backup(s, slot)) {
			slot_put(&s->engine.slots, slot);
			continue;
		}
		s->engine.backlog++;
		backup_submit(&s->engine.backup, slot);
	}
	/* Before requests, of which none had begun that overlaps. */
	for (uint32_t i = 0; i < slots; i++)
		if (s->engine.slots.slot[i].kind == SLOT_RESYNC)
			repair_take_over(&s->replicas, &s->engine.slots.slot[i]);
	for (uint32_t i = 0; i < n; i++) {
		struct slot *slot = &s->engine.slots.slot[list[i]];

		if (slot->kind == SLOT_FREE || slot->backing || slot->answered)
			continue;
		if (s->frontend->asks_again && is_needless(s, list, n, i))
			slot_put(&s->engine.slots, slot);
		else
			engine_start(&s->engine, slot);
	}
	return s->frontend->take_over(&s->host, reading);
}
