/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A desk: an extent of each process at its home donor, by which others find it, see its load and
 * post tasks.  The word that the process publishes (ebbfar_publish()) is the desk's place and
 * DESK_VERSION.  ebbctl reads desks, too.  Words are little-endian.
 *
 * A seat is a word for a task that waits.  Its owner offers it with a ticket; a spawner swaps the
 * ticket for the name of a record on its own desk, which has the names of the ticket and of the
 * task; the owner fetches the task and offers the seat with a new ticket.  A ticket has the lowest
 * bits of the desk's generation: before 2^30 allocations of its place, no memory there has the same
 * word again.
 */
#ifndef EBBDSM_DESK_H
#define EBBDSM_DESK_H

#include <stdbool.h>
#include <stdint.h>

#define DESK_VERSION 1u
#define DESK_MAGIC 0x316b736564626265ull /* "ebbdesk1" */
#define DESK_BYTES 8192u
#define DESK_DONORS 8u
#define DESK_SEATS 64u
#define DESK_RECORDS 128u
#define DESK_TEXT 64u

/* What the process changes; words. */
struct desk_load {
	uint32_t cpu, memory;     /* of its machine, in use: thousandths */
	uint32_t running, unused; /* tasks that are executed now */
	uint64_t executed;        /* tasks, since it began */
	uint64_t boxes[DESK_DONORS], bytes[DESK_DONORS]; /* its own, by donor; bytes of extents */
	uint64_t bare, at_twins, lost; /* of struct ebbdsm_counts */
};

struct desk_record {
	uint64_t ticket;     /* of the seat; 0 = unused */
	uint64_t generation; /* of the desk of the record */
	uint64_t at, stamp;  /* of the loan of the task */
};

struct desk {
	uint64_t magic, generation; /* of the desk's extent */
	uint64_t check;             /* desk_check() */
	uint32_t donors, home;      /* how many the space has; index of this one */
	uint64_t pid;
	uint32_t seats, unused;     /* in use; 0 = it executes no tasks */
	char host[DESK_TEXT], build[DESK_TEXT]; /* build "" = no tasks */
	struct desk_load load;
	uint64_t twins;             /* place of the list of twins at this donor (twin.h), or 0 */
	uint64_t padding[83];
	uint64_t seat[DESK_SEATS];
	uint64_t padding2[320];
	struct desk_record record[DESK_RECORDS];
};

_Static_assert(sizeof(struct desk) == DESK_BYTES, "a desk");

/* Bytes of a desk that others read. */
#define DESK_SHOWN ((uint32_t)(__builtin_offsetof(struct desk, seat) + 8 * DESK_SEATS))

static inline uint64_t desk_check(uint64_t place, uint64_t generation)
{
	uint64_t x = (place ^ DESK_MAGIC) * 0x9e3779b97f4a7c15ull + generation;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return (x ^ x >> 29) | 1;
}

/* Returns the place of the desk that is published as @word, or 0: it is none of this version. */
static inline uint64_t desk_place(uint64_t word)
{
	return word % DESK_BYTES == DESK_VERSION ? word - DESK_VERSION : 0;
}

/* Returns whether what was read at @place is a desk, with texts that end. */
static inline bool desk_is_valid(const struct desk *d, uint64_t place)
{
	return d->magic == DESK_MAGIC && d->check == desk_check(place, d->generation) &&
	       d->donors <= DESK_DONORS && d->home < d->donors && d->seats <= DESK_SEATS &&
	       !d->host[DESK_TEXT - 1] && !d->build[DESK_TEXT - 1];
}

/* --- seats ------------------------------------------------------------------------ */

/* A seat word: a ticket or the name of a record and, in its lowest bits, a state. */
enum { SEAT_CLOSED, SEAT_FREE = 1, SEAT_TAKEN = 2, SEAT_BITS = 15 };

/* Of a ticket: generation, its lowest bits, 30 | number 30 | 0000. */
#define SEAT_NUMBERS (1ull << 30)

static inline uint64_t seat_ticket(uint64_t generation, uint64_t number)
{
	return generation << 34 | number << 4;
}

/* The name of a record: donor 3 | member - 1 8 | place / 32 39 | 0000. */
static inline uint64_t seat_record(uint32_t donor, uint32_t member, uint64_t place, uint32_t i)
{
	uint64_t offset = (place & 0xffffffff) + __builtin_offsetof(struct desk, record) +
			  i * sizeof(struct desk_record);
	uint64_t record = (place >> 32) << 27 | offset / sizeof(struct desk_record);

	return (uint64_t)donor << 51 | (uint64_t)(member - 1) << 43 | record << 4;
}

/* Where a record is. */
struct seat_record {
	uint32_t donor, member;
	uint64_t desk; /* place */
	uint32_t offset;
};

static inline struct seat_record seat_parse(uint64_t word)
{
	uint64_t place = word >> 4 & ((1ull << 39) - 1);
	uint64_t offset = (place & ((1u << 27) - 1)) * sizeof(struct desk_record);

	return (struct seat_record){
		.donor = (uint32_t)(word >> 51 & 7), .member = (uint32_t)(word >> 43 & 255) + 1,
		.desk = (place >> 27) << 32 | (offset & ~(uint64_t)(DESK_BYTES - 1)),
		.offset = (uint32_t)(offset & (DESK_BYTES - 1)),
	};
}

#endif
