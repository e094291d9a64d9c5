/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the machine says of its memory: /proc/meminfo and /proc/pressure/memory; and
 * the cgroups that this process is in, whose limits may be lower.
 */
#ifndef EBB_MACHINE_H
#define EBB_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/headroom.h"

/* Where that is read. */
struct machine {
	const char *directory;
	char cgroup[2048]; /* the directory of our own; "" = none with a memory controller */
	size_t top;        /* of which so many bytes are the root's */
	bool v2;
};

/*
 * @directory has "meminfo" and "pressure/memory": "/proc", or a test's.  That may have
 * cgroups, too: "self/cgroup", and a hierarchy below "cgroup"; and a machine of its own:
 * "sys/kernel/random/boot_id".
 */
void machine_find(struct machine *m, const char *directory);

/*
 * Tells machines apart: the same in every process until the machine is booted again, and
 * hardly another one's.  0 = there is no boot_id.
 */
uint32_t machine_number(const struct machine *m);

int machine_sample(const struct machine *m, struct headroom_sample *sample, struct error *e);

/*
 * The texts of the two files.  -EBADMSG when @meminfo lacks MemTotal or
 * MemAvailable; without @pressure (NULL, or no kernel with PSI) it is 0.
 */
int machine_parse(const char *meminfo, const char *pressure, struct headroom_sample *sample);

#endif
