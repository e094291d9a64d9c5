/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* What a process knows of others and of tasks: desk.h. */
#ifndef EBBDSM_TASKS_H
#define EBBDSM_TASKS_H

#include "bell.h"
#include "choose.h"
#include "desk.h"
#include "ebbdsm.h"
#include "load.h"

struct dsm_peer {
	uint32_t donor, member;
	struct ebbfar_extent x; /* of its desk */
	_Alignas(8) uint8_t shown[DESK_SHOWN]; /* of struct desk */
};

/* Boxes that a joiner may accept while it is alive. */
struct dsm_kept {
	struct dsm_kept *next;
	uint32_t donor, member;
	struct ebbfar_extent x; /* of the joiner's desk */
	struct ebbdsm_box box[EBBDSM_TASK_BOXES];
};

struct dsm_tasks {
	void (*settle)(ebbdsm_t *dsm); /* what else ebbdsm_settle() does; NULL = nothing */
	pthread_mutex_t lock; /* of what follows; not held while a call waits, except to post */
	/* This process's desk. */
	struct ebbfar_extent x;
	struct desk_load written;
	struct load load;
	int64_t written_at, settled_at;
	uint64_t used[DESK_RECORDS / 64]; /* records, by bit */
	/* Of ebbdsm_register(). */
	const ebbdsm_function *table;
	uint32_t count, seats;
	char build[DESK_TEXT];
	bool registered;
	/* Of a worker. */
	uint64_t number[DESK_SEATS], ticket[DESK_SEATS]; /* of seats */
	uint64_t word[DESK_SEATS]; /* of seats when they were read last */
	uint64_t serving;          /* seats that threads work at, a bit each */
	uint64_t unread;           /* of these: what a read said of them was not taken */
	uint64_t read_rings;       /* bell_rings() before seats were read, + 1; 0 = never */
	uint32_t next, running;
	uint64_t executed;
	struct dsm_kept *kept;
	/* Others. */
	pthread_mutex_t look;      /* of the following; held while donors are waited for */
	struct dsm_peer *peer;
	uint32_t peers;
	int64_t looked_at, rooms_at, home_at; /* of .peer; .room; .home_full */
	bool home_full;
	struct choose_donor room[EBBDSM_DONORS];
};

/* Before all others, and after the links are closed. */
void desk_begin(ebbdsm_t *dsm);
void desk_close(ebbdsm_t *dsm);

/*
 * Makes this process's desk.  0, or -errno of memory or of the donor.  Without one, tasks.x.size is
 * 0: the donor is too old.
 */
int desk_open(ebbdsm_t *dsm);

/* Shows this process's load, at most once a second, if it has changed. */
void desk_update(ebbdsm_t *dsm);

/* Reads or writes part of this process's desk. */
int desk_read(ebbdsm_t *dsm, uint32_t offset, void *to, uint32_t size);
int desk_write(ebbdsm_t *dsm, uint32_t offset, const void *from, uint32_t size);
/* Swaps a word of a desk; returns 0 if it was @expect, -EAGAIN if not, or -errno. */
int desk_swap(ebbdsm_t *dsm, uint32_t donor, const struct ebbfar_extent *x, uint32_t offset,
	      uint64_t expect, uint64_t desired);
/* Returns 1 if the process with that desk is alive, 0, or -errno. */
int desk_lives(ebbdsm_t *dsm, uint32_t donor, uint32_t member, const struct ebbfar_extent *x);

/* Reads the desks of all processes, unless that was less than @age_ms ago.  With .look held. */
int desk_look(ebbdsm_t *dsm, int64_t age_ms);

static inline const struct desk *peer_desk(const struct dsm_peer *p)
{
	return (const struct desk *)(const void *)p->shown;
}

/* Rings a process, at its home donor; this one, too. */
void dsm_ring(ebbdsm_t *dsm, uint32_t donor, uint32_t member);

/* Returns the time of bell_now() in @timeout_ms, -1 = never. */
static inline int64_t task_until(int timeout_ms)
{
	return timeout_ms < 0 ? INT64_MAX : bell_now() + timeout_ms;
}

#endif
