/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The machine's memory from /proc/meminfo and /proc/pressure/memory, and the limits of this
 * process's cgroups, which may be lower.
 */
#ifndef EBB_MACHINE_H
#define EBB_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/headroom.h"

/* Files to read. */
struct machine {
	const char *directory;
	char cgroup[2048]; /* this process's directory; "" = none with a memory controller */
	size_t top;        /* length of the root's part of it */
	bool v2;
};

/*
 * @directory has "meminfo" and "pressure/memory": "/proc", or a test's directory, which may also
 * have "self/cgroup", a hierarchy below "cgroup", and "sys/kernel/random/boot_id".
 */
void machine_find(struct machine *m, const char *directory);

/*
 * Identifies the machine: the same in every process until the next boot, and different from other
 * machines' with high probability.  0 = no boot_id.
 */
uint32_t machine_number(const struct machine *m);

int machine_sample(const struct machine *m, struct headroom_sample *sample, struct error *e);

/*
 * Parses the texts of the two files.  -EBADMSG when @meminfo lacks MemTotal or MemAvailable;
 * without @pressure (NULL, or a kernel without PSI) the pressure is 0.
 */
int machine_parse(const char *meminfo, const char *pressure, struct headroom_sample *sample);

#endif
