/* SPDX-License-Identifier: GPL-2.0-or-later */
/* `run --start`: ebbd, a donor on loopback and a device, for one program. */
#ifndef EBB_STARTED_H
#define EBB_STARTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/error.h"

#define STARTED_DEVICE "ebb0"

/* What was started, and thus has to be undone. */
struct started {
	bool daemon, device;
	pid_t donor;
	char donor_address[64];
};

/*
 * Starts what is missing: ebbd unless @daemon_runs; donor and device of @memory
 * bytes unless @device_is_on.  On failure undoes what it had started.
 */
int started_begin(struct started *s, bool daemon_runs, bool device_is_on, uint64_t memory,
		  struct error *e);

/* Undoes exactly that, swap first.  Goes on after the first error, which is in @e. */
int started_end(struct started *s, struct error *e);

#endif
