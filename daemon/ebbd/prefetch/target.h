/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A process whose pages are prefetched: its descriptors, its pagemap, and the mappings in which it
 * faulted.
 */
#ifndef EBB_TARGET_H
#define EBB_TARGET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <ebb/abi.h>

#include "shared.h"
#include "zswap.h"

#define TARGET_SPANS 64    /* 32 threads with a heap and an arena each */
#define TARGET_SPAN_NS 1000000000ULL

/* Pages first to end - 1 were memory, not a mapping of a file, at @seen_ns. */
struct target_span {
	uint64_t first, end, seen_ns;
	uint64_t file, index;    /* shared memory: as in struct ebb_memory; 0 = anonymous */
};

struct target {
	uint32_t tgid, exec;
	uint64_t owner;          /* its attached cgroup */
	int pidfd, pagemap;      /* -1: closed */
	int maps;                /* opened when needed; -1: closed */
	uint64_t used_ns;
	uint64_t leaf;           /* its memory cgroup; 0 = not known */
	uint32_t type;           /* of the swap with its latest pages; UINT32_MAX = unknown */
	struct target_span *span; /* the latest ones: allocated */
	uint32_t spans;
};

/*
 * Calls on the process's memory are a worker's (worker.h): the thread may end in each function here
 * that makes one.  Returns -ESRCH if the process has exited.
 */
int target_open(struct target *t, uint32_t tgid, uint32_t exec, uint64_t owner);
/* As target_open(), for a target that was closed: keeps what is known of the process. */
int target_reopen(struct target *t);
void target_close(struct target *t);
/* Closes it and frees what is known of the process. */
void target_clear(struct target *t);
/* Returns whether no process has that number. */
bool process_gone(uint32_t tgid);

/*
 * Returns whether its memory still is what was opened: it has neither exited, even if its number is
 * in use again, nor executed another program.
 */
bool target_current(const struct target *t);

/*
 * Learns from a fault in the mapping @m that its pages are memory.  Without memory, or for more
 * than TARGET_SPANS mappings in TARGET_SPAN_NS, forgets the one that faulted longest ago.
 *
 * Only such pages may be prefetched or read: MADV_WILLNEED on the swapped-out pages of a private
 * file mapping reads the file, and waits for its server, which the program itself may be.
 *
 * The program may map a file in the place of memory afterwards; until a fault in the new mapping,
 * at most TARGET_SPAN_NS, nothing tells.  See target_drop_files().
 */
void target_learn(struct target *t, const struct ebb_memory *m);
/*
 * Keeps, in place, those of the @n pages @vpn that were memory less than TARGET_SPAN_NS ago;
 * returns how many remain.
 */
uint32_t target_keep_memory(const struct target *t, uint64_t *vpn, uint32_t n, uint64_t now);

/* The result of target_keep_swapped(): numbers of pages. */
struct target_kept {
	uint32_t kept;
	uint32_t held_back; /* in swap, but not to be read now */
	uint32_t zswapped;  /* in swap, but in memory: zswap holds them */
	uint32_t type;      /* of the swap with the first page kept */
	uint64_t shared;    /* a bit for each page kept: of shared memory */
};

/*
 * Keeps, in place, those of the @n <= EBB_BATCH_MAX pages @vpn (ascending or descending) that are
 * in swap, but for the swap types in the mask @held and for those that @zswap holds.
 *
 * Of a private mapping of shared memory, MADV_WILLNEED reads only pages that the process has not
 * written.
 */
struct target_kept target_keep_swapped(const struct target *t, uint64_t *vpn, uint32_t n,
				       uint32_t held, const struct zswap_slots *zswap,
				       struct shared_pages *shared);

/*
 * Drops those of the kept pages, @vpn and @k, that are mapped to a file now; returns their number.
 * Call it just before MADV_WILLNEED: a file that is mapped between the calls, some microseconds, is
 * read.
 *
 * Costs 0.7 us for each mapping with some of the pages (two-vCPU VM, Linux 6.18).  Without effect
 * before Linux 6.11, which cannot tell; and on pages of shared memory, which are kept: a file in
 * their place, whose pages the program has not touched, is read if the same pages of the shared
 * memory are in swap.
 */
uint32_t target_drop_files(struct target *t, uint64_t *vpn, struct target_kept *k);

/*
 * process_madvise() over the @n pages @vpn; runs become one range each.
 * Returns the number of pages that the kernel accepted, possibly fewer, or -errno.
 */
int target_advise(const struct target *t, const uint64_t *vpn, uint32_t n, int advice);

/* Reads @n pagemap entries from page @vpn on; returns like pread(2). */
ssize_t target_pagemap(const struct target *t, uint64_t vpn, uint64_t *entry, size_t n);
/* process_madvise() over the @n ranges. */
ssize_t target_madvise(const struct target *t, const struct iovec *range, size_t n, int advice);

#endif
