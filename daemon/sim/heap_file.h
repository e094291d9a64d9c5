/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A recorded heap (heap_trace.h) in memory, checked: users may trust its numbers and places. */
#ifndef EBB_SIM_HEAP_FILE_H
#define EBB_SIM_HEAP_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "heap_trace.h"
#include "lib/base/error.h"

#define HEAP_LIVE_MOST (UINT64_C(16) << 30) /* bytes */

struct heap_file {
	struct heap_trace_head head;
	void *map;
	size_t map_bytes;
	const uint64_t *event;  /* @events of them */
	size_t events;
	uint32_t objects;
	uint32_t *size;         /* of each object, bytes, a multiple of 8 */
	uint32_t *died;         /* event that reports its death, or UINT32_MAX */
	uint64_t *place;        /* in the recording */
	uint64_t live;          /* bytes of objects that are alive at the end */
	uint32_t collections, references;
};

/*
 * Returns 0, or -errno with the reason in @e: not a recording, cut short, without references, with
 * an event that cannot be, or with more than HEAP_LIVE_MOST alive.  Call heap_file_close() in any
 * case.
 */
int heap_file_open(struct heap_file *f, const char *path, struct error *e);
void heap_file_close(struct heap_file *f);

/* The halves of a pair of HEAP_REFERENCE. */
struct heap_pair {
	enum heap_access access;
	uint32_t owner, slot; /* slot: word of the object */
	uint32_t target;
};

/* Event @i is the first half. */
static inline struct heap_pair heap_file_pair(const struct heap_file *f, size_t i)
{
	uint64_t first = f->event[i], second = f->event[i + 1];
	struct heap_pair p = {
		.access = (enum heap_access)(heap_place(second) / 8),
		.owner = heap_number(first),
		.target = heap_number(second),
	};

	if (p.access != HEAP_ROOT)
		p.slot = (uint32_t)((heap_place(first) - f->place[p.owner]) / 8);
	return p;
}

#endif
