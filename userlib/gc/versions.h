/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Structs that programs built with another version of ebbgc.h pass to this library. */
#ifndef EBBGC_VERSIONS_H
#define EBBGC_VERSIONS_H

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include "ebbgc.h"

/* Size of the members that every version has. */
#define OPTIONS_LEAST offsetof(struct ebbgc_options, features)
#define LAYOUT_LEAST offsetof(struct ebbgc_layout, trace)
#define STORE_LEAST offsetof(struct ebbgc_far_store, jobs)

/* Bytes of the structs in 0.1.0, whose functions take no size. */
#define OPTIONS_0_1_0 152u
#define LAYOUT_0_1_0 72u

/*
 * Copies @from_size bytes over the first of @size bytes.  -EINVAL if @from_size < @least, -E2BIG if
 * a byte beyond @size is not zero.
 */
static inline int versioned_copy(void *to, size_t size, const void *from, size_t from_size,
				 size_t least)
{
	const char *bytes = from;

	if (from_size < least)
		return -EINVAL;
	for (size_t i = size; i < from_size; i++)
		if (bytes[i])
			return -E2BIG;
	memcpy(to, from, from_size < size ? from_size : size);
	return 0;
}

#endif
