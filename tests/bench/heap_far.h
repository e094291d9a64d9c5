/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A far store: objects in regions of 64 KiB, of which as many are in local memory as a budget
 * allows; the others lie packed in extents of a donor.  A model of libebbgc's planned far
 * generation without its collector: the caller says what dies.
 *
 * The oldest region by arrival leaves: for a while (a quarter of the budget) it stays readable, and
 * a touch of an object there copies it out (rescue).  What remains is written to the donor, and the
 * memory is returned to the kernel.  A touch of a far object reads it alone (fetch); its new
 * address is its forward.  A region comes home whole, to its own addresses, if neighbours are
 * fetched in order or if several of its objects are among the last fetches.  Objects larger than a
 * region's slots have regions of their own, which leave and come home whole.
 *
 * Budget: regions in local memory, and the store's tables.  Dead objects' memory is reused when
 * their region leaves or has no object any more, and not before.
 *
 * One thread.  All functions end the program with a message when the donor or memory fails.
 */
#ifndef EBB_HEAP_FAR_H
#define EBB_HEAP_FAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEAP_REGION 65536u
#define HEAP_SLOT_MOST 8192u

/* Where extents are.  All return 0 or a negative errno; @place is the donor's to choose. */
struct heap_donor {
	void *arg;
	int (*put)(void *arg, const void *bytes, size_t size, void *place);
	int (*get)(void *arg, const void *place, size_t offset, void *to, size_t size);
	int (*drop)(void *arg, const void *place);
};

#define HEAP_PLACE 24		/* bytes of a place, 8-byte aligned */

struct heap_far_options {
	struct heap_donor donor;
	uint64_t budget;	/* bytes */
	/*
	 * A region comes home whole at the `few`th fetch of its objects, if these were among at
	 * most `home` fetches of all regions; 0: never for that reason.
	 */
	uint32_t few;
	uint64_t home;
	bool neighbours;	/* ... also if two neighbours are fetched in order */
	/* References are current after their first use; else all keep an object's first address. */
	bool heal;
	uint64_t delay_ns;	/* added to each read of the donor, by spinning */
};

/* An object, as references name it. */
struct heap_name {
	uint32_t born, now;	/* address / 16 in the store; 0: none */
};

struct heap_far_stats {
	uint64_t fetches, fetched_bytes;	/* single objects */
	uint64_t homes, home_bytes;		/* whole regions */
	uint64_t rescues;
	uint64_t left, left_bytes;		/* regions and bytes written to the donor */
	uint64_t left_empty;			/* regions whose memory needed no write */
	uint64_t slow;				/* touches that were not of a local region */
	uint64_t forwards, forwards_most;
	uint64_t bytes, bytes_most;		/* of the budget in use */
	uint64_t tables_most;			/* of these, tables */
	uint64_t far, far_most;			/* bytes at the donor, packed */
};

struct heap_far;

/* NULL: no address space, or the budget is less than 32 regions. */
struct heap_far *heap_far_new(const struct heap_far_options *options);
void heap_far_free(struct heap_far *f);

/* Makes an object of @size bytes, at least 16, zeroed; returns its address until the next call. */
void *heap_far_born(struct heap_far *f, size_t size, struct heap_name *name);

/*
 * Returns the address of the object's byte @offset, which is below HEAP_SLOT_MOST unless the object
 * is larger than that.  Good until the next call, as far as its region of 64 KiB reaches.
 */
void *heap_far_touch(struct heap_far *f, struct heap_name *name, size_t offset);

void heap_far_died(struct heap_far *f, struct heap_name *name);

/* Moves everything that is local but the regions that are being filled to the donor. */
void heap_far_leave_all(struct heap_far *f);

const struct heap_far_stats *heap_far_stats(const struct heap_far *f);

/* --- donors ------------------------------------------------------------------------------- */

/* In this process's memory, for tests. */
void heap_donor_memory(struct heap_donor *donor);

#endif
