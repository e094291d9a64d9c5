// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heap_grow.h"
#include "lib/base/error.h"

static void *enough(void *p)
{
	if (p)
		return p;
	fprintf(stderr, "ebb-sim: heap: out of memory; give a smaller recording\n");
	exit(EXIT_FAILED);
}

void *heap_grow(void *array, uint32_t *length, uint32_t least, uint32_t size)
{
	uint32_t more = *length ? *length : 64;

	if (least <= *length)
		return array;
	if (least > UINT32_MAX / 2)
		enough(NULL);
	while (more < least)
		more *= 2;
	array = enough(realloc(array, (size_t)more * size));
	memset((char *)array + (size_t)*length * size, 0, (size_t)(more - *length) * size);
	*length = more;
	return array;
}

void *heap_zeroed(uint64_t n, uint32_t size)
{
	return enough(calloc(n ? n : 1, size));
}

void heap_list_add(struct heap_list *l, uint32_t number)
{
	if (l->count == l->room)
		l->at = heap_grow(l->at, &l->room, l->count + 1, sizeof(*l->at));
	l->at[l->count++] = number;
}

void heap_list_free(struct heap_list *l)
{
	free(l->at);
	memset(l, 0, sizeof(*l));
}
