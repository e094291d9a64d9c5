/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Free capacity for offloaded pages: of the swap area used first, and of its donors. */
#ifndef EBB_OFFLOAD_ROOM_H
#define EBB_OFFLOAD_ROOM_H

#include <stdint.h>

#include "lib/control/device.h"
#include "offload_control.h"

#define OFFLOAD_DEVICES 16

struct offload_device {
	char name[DEVICE_NAME_MAX];
	uint64_t troubles;      /* donors lost, and pages that only the backup has */
};

/* All zeroes at the start. */
struct offload_room {
	uint64_t bytes;         /* may be paged out */
	enum offload_state why; /* reason when bytes is 0 */
	uint64_t looked_ns;
	uint64_t quiet_ns;      /* earliest time of the next page-out */
	struct offload_device device[OFFLOAD_DEVICES];
};

/* Refreshes @r at most once a second. */
void offload_room_look(struct offload_room *r, uint64_t now_ns);

/*
 * Returns the free bytes, less a margin of a sixteenth, of the swap areas in @swaps (the
 * text of /proc/swaps) that have the highest priority of all areas with free space and
 * are among the @n paths @block.  Returns 0 if an area that is not among them has that
 * priority: pages would go there.
 */
uint64_t offload_room_parse(const char *swaps, const char (*block)[64], uint32_t n);

#endif
