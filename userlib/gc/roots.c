// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* What keeps objects alive from outside of the heap. */
#include <errno.h>
#include <stdlib.h>
#include "heap.h"

uint64_t object_containing(const struct ebbgc_heap *h, uint64_t word)
{
	uint64_t address = word & EBBGC_ADDRESS_MASK, base = (uint64_t)(uintptr_t)h->base, object;
	uint32_t region;
	uint8_t kind;

	if (address < base ||
	    address >= base + ((uint64_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) << REGION_SHIFT))
		return 0;
	region = region_of(h, address);
	kind = h->kinds[region];
	if (kind == KIND_TAIL) {
		region -= h->regions[region].span;
		kind = h->kinds[region];
	}
	object = base + ((uint64_t)region << REGION_SHIFT) + HEADER;
	if (kind < SMALL_KINDS) {
		size_t offset = (address - base) & (REGION_SIZE - 1), size = h->slot_size[kind];

		object += offset / size * size;
		if (offset / size >= REGION_SIZE / size)
			return 0;
	} else if (!is_large(kind)) {
		return 0;
	}
	if (!bit_published(h->allocated, granule_of(h, object)) || type_id(object) == TYPE_NONE)
		return 0;
	return object;
}

/* Another thread's stack: its poisoned and its racy words are as good as others. */
static __attribute__((noinline, no_sanitize("address", "thread")))
uint64_t stack_word(const char *p)
{
	return *(const volatile uint64_t *)p;
}

static void stack_each(struct ebbgc_heap *h, struct mutator *m, ebbgc_visit_fn fn, void *arg)
{
	const char *p = (const char *)((uintptr_t)m->stack_top & -(uintptr_t)8);

	for (; p + 8 <= m->stack_base; p += 8) {
		ebbgc_ref_t found = { object_containing(h, stack_word(p)) };

		if (!found.bits)
			continue;
		found.bits |= h->tag;
		fn(arg, &found);
	}
}

static void slots_each(ebbgc_ref_t *slots, size_t count, ebbgc_visit_fn fn, void *arg)
{
	for (size_t i = 0; i < count; i++)
		fn(arg, &slots[i]);
}

void roots_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg)
{
	for (struct mutator *m = h->mutators; m; m = m->next)
		for (struct ebbgc_frame *f = m->public.frames; f; f = f->up)
			slots_each(f->slots, f->count, fn, arg);
	for (struct root_range *r = h->ranges; r; r = r->next)
		slots_each(r->slots, r->count, fn, arg);
	for (struct handle_chunk *c = h->handle_chunks; c; c = c->next)
		for (size_t i = 0; i < HANDLES_PER_CHUNK; i++)
			fn(arg, &c->handles[i].ref);
	for (size_t i = h->finalizers_ready.first; i < h->finalizers_ready.count; i++) {
		ebbgc_ref_t object = { h->finalizers_ready.items[i].object };

		fn(arg, &object);
	}
}

void stacks_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg)
{
	if (h->options.stacks != EBBGC_CONSERVATIVE)
		return;
	for (struct mutator *m = h->mutators; m; m = m->next)
		stack_each(h, m, fn, arg);
}

void roots_destroy(struct ebbgc_heap *h)
{
	while (h->ranges) {
		struct root_range *r = h->ranges;

		h->ranges = r->next;
		free(r);
	}
	while (h->handle_chunks) {
		struct handle_chunk *c = h->handle_chunks;

		h->handle_chunks = c->next;
		free(c);
	}
}

/*
 * The world cannot stop while the calling thread runs, so what it changes under the lock never
 * changes in the middle of a scan.
 */
ebbgc_handle_t *ebbgc_handle_new(ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct ebbgc_handle *handle = NULL;

	if (forked(h))
		return NULL;
	pthread_mutex_lock(&h->lock);
	if (!h->handle_free) {
		struct handle_chunk *c = calloc(1, sizeof(*c));

		if (!c)
			goto out;
		for (size_t i = 0; i < HANDLES_PER_CHUNK; i++) {
			c->handles[i].next_free = h->handle_free;
			h->handle_free = &c->handles[i];
		}
		c->next = h->handle_chunks;
		h->handle_chunks = c;
	}
	handle = h->handle_free;
	h->handle_free = handle->next_free;
	handle->ref = ref;
out:
	pthread_mutex_unlock(&h->lock);
	return handle;
}

void ebbgc_handle_free(ebbgc_mutator_t *mutator, ebbgc_handle_t *handle)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (!handle || forked(h))
		return;
	pthread_mutex_lock(&h->lock);
	handle->ref = EBBGC_NULL;
	handle->next_free = h->handle_free;
	h->handle_free = handle;
	pthread_mutex_unlock(&h->lock);
}

ebbgc_ref_t ebbgc_handle_get(const ebbgc_handle_t *handle)
{
	return handle->ref;
}

void ebbgc_handle_set(ebbgc_handle_t *handle, ebbgc_ref_t ref)
{
	handle->ref = ref;
}

int ebbgc_roots_add(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots, size_t count)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_range *r;

	if (forked(h))
		return -ECHILD;
	r = malloc(sizeof(*r));
	if (!r)
		return -ENOMEM;
	pthread_mutex_lock(&h->lock);
	*r = (struct root_range){ h->ranges, slots, count };
	h->ranges = r;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

int ebbgc_roots_remove(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct root_range *found = NULL;

	if (forked(h))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	for (struct root_range **link = &h->ranges; *link; link = &(*link)->next) {
		if ((*link)->slots == slots) {
			found = *link;
			*link = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&h->lock);
	free(found);
	return found ? 0 : -ENOENT;
}
