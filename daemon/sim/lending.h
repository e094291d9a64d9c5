/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How well donors' memory is used by the programs of a mix (mix.h), which start, page and exit,
 * second by second, for different units of lending (store.h).
 *
 * Programs page as much as their slow-down in FineMem's measurements explains, at .miss for each
 * page in and out: that frees swapped-out pages in random order and stores others.
 */
#ifndef EBB_SIM_LENDING_H
#define EBB_SIM_LENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "store.h"

enum lending_unit {
	LENDING_SHARES,  /* a fixed share for each machine, mapped from the start */
	LENDING_BYTES,   /* any byte to any machine: the upper bound */
	LENDING_SLABS,
	LENDING_DISCARD, /* pages, freed when the kernel discards their cluster */
	LENDING_ROUNDED, /* enum store_extents */
	LENDING_SPLIT,
	LENDING_SINGLE,
};

struct lending_config {
	enum lending_unit unit;
	uint64_t slab;    /* bytes, of LENDING_SLABS */
	uint64_t device;  /* bytes of each machine's swap device, at least MIX_LOCAL */
	uint32_t run;     /* pages of the largest run, up to STORE_RUN; sizes are log-uniform */
	uint64_t miss;    /* ns of processor time of a page in and out; 0 = programs do not page */
	uint32_t columns; /* STORE_COLUMNS, or 1 */
	uint64_t seed;    /* of the mix, which is equal for every unit, and of all else */
	bool to_refusal;  /* ends with the first refusal */
};

#define LENDING_PARTS 10

struct lending_result {
	double refusal;     /* live / donors' memory at the first refusal; 0 if there was none */
	uint32_t refused_at; /* second */
	bool unit_refused;  /* a page found no unit; else a program was not started */
	/* Until the last program has ended: */
	uint32_t seconds;
	double use;         /* mean live / donors' memory */
	double live_lent;   /* mean live / lent, of the seconds in which memory is lent */
	double live_lent_low; /* its 5th percentile */
	double live_lent_sum; /* mean live / mean lent: seconds count by what is lent in them */
	double parts[LENDING_PARTS]; /* live / lent in each tenth; negative: nothing was lent */
	double lent;        /* mean bytes */
	double maps, unmaps; /* units per second */
	double on_disk;     /* part of the swapped-out pages that found no unit */
};

/* Returns 0, or -ENOMEM. */
int lending_run(const struct lending_config *config, struct lending_result *result);

#endif
