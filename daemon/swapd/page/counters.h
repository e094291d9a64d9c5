/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counters of a device. */
#ifndef EBB_COUNTERS_H
#define EBB_COUNTERS_H

#include <stdint.h>

#define LATENCY_BUCKETS 40

/*
 * Counters, written by the loop thread alone.  They live in memory shared with
 * the supervisor.  Pages unless a name says requests or bytes.
 */
struct counters {
	uint64_t completed;      /* requests answered; monitored by the watchdog */
	uint64_t received;       /* READ and WRITE requests */
	uint64_t read_requests, write_requests;
	uint64_t read_donor, read_backup, read_zero, read_failed;
	uint64_t written_donor;  /* acknowledged by a donor */
	uint64_t written_backup_only; /* no donor accepted them */
	uint64_t write_failed;
	uint64_t conflicts;      /* requests that waited for an overlapping one */
	uint64_t large_held;     /* large read requests that were queued so that small ones pass */
	uint64_t overtakes;      /* small read requests that passed queued ones */
	uint64_t donor_losses, late_replies, donor_errors;
	uint64_t donor_absences; /* times that a donor was away */
	/* Requests that wait for donors that are away, and those behind them; of the last tick. */
	uint64_t held;
	uint64_t bad_donor, bad_backup; /* contents differ from those written */
	uint64_t backup_errors;  /* requests that the backup file failed */
	uint64_t fuse_errors;    /* answers that the kernel rejected */
	uint64_t same_filled, read_same_filled; /* not transferred */
	uint64_t discarded;
	uint64_t repaired;       /* copied to replicas that lacked them */
	uint64_t maps, map_refusals, unmaps;
	uint64_t evictions, eviction_refusals; /* recalls of slabs, and those refused */
	uint64_t revocations;    /* replicas that donors have ended */
	uint64_t asks_ignored;   /* excess requests of donors */
	uint64_t to_disk;        /* of the evictions, for lack of another donor */
	uint64_t map_failures;   /* slabs that this process could not map */
	/* [i] counts donor reads with a round trip that took 2^i .. 2^(i+1)-1 ns */
	uint64_t latency[LATENCY_BUCKETS];
};

/* One writer, many readers: no lock prefix is needed. */
static inline void count_add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

static inline uint64_t count_get(const uint64_t *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

#endif
