/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A recording for the simulator: accesses of each thread in order, and evictions.
 *
 * A recording has the accesses that faulted.  Two kinds of events are inferred
 * (docs/trace.md):
 *  - accesses to pages that the kernel read with a miss, which caused no visible fault;
 *  - evictions of clean pages, which no event reports.
 */
#ifndef EBB_SIM_HISTORY_H
#define EBB_SIM_HISTORY_H

#include "lib/trace/trace.h"
#include "map.h"

struct sim_access {
	uint64_t think_ns;      /* the thread's own time since its previous access */
	uint64_t ip;
	uint32_t page, thread;
	uint32_t next;          /* of the same thread; SIM_NONE = its last */
	uint32_t read_with;     /* following accesses to pages that the kernel read with this */
	uint16_t role;
};

struct sim_page {
	uint64_t vpn;
	uint32_t tgid;
	bool resident;          /* when the recording began */
};

struct sim_thread {
	uint32_t tgid, tid;
	uint32_t process;       /* 0, 1, ... */
	uint32_t first;         /* access */
};

struct sim_history {
	struct trace_info info;
	uint64_t recorded[TRACE_KINDS];
	uint64_t miss_ns;       /* of all misses */
	struct sim_access *access;
	uint32_t accesses;
	struct sim_page *page;
	uint32_t pages;
	struct sim_thread *thread;
	uint32_t threads, processes;
	/*
	 * leave[leave_from[i]] up to leave[leave_from[i + 1]] are the pages that
	 * left before access i; after the last one for i = accesses.
	 */
	uint32_t *leave, *leave_from;
	uint64_t beyond; /* pages that did not fit into memory, at most */
	uint32_t stay;	 /* accesses that a clean page is assumed to stay after its last touch */
	struct sim_map by_page, by_thread, by_process;
};

/* Reads the rest of @r into *@h, which the caller frees also after failure. */
int sim_history_read(struct sim_history *h, struct trace_reader *r, struct error *e);
void sim_history_free(struct sim_history *h);

/* Returns the page's index, or SIM_NONE if the trace does not have it. */
uint32_t sim_page_find(const struct sim_history *h, uint32_t tgid, uint64_t vpn);

#define _cleanup_history_ __attribute__((cleanup(sim_history_free)))

#endif
