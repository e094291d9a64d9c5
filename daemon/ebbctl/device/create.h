/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_CREATE_H
#define EBB_DEVICE_CREATE_H

#include "lib/base/options.h"
#include "lib/control/device.h"

#define DEVICE_BACKUP_DIR "/var/lib/ebb"
#define DEVICE_SLAB (64ULL << 20)
#define SWAPOFF_MS 60000

struct device_plan {
	bool json;
	uint64_t size, slab;        /* bytes */
	uint64_t priority;          /* swap priority, 0 = above every other */
	struct option_list donors;  /* "HOST:PORT[,HOST:PORT...]" */
	const char *frontend;       /* "fuse", "ublk", "kmod" */
	const char *durability;     /* "disk", "replicas=N", "none" */
	const char *backup;         /* directory, with "kmod" block device; only with "disk" */
	struct device_extras {      /* handed to ebb-swapd as they are; NULL = not given */
		const char *key, *seal, *connections;
	} extras;
	const char *scope;          /* "any", "attached" */
	bool adopt;                 /* one that was made by the same plan and works is as good */
};

/*
 * Makes the swap device @name and switches it on.  On failure nothing of it is
 * left, but of one that was there before; @d is its record.  @e says what was wrong.
 */
int device_create(const char *name, const struct device_plan *plan, struct device_record *d,
		  struct error *e);

#endif
