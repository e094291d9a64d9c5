/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Ways in which donors' memory reaches the machines of a mix, for lending.c.  A run is up to
 * STORE_RUN pages that are swapped out together and freed together.
 */
#ifndef EBB_SIM_STORE_H
#define EBB_SIM_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/page.h>
#include "mix.h"

#define STORE_RUN 512 /* pages: 2 MiB, also a cluster of the kernel's swap slots */
#define STORE_PAGES (MIX_LENT / EBB_PAGE)

struct store;

struct store_ops {
	/*
	 * Stores up to @pages pages, written by @cpu of @node.  Returns how many, and their place
	 * in *@at; 0 = none, as donors have no memory.  Slabs store pages on the disk then.
	 */
	uint32_t (*take)(struct store *s, uint32_t node, uint32_t cpu, uint32_t pages,
			 uint32_t *at);
	/* Frees what one take() has stored. */
	void (*put)(struct store *s, uint32_t node, uint32_t at, uint32_t pages);
	void (*second)(struct store *s, uint32_t now); /* or NULL */
	void (*free)(struct store *s);
};

struct store {
	const struct store_ops *ops;
	uint64_t lent, live;    /* pages of the units that machines hold; stored in them */
	uint64_t refused;       /* requests for a unit, or a swap slot, that found none, so far */
	uint64_t maps, unmaps;  /* units, so far */
};

/* Memory in bytes, without units: @shares = all of it is lent from the start. */
int store_bytes_new(struct store **out, bool shares);

struct store_slabs_config {
	uint64_t slab;     /* bytes, at least a cluster */
	uint64_t device;   /* bytes of each machine's swap device */
	uint32_t columns;  /* stride of the first pass over the clusters; STORE_COLUMNS, or 1 */
	bool pages;        /* donors lend pages; slabs play no part */
	uint64_t seed;     /* not 0 */
};

/*
 * Linux before 6.18 orders free clusters by column at swapon(2), so that successive ones are in
 * different address spaces of the swap cache: 2^14 pages, SWAP_CLUSTER_COLS in mm/swapfile.c.
 */
#define STORE_COLUMNS 32

/* Slabs of one swap device for each machine, placed by lib/rules/placement.c. */
int store_slabs_new(struct store **out, const struct store_slabs_config *config);

enum store_extents {
	STORE_ROUNDED, /* a run is one extent, rounded up to its class */
	STORE_SPLIT,   /* a run is extents of exact classes; smaller ones if a class is short */
	STORE_SINGLE,  /* 4 KiB extents alone */
};

/* Extents of 4 KiB to 2 MiB, by powers of two; a section of 2 MiB has extents of one class. */
int store_extents_new(struct store **out, enum store_extents kind, uint64_t seed);

void store_free(struct store **s);

#endif
