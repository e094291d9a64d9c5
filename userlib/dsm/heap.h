/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * This process's places, at its home donor and at others.  What is known of them is in this process
 * alone: when it dies, the donor frees their extents.
 *
 * A block is an extent: slots of one size, or one place of its own.  It counts up the numbers of
 * all its stamps and tickets.  A block with few numbers left gets no new objects, and is freed when
 * it is empty.
 *
 * With replicas, each block has a twin at another donor: an extent of its size, with its places at
 * the same offsets.  When the block's donor is lost, its places stay, and it has a second twin.
 */
#ifndef EBBDSM_HEAP_H
#define EBBDSM_HEAP_H

#include "twin.h"

enum slot_state {
	SLOT_UNUSED,
	SLOT_OWNED,   /* a box */
	SLOT_BORROWED, /* mutably, in this process */
	SLOT_OFFERED, /* to another process, which may own it by now */
	SLOT_LENT,
	SLOT_GUEST,   /* another's object, for a loan */
	SLOT_RETURNED, /* ... returned, but perhaps not taken yet */
	SLOT_WORKING, /* a call works at it */
	SLOT_CELL,    /* of cell.h */
	SLOT_SHARED,  /* the value of a shared object (arc.c): no process changes it */
};

/* Of an object, or of its absence. */
struct slot {
	uint64_t stamp;  /* of the value */
	uint64_t ticket; /* OFFERED, LENT, RETURNED; BORROWED: the next stamp; CELL: its kind */
	uint32_t size;   /* of the content; UNUSED: the next free slot */
	uint32_t borrows : 24, state : 8;
};

/* Where twins of a block can be: of one whose donor is lost, two. */
#define HEAP_TWINS 2u

struct heap_twin {
	struct link *link; /* NULL = none */
	struct ebbfar_extent x;
	bool is_old;       /* a write has failed: it is freed after other writes */
};

struct block {
	struct link *link;       /* its donor */
	struct heap_twin twin[HEAP_TWINS];
	bool is_bare;            /* it has fewer copies than it should */
	bool is_mended;          /* heap_mend() works at it: the next writers wait for that */
	uint32_t writers;        /* calls that write to its places and twins */
	int64_t mend_at, pause;  /* ms: heap_mend() leaves it until then; after failures */
	struct block *bare_next, *bare_prev;
	struct ebbfar_extent x;
	uint8_t *memory; /* NULL = not mapped */
	struct block *chain, *next, *prev;
	uint64_t first;  /* name of the first slot's place, if its object is the smallest */
	uint32_t place, unit_shift; /* bytes of a slot; of name_unit() */
	uint32_t kind, slots, used, numbers;
	uint32_t free;   /* first free slot + 1, 0 = none */
	bool listed;     /* among those with free slots */
	struct slot slot[];
};

/* The places at one donor. */
struct heap_part {
	struct block **table; /* by place */
	uint32_t size, blocks;
	uint64_t places, bytes; /* bytes: of extents, twins too */
	struct block *listed[NAME_KINDS];
};

struct heap {
	struct link *home, *link; /* link: of donor 0, others follow */
	uint64_t places;
	struct heap_part part[NAME_DONORS];
	/* Of twins; replicas 0 = none. */
	uint32_t replicas, lost; /* lost: donors that heap_mend() has found lost, a bit each */
	uint64_t bare, bares;    /* bytes and number of blocks that are bare */
	struct block *bare_first, *bare_last;
	bool is_mending;
	struct {
		size_t size;     /* an extent as large that the donor had no memory for */
		int64_t until;   /* ms: it is not asked for one until then */
	} full[NAME_DONORS];
	struct twin_list list[NAME_DONORS];
	struct twin_told told;   /* with the lock of the heap, which calls hold */
};

void heap_end(struct heap *h);

/*
 * Makes a place at donor @donor for @size bytes of content, SLOT_WORKING, and sets *@at and *@slot,
 * which is valid until heap_free().  With replicas, gives the lock up while it makes a twin.
 * -ENOSPC, -ENOMEM, -EIO.
 */
int heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);

/* Returns whether a place for @size bytes needs no new extent. */
bool heap_has_place(const struct heap *h, uint32_t donor, size_t size);

/* Returns the slot of place @at, or NULL if no object of this process is there. */
struct slot *heap_find(struct heap *h, uint64_t at);

/* Returns the memory of the place if it is mapped, else NULL. */
struct content *heap_memory(struct heap *h, uint64_t at);

/* Returns a stamp that the place has never had, or 0: its block has no numbers left. */
uint64_t heap_stamp(struct heap *h, uint64_t at);

/* Returns whether the block has fewer numbers left than one borrow of each kind takes. */
bool heap_is_worn(struct heap *h, uint64_t at);

/* --- twins: --- */

/*
 * Returns whether the donor of the place is lost, and its content can be had without it.  Without
 * replicas, never.
 */
bool heap_is_cut(struct heap *h, uint64_t at);

/*
 * Before and after the content of the WORKING place is written, at its donor or at twins: a call
 * that copies the block waits for the end, and the beginning for it, with the lock given up.
 */
void heap_begin_write(struct heap *h, uint64_t at);
void heap_end_write(struct heap *h, uint64_t at);

/* Sets @twin to those of the place, for a write that has begun; returns how many there are. */
uint32_t heap_twins(struct heap *h, uint64_t at, struct heap_twin twin[HEAP_TWINS]);

/* A write to that twin of the place, which has begun, has failed: the block has it no more. */
void heap_lose_twin(struct heap *h, uint64_t at, const struct heap_twin *twin);

/*
 * Makes twins for some blocks that lack one, of their objects as they are.  Gives the lock up while
 * it waits for donors, and for writes that have begun.
 */
void heap_mend(struct heap *h);

/* The object's life has ended: zeroes its header, and frees the place. */
void heap_free(struct heap *h, uint64_t at);

#endif
