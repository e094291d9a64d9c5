// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "request.h"
#include "swapd/page/shared.h"

int slots_init(struct slots *s, uint32_t count, struct error *e)
{
	size_t each = SLOT_BYTES + EBB_PAGE, size = each * count;
	struct slot *slot = shared_new(count * sizeof(*slot));
	uint8_t *memory;

	if (!slot)
		return fail(e, ENOMEM, "request slots: out of memory");
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED || mlock(memory, size) < 0) {
		int r = errno;

		if (memory != MAP_FAILED)
			munmap(memory, size);
		shared_free(slot, count * sizeof(*slot));
		return fail(e, r, "request slots: cannot lock %zu MiB: %s; run as root or raise LimitMEMLOCK=",
			    size >> 20, strerror(r));
	}
	madvise(memory, size, MADV_DONTDUMP);
	*s = (struct slots){
		.slot = slot,
		.count = count,
		.memory = memory,
		.memory_size = size,
		.free = SLOT_LIST_EMPTY,
		.blocked = SLOT_LIST_EMPTY,
		.ready = SLOT_LIST_EMPTY,
		.large = SLOT_LIST_EMPTY,
		.unanswered = SLOT_LIST_EMPTY,
	};
	for (int i = (int)count - 1; i >= 0; i--) {
		slot[i].payload = memory + i * each + EBB_PAGE;
		slot[i].active = -1;
		slot[i].kind = SLOT_NEW;
		slot_put(s, &slot[i]);
	}
	return 0;
}

void slots_forget(struct slots *s)
{
	s->free = s->blocked = s->ready = s->large = s->unanswered = SLOT_LIST_EMPTY;
	s->free_count = s->active_count = s->active_excluding = 0;
}

void slot_restart(struct slot *slot)
{
	slot->source = NULL;
	slot->wait = WAIT_NONE;
	slot->pending = 0;
	slot->blocked = slot->degraded = slot->backing = false;
	slot->held = slot->gave_up = false;
	slot->in_window = 0;
	slot->until = 0;
	slot->copy = slot->purpose = 0;
	slot->backup_result = 0;
	slot->serial = 0;
	if (slot->kind != SLOT_RESYNC) {
		slot->fetched = false;
		slot->cursor = slot->run = 0;
	}
	slot->previous = slot->next = slot->active = -1;
}

void slots_free(struct slots *s)
{
	if (s->memory)
		munmap(s->memory, s->memory_size);
	shared_free(s->slot, s->count * sizeof(*s->slot));
	*s = (struct slots){ 0 };
}

struct slot *slot_get(struct slots *s)
{
	int i = s->free.head;

	if (i < 0)
		return NULL;
	slot_remove(s, &s->free, &s->slot[i]);
	s->free_count--;
	s->slot[i].kind = SLOT_NEW;
	return &s->slot[i];
}

static void forget_request(struct slot *slot, enum slot_kind kind)
{
	slot->kind = (uint8_t)kind;
	shared_order();
	memset(&slot->source, 0, offsetof(struct slot, previous) - offsetof(struct slot, source));
}

void slot_renew(struct slot *slot)
{
	forget_request(slot, SLOT_NEW);
	slot->previous = slot->next = slot->active = -1;
}

void slot_put(struct slots *s, struct slot *slot)
{
	int i = slot_index(s, slot);

	forget_request(slot, SLOT_FREE);
	slot->previous = -1;
	slot->next = s->free.head;
	slot->active = -1;
	if (s->free.head >= 0)
		s->slot[s->free.head].previous = i;
	else
		s->free.tail = i;
	s->free.head = i;
	s->free_count++;
}

void slot_append(struct slots *s, struct slot_list *list, struct slot *slot)
{
	int i = slot_index(s, slot);

	slot->next = -1;
	slot->previous = list->tail;
	if (list->tail >= 0)
		s->slot[list->tail].next = i;
	else
		list->head = i;
	list->tail = i;
}

void slot_remove(struct slots *s, struct slot_list *list, struct slot *slot)
{
	if (slot->previous >= 0)
		s->slot[slot->previous].next = slot->next;
	else
		list->head = slot->next;
	if (slot->next >= 0)
		s->slot[slot->next].previous = slot->previous;
	else
		list->tail = slot->previous;
}

void slot_activate(struct slots *s, struct slot *slot)
{
	uint32_t i = s->active_count++;

	slot->active = (int)i;
	s->active[i] = (uint16_t)slot_index(s, slot);
	s->range[i] = (struct slot_range){ slot->first, slot->first + slot->count,
					   slot_excludes(slot->kind) };
	s->active_excluding += slot_excludes(slot->kind);
}

void slot_retire(struct slots *s, struct slot *slot)
{
	uint32_t last = --s->active_count;

	s->active[slot->active] = s->active[last];
	s->range[slot->active] = s->range[last];
	s->slot[s->active[last]].active = slot->active;
	slot->active = -1;
	s->active_excluding -= slot_excludes(slot->kind);
}

bool slot_conflicts(const struct slots *s, const struct slot *slot)
{
	uint32_t first = slot->first, end = first + slot->count;
	bool excludes = slot_excludes(slot->kind);

	/* The common case: reads beside reads. */
	if (!excludes && !s->active_excluding && s->blocked.head < 0)
		return false;
	for (uint32_t i = 0; i < s->active_count; i++) {
		const struct slot_range *r = &s->range[i];

		if (r->first < end && first < r->end && (r->excludes || excludes))
			return true;
	}
	for (int i = s->blocked.head; i >= 0 && &s->slot[i] != slot; i = s->slot[i].next) {
		const struct slot *b = &s->slot[i];

		if (b->first < end && first < b->first + b->count &&
		    (slot_excludes(b->kind) || excludes))
			return true;
	}
	return false;
}
