/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The status of the donor, for its control socket (control.h). */
#ifndef EBB_DONOR_STATUS_H
#define EBB_DONOR_STATUS_H

#include "donord.h"

struct borrower_status {
	char name[WIRE_NAME], key[KEY_NAME], peer[64]; /* key "" = none */
	const char *transport;
	uint64_t quota, reads, writes, connected; /* bytes, pages, s */
	uint32_t slabs, reserved, asked_back, refused, overdue;
};

/* Requests of a key or, without keys, of an address, that the rate has held. */
struct payer_status {
	char name[64];
	uint64_t waited; /* ms */
};

/* A pool of far memory. */
struct far_status {
	struct wire_far_listed pool;
	char key[KEY_NAME]; /* "" = none */
	uint32_t recovering; /* dead members that are fenced */
	uint64_t extents, extent_bytes;
	uint64_t metadata; /* bytes */
};

struct donor_status {
	uint64_t slab_size, headroom, rate, total, free, promised, lendable; /* bytes */
	struct headroom_sample sample;
	uint32_t in[LEND_STATES];
	uint32_t asked_back, refused, overdue, backed;
	struct eviction_counts evictions;
	bool draining, ending;
	uint32_t keys, shared_keys;
	uint64_t ends_in; /* s */
	uint64_t far, far_used; /* bytes: limit of far memory, 0 = none; used by arenas */
	struct far_counts far_counts;
	uint64_t jobs, jobs_used; /* bytes: for tables of jobs, 0 = no jobs; of these in use */
	uint32_t jobs_percent, job_heaps, job_regions;
	struct job_counts job_counts;
	uint32_t far_pool_count;
	struct far_status far_pools[FAR_POOLS];
	uint32_t payer_count;
	struct payer_status payers[CONNECTIONS];
	uint32_t borrower_count;
	/* Connections, sessions of kernel modules, and kept ones of these. */
	struct borrower_status borrowers[CONNECTIONS + 2 * KERNEL_SESSIONS];
};

/* Fills in @status.  Loop thread. */
void loop_status(const struct loop *l, struct donor_status *status);

#endif
