/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The part of `advise` that watches a cgroup instead of recording its faults. */
#ifndef EBB_ADVISE_IDLE_H
#define EBB_ADVISE_IDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

struct advise_idle {
	const char *cgroup;
	const char *times;  /* "1m,5m,30m" */
	uint64_t duration;  /* ns */
	uint64_t page_ns;   /* cost of a page that returns; 0: ask ebbd */
	uint64_t slab;      /* bytes */
	bool json;
};

/* Watches and prints what could be swapped out; a signal ends the watch early. */
int advise_idle(const struct advise_idle *o, struct error *e);

#endif
