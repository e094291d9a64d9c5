/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A process's epoch and page faults, which ebbd shares by pinned BPF maps and the process reads by
 * plain loads.  When ebbd dies, its BPF programs stay: epochs pass and misses arrive; hits on
 * prefetched pages do not.  When ebbd removes its pins, the maps no longer change.
 */
#ifndef EBBGC_SHARE_H
#define EBBGC_SHARE_H

#include <stddef.h>
#include <stdint.h>

struct ebb_arrivals;

struct share {
	const uint64_t *epoch;		/* NULL: not shared */
	const struct ebb_arrivals *arrivals;	/* NULL: not shared */
	void *epochs;			/* the mapping that epoch points into */
	size_t epochs_bytes;
};

/*
 * Asks ebbd's control socket once and waits at most 0.2 s for the answer.  Pointers to data that
 * ebbd does not share, or without ebbd, are NULL.
 */
void share_open(struct share *s);
void share_close(struct share *s);

#endif
