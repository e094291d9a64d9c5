// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <sys/mman.h>
#include "residency.h"

#define PAGE 4096u
#define BATCH 4096u		/* pages asked about at a time */

static int64_t mincore_resident(struct residency *r, const void *start, size_t bytes)
{
	unsigned char pages[BATCH];
	const char *p = start;
	int64_t resident = 0;

	while (bytes) {
		size_t part = bytes < (size_t)BATCH * PAGE ? bytes : (size_t)BATCH * PAGE;

		if (mincore((void *)p, part, pages))
			return -errno;
		for (size_t i = 0; i < part / PAGE; i++)
			resident += (pages[i] & 1) * PAGE;
		p += part;
		bytes -= part;
	}
	return resident;
}

const struct residency_provider residency_mincore = {
	.name = "mincore",
	.resident = mincore_resident,
};
