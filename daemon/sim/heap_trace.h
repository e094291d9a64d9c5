/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A recorded heap: what tests/gc/record.h writes, and tests/bench/heap_replay.c and `ebb-sim heap`
 * read.  A file is a head, padded to HEAP_TRACE_HEAD bytes, then one word of 64 bits per event:
 *
 *	bits 0..2	kind
 *	bit 3		HEAP_READ, HEAP_WRITE: HEAP_VIA; HEAP_MARK: HEAP_REFERENCE
 *	bits 3..25	HEAP_BORN: bytes of the object / 8
 *	bits 4..31	object, by number; HEAP_DROP: pages; HEAP_MARK: what
 *	bits 32..63	place / 8, from the head's `low` on
 *
 * Objects are numbered in the order in which they are born.  An object begins with its header, a
 * word; its size includes that.  Numbers are of the machine's byte order.
 *
 * With HEAP_REFERENCES=1, a recording also has references, as pairs of HEAP_MARK | HEAP_REFERENCE:
 * object and place of the slot, then the object that the slot refers to and an enum heap_access in
 * place of a place.  After the deaths that a collection has found come HEAP_COLLECTED and the
 * roots, as pairs of which the first word is 0 but for its kind.
 */
#ifndef EBB_SIM_HEAP_TRACE_H
#define EBB_SIM_HEAP_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "ebb/page.h"

#define HEAP_TRACE_MAGIC UINT64_C(0x3170616568626265)	/* "ebbheap1" */
#define HEAP_TRACE_HEAD 4096u
#define HEAP_OBJECTS_MOST (UINT32_C(1) << 28)
#define HEAP_SIZE_MOST (((UINT64_C(1) << 23) - 1) * 8)
/* Larger objects are traced by the word that is touched, others whole. */
#define HEAP_SMALL_MOST 2048u
#define HEAP_PAGE EBB_PAGE

struct heap_trace_head {
	uint64_t magic, events, objects;
	uint64_t low, bytes;		/* first place, a multiple of 64 KiB; extent */
	/* Most bytes of objects, and most pages with objects, at a time; bytes of all objects. */
	uint64_t peak_bytes, peak_pages, born_bytes;
};

enum heap_kind {
	HEAP_BORN,
	HEAP_READ,		/* of a small object; the place is its begin */
	HEAP_WRITE,
	HEAP_READ_LARGE,	/* of the word at this place */
	HEAP_WRITE_LARGE,
	HEAP_DIED,
	HEAP_DROP,		/* pages from this place on hold no object any more */
	HEAP_MARK,
};

/* What a HEAP_MARK says: everything is built; all that is dead has been reported. */
enum { HEAP_BUILT = 1, HEAP_COLLECTED };

/* What happens to a slot; HEAP_CLEARED has no object. */
enum heap_access { HEAP_CLEARED, HEAP_STORED, HEAP_LOADED, HEAP_ROOT };

/* The reference to this object was just loaded from the object that was touched before. */
#define HEAP_VIA UINT64_C(8)
/* Half of a pair. */
#define HEAP_REFERENCE UINT64_C(8)

static inline uint64_t heap_event(enum heap_kind kind, uint64_t number, uint64_t place)
{
	return (uint64_t)kind | number << 4 | place / 8 << 32;
}

static inline uint64_t heap_born(uint64_t size, uint64_t place)
{
	return HEAP_BORN | size / 8 << 3 | place / 8 << 32;
}

static inline enum heap_kind heap_kind(uint64_t event)
{
	return (enum heap_kind)(event & 7);
}

static inline uint64_t heap_size(uint64_t event)
{
	return (event >> 3 & ((UINT64_C(1) << 23) - 1)) * 8;
}

static inline uint32_t heap_number(uint64_t event)
{
	return (uint32_t)(event >> 4) & (HEAP_OBJECTS_MOST - 1);
}

static inline uint64_t heap_place(uint64_t event)
{
	return (event >> 32) * 8;
}

static inline bool heap_is_large(uint64_t size)
{
	return size > HEAP_SMALL_MOST;
}

#endif
