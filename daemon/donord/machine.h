/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the machine says of its memory: /proc/meminfo and /proc/pressure/memory. */
#ifndef EBB_MACHINE_H
#define EBB_MACHINE_H

#include "common/error.h"
#include "headroom.h"

/* @directory has "meminfo" and "pressure/memory": "/proc", or a test's. */
int machine_sample(const char *directory, struct headroom_sample *sample, struct error *e);

/*
 * The texts of the two files.  -EBADMSG when @meminfo lacks MemTotal or
 * MemAvailable; without @pressure (NULL, or no kernel with PSI) it is 0.
 */
int machine_parse(const char *meminfo, const char *pressure, struct headroom_sample *sample);

#endif
