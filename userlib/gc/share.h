/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What ebbd shares with a process, to be read by plain loads: its epoch and its page faults, from
 * pinned BPF maps.  An ebbd that dies leaves its programs: epochs pass, and misses are told; only
 * hits, on what it read ahead, are not.  One that takes its pins down leaves maps that stand still.
 */
#ifndef EBBGC_SHARE_H
#define EBBGC_SHARE_H

#include <stddef.h>
#include <stdint.h>

struct arrival_ring;

struct share {
	const uint64_t *epoch;		/* NULL: not shared */
	const struct arrival_ring *arrivals;	/* likewise */
	void *epochs;			/* mapped, as arrivals is */
	size_t epochs_bytes;
};

/*
 * Asks ebbd's control socket once; waits for its answer for at most a fifth of a second.  What is
 * not shared, by no ebbd or by one that does not know it, is NULL.
 */
void share_open(struct share *s);
void share_close(struct share *s);

#endif
