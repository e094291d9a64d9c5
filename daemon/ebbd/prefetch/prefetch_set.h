/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The prefetched set: pages that were requested and not used yet, in maps/prefetched,
 * and the filter before it, which spares a minor fault the look-up.
 *
 * The BPF programs remove a page at its first fault.  A change of many pages is one call of a BPF
 * program (bpf/batch.bpf.h).  All functions belong to the executor's thread.
 */
#ifndef EBB_PREFETCH_SET_H
#define EBB_PREFETCH_SET_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#include "ebbd/plane/plane.h"

struct prefetch_set;

/* An address space, and the cgroup and source that are charged with the outcome. */
struct prefetch_key {
	uint32_t tgid, exec;
	uint64_t owner;
	uint32_t source;          /* enum ebb_source */
	bool shared;              /* the pages are of shared memory */
};

struct prefetch_entered {
	uint32_t fresh;       /* new in the set */
	uint32_t again;       /* in the set for EBB_EVICTED_NS or longer: request again */
	uint32_t repeated;    /* in it for less: skip */
	uint32_t full;        /* not entered: the set is full */
	uint32_t failed;      /* not entered: the program could not run, which is logged */
};

/* The set as BPF programs have it. */
struct prefetch_maps {
	int map;                  /* descriptor of maps/prefetched */
	int program;              /* descriptor of set_batch() */
	struct ebb_batch *batch;  /* of that program, mapped */
	uint64_t *filter;         /* EBB_FILTER_WORDS, mapped */
};

struct prefetch_maps prefetch_set_maps(struct plane *p);

/* NULL without memory. */
struct prefetch_set *prefetch_set_new(const struct prefetch_maps *maps);
void prefetch_set_free(struct prefetch_set **s);

/*
 * Enters @n <= PREFETCH_BATCH_MAX pages before they are requested, so that an early hit is
 * counted.  Leaves the new pages at the beginning of @vpn, in sequence, followed by the pages
 * to request again.
 */
struct prefetch_entered prefetch_set_enter(struct prefetch_set *s, const struct prefetch_key *key,
					   uint64_t *vpn, uint32_t n, uint64_t now);
/*
 * Restarts the age of pages that were requested again; a page used meanwhile stays out.  Without
 * effect where the program cannot run: they are requested again earlier.
 */
void prefetch_set_renew(struct prefetch_set *s, const struct prefetch_key *key, const uint64_t *vpn,
			uint32_t n, uint64_t now);
/* Removes pages that the kernel rejected; returns how many were still in the set. */
uint32_t prefetch_set_withdraw(struct prefetch_set *s, const struct prefetch_key *key,
			       const uint64_t *vpn, uint32_t n);

struct prefetch_sweep {
	/* Returns whether a page stays. */
	bool (*keep)(void *data, const struct ebb_page *page, const struct ebb_prefetch *p);
	/* A page was removed unread. */
	void (*expired)(void *data, const struct ebb_prefetch *p);
	void *data;
};

/*
 * Removes pages that do not stay, and rebuilds the filter from the others.  Returns whether it saw
 * all pages.
 */
bool prefetch_set_sweep(struct prefetch_set *s, const struct prefetch_sweep *sweep);

#endif
