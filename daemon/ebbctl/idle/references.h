/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Accessed bits of a process's page tables: /proc/PID/clear_refs and smaps. */
#ifndef EBB_IDLE_REFERENCES_H
#define EBB_IDLE_REFERENCES_H

#include <stdint.h>
#include <stdio.h>

#include "source.h"

struct referenced {
	uint64_t total, idle; /* bytes of anonymous memory that this process alone maps */
};

/* Adds what @smaps says of mappings without a file. */
void smaps_read(FILE *smaps, struct referenced *sum);

extern const struct idle_source idle_references;

#endif
