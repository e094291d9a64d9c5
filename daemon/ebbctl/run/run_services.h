/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Services of `run --start`: ebbd, a donor on loopback and a device. */
#ifndef EBB_STARTED_H
#define EBB_STARTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/error.h"

#define STARTED_DEVICE "ebb0"

/* Services that were started and have to be stopped. */
struct started {
	bool daemon, device;
	pid_t donor;
	char donor_address[64];
};

/*
 * Starts ebbd unless @daemon_runs, and a donor and a device of @memory bytes unless
 * @device_is_on.  Stops them again on failure.
 */
int started_begin(struct started *s, bool daemon_runs, bool device_is_on, uint64_t memory,
		  struct error *e);

/* Stops the started services, swap first.  Continues after the first error, which @e has. */
int started_end(struct started *s, struct error *e);

#endif
