/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How much the donors would take now: the swap that pages would go to, and its donors. */
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
	enum offload_state why; /* when that is 0 */
	uint64_t looked_ns;
	uint64_t quiet_ns;      /* nothing goes out before that */
	struct offload_device device[OFFLOAD_DEVICES];
};

/* Once a second at most; in between the result stays. */
void offload_room_look(struct offload_room *r, uint64_t now_ns);

/*
 * From @swaps, the text of /proc/swaps: free bytes, less a margin of a
 * sixteenth, on those of the swap areas with the highest priority of all with
 * room that are among the @n paths @block.  0 if another one is: pages would go
 * there.
 */
uint64_t offload_room_parse(const char *swaps, const char (*block)[64], uint32_t n);

#endif
