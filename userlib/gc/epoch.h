/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Epochs: periods in which the set of resident pages is relatively stable (dissertation, section
 * 4.3.2.2).  ebbd's BPF programs count epochs and share the counter.  Without ebbd, this library
 * counts pages that changed between two scans; it misses pages that went out and in between.
 */
#ifndef EBBGC_EPOCH_H
#define EBBGC_EPOCH_H

#include <stdint.h>
#include "ebbgc.h"

struct epoch {
	enum ebbgc_epoch_source source;
	const uint64_t *shared;		/* EBBGC_EPOCH_EBBD */
	uint64_t own;			/* EBBGC_EPOCH_OWN; atomic */
	uint64_t churn;			/* pages changed in this epoch */
};

/* @shared: ebbd's counter, or NULL. */
void epoch_open(struct epoch *e, const uint64_t *shared);

/* EBBGC_EPOCH_OWN: adds `changed` of `pages` pages; an epoch ends at `percent` of `pages`. */
void epoch_churn(struct epoch *e, uint64_t changed, uint64_t pages, unsigned int percent);

static inline uint64_t epoch_now(const struct epoch *e)
{
	return __atomic_load_n(e->source == EBBGC_EPOCH_EBBD ? e->shared : &e->own,
			       __ATOMIC_RELAXED);
}

#endif
