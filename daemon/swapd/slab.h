/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The slab table: which donor holds which part of the device.  Pure functions
 * over plain structs; whoever talks to donors drives them.
 *
 *	UNMAPPED --map--> MAPPING --granted--> MAPPED
 *	   ^                 |                   |
 *	   +----refused------+                   | donor gone
 *	                     +--donor gone--> LOST --map--> MAPPING
 *
 * LOST differs from UNMAPPED for the reader of the status only.
 */
#ifndef EBB_SLAB_H
#define EBB_SLAB_H

#include <stdbool.h>
#include <stdint.h>

enum slab_state { SLAB_UNMAPPED, SLAB_MAPPING, SLAB_MAPPED, SLAB_LOST, SLAB_STATES };

struct slab {
	uint8_t state;        /* enum slab_state */
	uint16_t donor;       /* index; meaningful in MAPPING and MAPPED */
	uint32_t remote;      /* the donor's number of it */
	uint32_t generation;  /* the donor's, of this loan */
	uint8_t *memory;      /* the transport's, while MAPPED: where it has it in reach, or NULL */
	uint64_t since;       /* ns: MAPPING since; else not to be asked for before */
	int waiting_head, waiting_tail; /* requests that wait for MAPPING to end; -1 = none */
};

struct slab_table {
	struct slab *slabs; /* owned by the caller */
	uint32_t count;
	uint32_t pages;     /* in a slab */
};

/* Makes all @count slabs at @slabs UNMAPPED. */
void slab_init(struct slab_table *t, struct slab *slabs, uint32_t count, uint32_t pages);

static inline struct slab *slab_of_page(const struct slab_table *t, uint32_t page)
{
	return &t->slabs[page / t->pages];
}

/* Bytes into its slab at which @page begins. */
static inline uint32_t slab_offset(const struct slab_table *t, uint32_t page)
{
	return page % t->pages * 4096u;
}

/* Of @count pages from @page, how many lie in @page's slab. */
uint32_t slab_run(const struct slab_table *t, uint32_t page, uint32_t count);

/* Whether a write may ask a donor for @s at time @now. */
bool slab_may_map(const struct slab *s, uint64_t now);

/* The transitions; each asserts that it starts from a state that has it. */
void slab_ask(struct slab *s, uint16_t donor, uint64_t now);
void slab_grant(struct slab *s, uint32_t remote, uint32_t generation);
void slab_refuse(struct slab *s, uint64_t not_before);
void slab_lose(struct slab *s);

/* Slabs in @state; of @donor, unless that is -1. */
uint32_t slab_count(const struct slab_table *t, enum slab_state state, int donor);

#endif
