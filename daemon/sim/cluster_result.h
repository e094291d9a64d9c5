/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_SIM_CLUSTER_RESULT_H
#define EBB_SIM_CLUSTER_RESULT_H

#include <stdint.h>

struct cluster_result {
	/* Without remote memory; equal for every placer. */
	double alone_use;      /* mean part of memory in use */
	double alone_max_min;  /* median over time */
	double demand;         /* mean demand, machines: the upper bound of use */
	double severe;         /* part of the time with p99 / median >= CLUSTER_SEVERE */
	double stable[3];      /* P(use within 10 % of what it was) after 10, 20, 40 s */
	/* With remote memory. */
	double use;            /* mean part of memory in use, by programs and mapped slabs */
	double max_min;        /* median over time, all machines */
	double donors_max_mean; /* median over time, machines that hold a slab */
	double donors_deviation; /* standard deviation / mean of donors' use; median over time */
	double served;         /* share of borrowers' excess demand that is held by donors */
	double pressed; /* part of machine-seconds in which programs and slabs exceed memory */
	double evicted_rank;   /* activity of evicted slabs / of all slabs mapped at the donor */
	uint64_t maps, unmaps, evictions, migrations, to_disk;
	uint64_t ready;        /* maps and migrations that found a slab allocated in advance */
	uint64_t messages;
};

#define CLUSTER_SEVERE 2.0

#endif
