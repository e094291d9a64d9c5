// SPDX-License-Identifier: GPL-2.0-or-later
#include <sys/mman.h>

#include "shared.h"

void *shared_new(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void shared_free(void *p, size_t size)
{
	if (p)
		munmap(p, size);
}
