/* SPDX-License-Identifier: GPL-2.0-or-later */
/* All counters of ebb on this machine at one moment, for `top` and `metrics`. */
#ifndef EBB_SNAPSHOT_H
#define EBB_SNAPSHOT_H

#include <json-c/json.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * The caller owns *@out, which has
 *	time_ns   CLOCK_MONOTONIC
 *	wall_s    CLOCK_REALTIME, s
 *	ebbd      its answer to "status", or null without an answer
 *	cgroups   rows of "stats" with name (the path below the hierarchy's mount), memory,
 *	          limit (bytes; null = none), pressure {some_us, full_us} or null
 *	sources   of the requests of all cgroups, with the cgroup's name
 *	devices   rows of device_describe_all() with stats of the server, or null
 *	donors    of all devices, with device and quarantined
 *	lender    status of the donor on this machine, or null
 * Fails with EXIT_REFUSED when the caller has no read access.
 */
int snapshot_take(struct json_object **out, struct error *e);

/* Parses the "some" and "full" totals, us, of a memory.pressure file; 0 or -EBADMSG. */
int pressure_parse(const char *text, uint64_t *some, uint64_t *full);

#endif
