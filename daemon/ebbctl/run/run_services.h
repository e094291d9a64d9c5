/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Services of `run --start`: ebbd, a donor on loopback and a device. */
#ifndef EBB_STARTED_H
#define EBB_STARTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/error.h"
#include "program.h"

#define STARTED_DEVICE "ebb0"

/* Services that were started and still run. */
struct started {
	bool device;
	pid_t daemon, donor;    /* or 0 */
	char donor_address[64];
};

/*
 * Call it before looking for services: while the descriptor that it returns is open, or a copy,
 * no other `run` stops those that it started.  Waits while another one stops them, until
 * program_interrupted().  Returns -errno on failure.
 */
int services_use(struct program *p, struct error *e);

/*
 * Starts ebbd unless @daemon_runs, and a donor and a device of @memory bytes unless
 * @device_is_on.  The caller calls started_end() after a failure, too.
 */
int started_begin(struct started *s, bool daemon_runs, bool device_is_on, uint64_t memory,
		  struct error *e);

/*
 * Stops the started services, swap first.  @lock: of services_use().  Stops none while others use
 * them: another `run`, cgroups that were attached by command, or swapped-out pages that fit
 * nowhere else.  After an error @s has those that still run.
 */
int started_end(struct started *s, int lock, struct error *e);

bool started_any(const struct started *s);

/* Writes a command that stops them to @text, and returns @text. */
const char *started_format(const struct started *s, char *text, size_t size);

#endif
