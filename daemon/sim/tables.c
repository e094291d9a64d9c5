// SPDX-License-Identifier: GPL-2.0-or-later
#include "donord/pool/eviction.h"
#include "donord/pool/pool.h"
#include "swapd/page/slab.h"
#include "tables.h"

uint64_t tables_borrower(uint64_t device, uint64_t slab)
{
	uint64_t slabs = device / slab;

	/* The page map has a number of live pages and a bit for each: page_map_size(). */
	return slabs * (sizeof(struct slab) + sizeof(uint32_t)) +
	       (slabs + 63) / 64 * sizeof(uint64_t);
}

uint64_t tables_donor(uint64_t memory, uint64_t slab)
{
	return memory / slab *
	       (sizeof(struct lend_slab) + sizeof(*((struct eviction *)0)->eligible));
}
