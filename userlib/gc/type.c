// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "forward.h"
#include "os.h"
#include "type.h"
#include "versions.h"

static bool in_length(const struct ebbgc_layout *l, uint64_t offset)
{
	return l->length_width && offset < (uint64_t)l->length_offset + l->length_width &&
	       offset + 8 > l->length_offset;
}

/* Is the word one that holds no reference: of the length field, or the collector's in a fibre? */
static bool is_taken(const struct ebbgc_layout *l, uint64_t offset)
{
	return in_length(l, offset) || ((l->flags & EBBGC_FIBRE) && offset == l->fibre_offset);
}

static bool run_is_valid(const struct ebbgc_layout *l, const struct ebbgc_run *run)
{
	if (run->offset % 8 || run->stride % 8 || !run->stride)
		return false;
	if (run->count == EBBGC_COUNT_LENGTH)
		/* Every element's slot must lie within the element: check the first. */
		return l->length_width && run->stride == l->element_size &&
		       run->offset >= l->size &&
		       (uint64_t)run->offset + 8 <= l->size + l->element_size;
	for (uint32_t i = 0; i < run->count; i++) {
		uint64_t offset = run->offset + (uint64_t)i * run->stride;

		if (offset + 8 > l->size || is_taken(l, offset))
			return false;
	}
	return true;
}

static bool slots_are_valid(const struct ebbgc_layout *l, const struct ebbgc_slots *s)
{
	struct ebbgc_run run = { s->offset, s->count, s->stride };
	bool in_byte = s->kind == EBBGC_SLOT_VALUE_AND_TAG, in_word = s->kind == EBBGC_SLOT_TAGGED;
	int64_t first = (int64_t)s->offset + s->tag_offset, begin = 0, end = (int64_t)l->size;

	if (!s->count || !run_is_valid(l, &run))
		return false;
	if (s->kind == EBBGC_SLOT_AMBIGUOUS)
		return !s->mask && !s->value && !s->subtract && !s->tag_offset;
	if ((s->value & s->mask) != s->value || (!in_byte && !in_word))
		return false;
	if (in_word)
		return !s->tag_offset;
	if (s->tag_offset < INT32_MIN || s->tag_offset > INT32_MAX)
		return false;
	if (s->count == EBBGC_COUNT_LENGTH) {
		begin = end;
		end += (int64_t)l->element_size;
	} else {
		end -= (int64_t)(s->count - 1) * s->stride;
	}
	/* The tag must lie in the object, or in the element, and beside the word. */
	return s->mask <= UINT8_MAX && first >= begin && first < end &&
	       (s->tag_offset < 0 || s->tag_offset >= 8);
}

static bool layout_is_valid(const struct ebbgc_layout *l)
{
	bool references = l->bitmap || l->run_count || l->trace || l->slot_count || l->edges;

	if (!l->size || l->size > UINT32_MAX ||
	    (l->flags & ~(uint32_t)(EBBGC_LEAF | EBBGC_WEAK | EBBGC_FIBRE | EBBGC_MOVABLE |
				    EBBGC_ALL_STORES)))
		return false;
	/* Their references may lie elsewhere, or are read by plain loads. */
	if ((l->flags & EBBGC_MOVABLE) &&
	    ((l->flags & (EBBGC_WEAK | EBBGC_FIBRE)) || l->trace || l->slot_count || l->edges))
		return false;
	if (((l->flags & EBBGC_LEAF) != 0) == references || (l->run_count && !l->runs))
		return false;
	if ((l->flags & EBBGC_WEAK) && (l->slot_count || l->edges))
		return false;
	if (l->flags & EBBGC_FIBRE ? !l->edges || l->fibre_offset % 8 || l->size < 8 ||
				     l->fibre_offset > l->size - 8 ||
				     in_length(l, l->fibre_offset) :
				     l->fibre_offset)
		return false;
	if (l->length_width) {
		if ((l->length_width != 4 && l->length_width != 8) || !l->element_size ||
		    l->length_offset % l->length_width ||
		    (uint64_t)l->length_offset + l->length_width > l->size)
			return false;
	} else if (l->element_size) {
		return false;
	}
	for (uint64_t bits = l->bitmap; bits; bits &= bits - 1) {
		uint64_t offset = 8 * (uint64_t)__builtin_ctzll(bits);

		if (offset + 8 > l->size || is_taken(l, offset))
			return false;
	}
	for (size_t i = 0; i < l->run_count; i++)
		if (!run_is_valid(l, &l->runs[i]))
			return false;
	if (l->slot_count && (!l->slots || l->slot_size != sizeof(*l->slots)))
		return false;
	for (size_t i = 0; i < l->slot_count; i++)
		if (!slots_are_valid(l, &l->slots[i]))
			return false;
	return true;
}

static int type_fill(struct ebbgc_heap *h, struct type *t, const struct ebbgc_layout *l)
{
	size_t total = l->size + HEADER;

	*t = (struct type){
		.name = strdup(l->name ? l->name : "unnamed"), .flags = l->flags, .kind = KIND_FREE,
		.size = l->size, .element_size = l->element_size,
		.length_offset = l->length_offset, .length_width = l->length_width,
		.bitmap = l->bitmap, .run_count = l->run_count, .trace = l->trace,
		.slot_count = l->slot_count, .edges = l->edges, .fibre_offset = l->fibre_offset,
	};
	if (l->run_count)
		t->runs = malloc(l->run_count * sizeof(*l->runs));
	if (l->slot_count)
		t->slots = malloc(l->slot_count * sizeof(*l->slots));
	if (!t->name || (l->run_count && !t->runs) || (l->slot_count && !t->slots)) {
		free(t->name);
		free(t->runs);
		free(t->slots);
		*t = (struct type){ 0 };
		return -ENOMEM;
	}
	if (l->run_count)
		memcpy(t->runs, l->runs, l->run_count * sizeof(*l->runs));
	if (l->slot_count)
		memcpy(t->slots, l->slots, l->slot_count * sizeof(*l->slots));
	t->kinds = (l->flags & EBBGC_LEAF ? 1 : 0) + (l->flags & EBBGC_MOVABLE ? KIND_MOVABLE : 0);
	if (!l->length_width && total <= SMALL_MAX)
		t->kind = 2 * h->class_of[(total + GRANULE - 1) / GRANULE] + t->kinds;
	return 0;
}

/* Lock held: may the heap have types of this layout beside those that it has? */
static int type_fits(struct ebbgc_heap *h, const struct ebbgc_layout *l)
{
	bool plain = l->slot_count || l->edges, movable = l->flags & EBBGC_MOVABLE;

	/* Otherwise the program may store over null without ebbgc_overwrite(). */
	if (plain && h->nursery.old && !(l->flags & EBBGC_ALL_STORES))
		return -ENOTSUP;
	/* Plain loads do not notice that an object has moved. */
	if ((plain && h->moving.states) || (movable && h->moving.plain))
		return -ENOTSUP;
	if (h->type_count == TYPES_MAX)
		return -ENOSPC;
	h->moving.plain |= plain;
	return movable ? forwards_create(h) : 0;
}

int ebbgc_type_register_size(ebbgc_heap_t *h, const struct ebbgc_layout *layout, size_t layout_size,
			     ebbgc_type_t *type)
{
	struct ebbgc_layout known = { 0 };
	int r = versioned_copy(&known, sizeof(known), layout, layout_size, LAYOUT_LEAST);

	if (r)
		return r;
	if (!layout_is_valid(&known))
		return -EINVAL;
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	r = type_fits(h, &known);
	if (!r)
		r = type_fill(h, &h->types[h->type_count], &known);
	if (!r) {
		*type = h->type_count;
		__atomic_store_n(&h->type_count, h->type_count + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

int types_create(struct ebbgc_heap *h)
{
	static const struct ebbgc_layout weak_ref = {
		.name = "weak reference", .flags = EBBGC_WEAK, .size = 8, .bitmap = 1,
	};
	static const struct ebbgc_layout ephemeron = {
		.name = "ephemeron", .size = 16, .bitmap = 3,
	};
	ebbgc_type_t id;
	int r;

	h->types = os_map(TYPES_MAX * sizeof(*h->types));
	if (!h->types)
		return -ENOMEM;
	h->type_count = TYPE_WEAK_REF;
	r = ebbgc_type_register(h, &weak_ref, &id);
	return r ? r : ebbgc_type_register(h, &ephemeron, &id);
}

void types_destroy(struct ebbgc_heap *h)
{
	if (!h->types)
		return;
	for (uint32_t i = 0; i < h->type_count; i++) {
		free(h->types[i].name);
		free(h->types[i].runs);
		free(h->types[i].slots);
	}
	munmap(h->types, TYPES_MAX * sizeof(*h->types));
	h->types = NULL;
}

ebbgc_type_t ebbgc_type_of(ebbgc_ref_t object)
{
	return type_id(object.bits & EBBGC_ADDRESS_MASK);
}

size_t ebbgc_size_of(ebbgc_mutator_t *mutator, ebbgc_ref_t object)
{
	const struct type *t = &mutator_of(mutator)->heap->types[ebbgc_type_of(object)];

	return t->size + type_length(t, ebbgc_ptr(object)) * t->element_size;
}
