/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The slab table: which donors hold which part of the device.  Pure functions
 * over plain structs; slab_mapping.c, which talks to donors, drives them.
 *
 * A slab has copies, each at another donor:
 *
 *	NONE --ask--> MAPPING --grant--> MAPPED <--back-- AWAY
 *	  ^              |                 |  |            ^ |
 *	  +----refused---+                 |  +-donor away-+ |
 *	  +-------released, or donor lost--+-----------------+
 *
 * AWAY is what was MAPPED when the connection to its donor broke, or by a server that has died:
 * the donor has yet to confirm it.
 *
 * The page map (page_map.h) says which copies have a page's newest content; only MAPPED and
 * AWAY copies have pages there.  Every write goes to all MAPPED copies, so
 * a complete copy stays complete.
 */
#ifndef EBB_SLAB_H
#define EBB_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/page.h>
#include "lib/link/mapping.h"
#include "lib/rules/activity.h"
#include "page_map.h"

/*
 * While all donors of a slab are away, their copies keep their entries, and as many others take
 * writes.  One more: a migrating copy needs one at its new donor.
 */
#define REPLICAS_MAX 3
#define SLAB_COPIES PAGE_MAP_REPLICAS
_Static_assert(SLAB_COPIES > 2 * REPLICAS_MAX, "an entry for each of them");

enum copy_state { COPY_NONE, COPY_MAPPING, COPY_MAPPED, COPY_AWAY };

struct copy {
	uint8_t state;        /* enum copy_state */
	bool leaving;         /* recalled: released once its pages are elsewhere */
	bool partial;         /* may lack pages, which repair looks for */
	bool told_backed;     /* its donor was last told that the pages are in the backup, too */
	uint16_t donor;       /* index; meaningful unless NONE */
	uint32_t serial;      /* number of this use of the entry: identifies the copy */
	uint32_t repaired;    /* pages of the slab that repair has processed */
	struct mapping mapping; /* valid while MAPPED or AWAY */
	/* ns: start of MAPPING (UINT64_MAX: ask again), of leaving, or of asking while AWAY */
	uint64_t since;
};

/* State of a slab, for reports. */
enum slab_state { SLAB_UNMAPPED, SLAB_MAPPING, SLAB_MAPPED, SLAB_AWAY, SLAB_LOST, SLAB_STATES };

struct slab {
	struct copy copy[SLAB_COPIES];
	bool opening;         /* first copies are being requested: writes wait for all answers */
	bool lost;            /* its last copy was lost */
	uint8_t jobs;         /* repair's requests in flight */
	uint16_t target;      /* donor + 1 for the next copy; 0 = any */
	uint64_t open_until;  /* ns: until then a first copy that is refused is asked elsewhere */
	uint64_t not_before;  /* ns: no donor is asked earlier */
	uint64_t rewrite_at;  /* ns: earliest retry of pages that the backup failed to store */
	uint64_t idle_since;  /* ns: time since it has copies but no live page; 0 = not so */
	struct activity activity;
	int waiting_head, waiting_tail; /* requests that wait for the end of MAPPING; -1 = none */
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

/* Returns the offset of @page in its slab, bytes. */
static inline uint32_t slab_offset(const struct slab_table *t, uint32_t page)
{
	return page % t->pages * EBB_PAGE;
}

/* Returns how many of @count pages from @page on lie in @page's slab. */
uint32_t slab_run(const struct slab_table *t, uint32_t page, uint32_t count);

/* Return masks of the copies of @s that are MAPPED, and AWAY. */
uint8_t slab_mapped(const struct slab *s);
uint8_t slab_away(const struct slab *s);

int slab_copies(const struct slab *s, enum copy_state state);

/* Returns the copy of @s at @donor in any state, or -1. */
int slab_copy_at(const struct slab *s, uint16_t donor);

enum slab_state slab_state(const struct slab *s);
const char *slab_state_text(enum slab_state state);

/*
 * The transitions; each asserts that it starts from a state that has it.
 * slab_ask() takes the first entry that is NONE and returns it, -1 when there is
 * none.  The others leave the entry free.
 */
int slab_ask(struct slab *s, uint16_t donor, uint64_t now);
void slab_grant(struct slab *s, int copy, uint32_t remote, uint32_t generation, bool partial);
void slab_refuse(struct slab *s, int copy);
void slab_drop(struct slab *s, int copy);
void slab_lose(struct slab *s, int copy);

/* The connection to the donor of a MAPPED copy has ended; the caller has undone the mapping. */
void slab_part(struct slab *s, int copy);
/*
 * Sets the slab to what its server's death left: copies are NONE or AWAY.  May be repeated, also
 * after a death within it.
 */
void slab_orphan(struct slab *s);
/*
 * The donor of an AWAY copy has confirmed it.  It may lack pages, and the others may lack those
 * that only it had: repair searches all of them again.
 */
void slab_back(struct slab *s, int copy);

uint32_t slab_count(const struct slab_table *t, enum slab_state state);

#endif
