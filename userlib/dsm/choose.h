/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Which process executes a task, and which donor gets a new box.  Pure functions.
 */
#ifndef EBBDSM_CHOOSE_H
#define EBBDSM_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

/* Above that, a machine or donor is full: DRust's 90 % (chapter 5.3.2.2), in thousandths. */
#define CHOOSE_FULL 900u

#define CHOOSE_ANY UINT32_MAX

/* A process that executes tasks of the right build. */
struct choose_worker {
	uint32_t donor;       /* its home */
	uint32_t cpu, memory; /* of its machine, in use: thousandths */
	uint32_t tasks;       /* that wait or are executed there */
	bool has_room;        /* for one more that waits */
};

/*
 * Returns the index of the best of @n, or -1: none has room.  At donor @donor, unless that is
 * CHOOSE_ANY or all there are on full machines or without room: then elsewhere, where machines are
 * not full; else at the donor; else anywhere.  Of those, the one with the fewest tasks, then with
 * the most idle processor.
 */
int choose_worker(const struct choose_worker *w, uint32_t n, uint32_t donor);

struct choose_donor {
	uint64_t total, used; /* bytes; total 0 = the donor cannot be used */
};

/* Returns whether more than CHOOSE_FULL of it is in use. */
bool choose_is_full(const struct choose_donor *d);

/* Returns the index of the donor with the most free memory that is not in @tried (bits), or -1. */
int choose_donor(const struct choose_donor *d, uint32_t n, uint32_t tried);

#endif
