// SPDX-License-Identifier: GPL-2.0-or-later
#include "table.h"

struct attachment *attachments_find(const struct attachments *a, uint64_t owner)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->item[i]->cgroup.id == owner)
			return a->item[i];
	return NULL;
}
