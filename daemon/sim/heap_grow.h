/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Arrays that grow.  Without memory the program ends: a simulation has nothing to save.
 */
#ifndef EBB_SIM_HEAP_GROW_H
#define EBB_SIM_HEAP_GROW_H

#include <stdint.h>

/*
 * Returns @array, of *@length elements of @size bytes, made at least @least long; new elements are
 * zero.
 */
void *heap_grow(void *array, uint32_t *length, uint32_t least, uint32_t size);
/* Returns @n zeroed elements of @size bytes; free() ends them. */
void *heap_zeroed(uint64_t n, uint32_t size);

/* Numbers in order: a stack, a queue's contents, a set's members. */
struct heap_list {
	uint32_t *at;
	uint32_t count, room;
};

void heap_list_add(struct heap_list *l, uint32_t number);
void heap_list_free(struct heap_list *l);

#endif
