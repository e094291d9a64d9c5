// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "forward.h"
#include "os.h"

static size_t granule_bytes(const struct ebbgc_heap *h)
{
	return (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);
}

/* Without memory no object is hot. */
static void heat_create(struct ebbgc_heap *h)
{
	if (h->options.mode == EBBGC_MEMLINER)
		__atomic_store_n(&h->moving.hot, os_map(granule_bytes(h)), __ATOMIC_RELAXED);
}

int forwards_create(struct ebbgc_heap *h)
{
	struct moving *v = &h->moving;

	if (v->states)
		return 0;
	v->forwards = os_map(h->region_count * sizeof(*v->forwards));
	if (!v->forwards)
		return -ENOMEM;
	v->states = os_map(h->region_count);
	if (v->states) {
		heat_create(h);
		return 0;
	}
	munmap(v->forwards, h->region_count * sizeof(*v->forwards));
	v->forwards = NULL;
	return -ENOMEM;
}

void forwards_destroy(struct ebbgc_heap *h)
{
	struct moving *v = &h->moving;

	if (!v->states)
		return;
	/* A thread of the parent may have been changing the list. */
	if (!os_forked(h->pid))
		for (uint32_t r = v->regions.head; r != REGION_NONE; r = h->regions[r].next)
			forwards_drop(h, r);
	munmap(v->forwards, h->region_count * sizeof(*v->forwards));
	munmap(v->states, h->region_count);
	if (v->hot)
		munmap(v->hot, granule_bytes(h));
	*v = (struct moving){ 0 };
}

/* Returns an entry's number; the last one is for what is left behind the slots of a region. */
static size_t number(const struct ebbgc_heap *h, uint32_t region, uint64_t address)
{
	return (address & (REGION_SIZE - 1)) / h->slot_size[h->kinds[region]];
}

size_t forwards_count(const struct ebbgc_heap *h, uint32_t region)
{
	return REGION_SIZE / h->slot_size[h->kinds[region]] + 1;
}

bool forwards_add(struct ebbgc_heap *h, uint32_t region)
{
	h->moving.forwards[region] = calloc(forwards_count(h, region),
					    sizeof(**h->moving.forwards));
	return h->moving.forwards[region];
}

uint64_t *forwards_get(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *table = forwards_of(h, region), *fresh;

	if (table)
		return table;
	fresh = calloc(forwards_count(h, region), sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (!__atomic_compare_exchange_n(&h->moving.forwards[region], &table, fresh, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		free(fresh);
		return table;
	}
	__atomic_fetch_add(&h->far.tables, forwards_count(h, region) * sizeof(*fresh),
			   __ATOMIC_RELAXED);
	return fresh;
}

void forwards_drop(struct ebbgc_heap *h, uint32_t region)
{
	__atomic_store_n(&h->moving.states[region], FAR_LOCAL, __ATOMIC_SEQ_CST);
	h->regions[region].hot_only = false;
	free(h->moving.forwards[region]);
	__atomic_store_n(&h->moving.forwards[region], NULL, __ATOMIC_SEQ_CST);
}

uint64_t *forward_entry(const struct ebbgc_heap *h, uint32_t region, uint64_t address)
{
	return &forwards_of(h, region)[number(h, region, address)];
}

uint64_t forward_slow(const struct ebbgc_heap *h, uint64_t object)
{
	while (in_heap(h, object)) {
		uint32_t region = region_of(h, object);
		enum far_state state = region_state(h, region);
		const uint64_t *table;
		uint64_t entry;

		/* The usual case, before the table is read. */
		if (state == FAR_LOCAL)
			break;
		table = forwards_of(h, region);
		if (!table)
			break;
		entry = __atomic_load_n(&table[number(h, region, object)], __ATOMIC_ACQUIRE);
		if (far_ask(state, object, entry) != FAR_FOLLOW)
			break;
		object = far_target(entry);
	}
	return object;
}

uint64_t slot_heal_slow(const struct ebbgc_heap *h, ebbgc_ref_t *slot, uint64_t bits)
{
	uint64_t now = forward_bits(h, bits);

	if (now != bits)
		__atomic_compare_exchange_n(&slot->bits, &bits, now, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_RELAXED);
	return now;
}
