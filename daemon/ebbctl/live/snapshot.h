/* SPDX-License-Identifier: GPL-2.0-or-later */
/* All that ebb counts on this machine, at one moment: what `top` and `metrics` are made of. */
#ifndef EBB_SNAPSHOT_H
#define EBB_SNAPSHOT_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * *@out, the caller's, has
 *	time_ns   CLOCK_MONOTONIC
 *	wall_s    CLOCK_REALTIME, s
 *	ebbd      its answer to "status", or null when nobody answers
 *	cgroups   rows of "stats" with name (the path below the hierarchy's mount), memory,
 *	          limit (bytes; null = none), pressure {some_us, full_us} or null
 *	devices   rows of device_describe_all() with stats, the server's, or null
 *	donors    those of all devices, with device and quarantined
 *	lender    what the donor on this machine says of itself, or null
 * Fails with EXIT_REFUSED when the caller may not read; the text says what to do.
 */
int snapshot_take(struct json_object **out, struct error *e);

/* "some" and "full" totals, us, of the text of a memory.pressure file.  -EBADMSG. */
int pressure_parse(const char *text, uint64_t *some, uint64_t *full);

#endif
