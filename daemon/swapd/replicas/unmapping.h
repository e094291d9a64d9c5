/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Slabs in this process's memory whose donor has disconnected.  Unmapping one takes 3 ms for 64 MiB
 * in which no request is served, and a donor may have thousands of them: their copies are off the
 * tables at once, and they are unmapped over the next ticks.  No transfer uses them meanwhile.
 */
#ifndef EBB_UNMAPPING_H
#define EBB_UNMAPPING_H

#include <stdint.h>

#include "lib/base/error.h"
#include "lib/link/link.h"

struct unmapping {
	void (*unmap)(struct mapping *m);
	uint8_t *memory;
	uint64_t size;
};

struct unmappings {
	struct unmapping *list;
	uint32_t count, most;
};

/* Makes room for @most of them: any more are unmapped at once. */
int unmappings_init(struct unmappings *u, uint32_t most, struct error *e);
void unmappings_free(struct unmappings *u);

/* Undoes map() of @t for @m later. */
void unmap_later(struct unmappings *u, const struct transport *t, const struct mapping *m);
/* Unmaps the next @n. */
void unmappings_run(struct unmappings *u, uint32_t n);

#endif
