/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_PLAN_H
#define EBB_DEVICE_PLAN_H

#include "lib/base/options.h"

#define DEVICE_BACKUP_DIR "/var/lib/ebb"
#define DEVICE_SLAB (64ULL << 20)
#define DEVICE_PRIORITY_MAX 32767
#define SWAPOFF_MS 60000

struct device_plan {
	uint64_t size, slab;        /* bytes */
	uint64_t priority;          /* swap priority, 0: above all others */
	struct option_list donors;  /* "HOST:PORT[,HOST:PORT...]" */
	const char *frontend;       /* "fuse", "ublk", "kmod" */
	const char *durability;     /* "disk", "replicas=N", "none" */
	const char *backup;         /* directory, with "kmod" block device; only with "disk" */
	struct device_extras {      /* passed on to ebb-swapd; NULL: not given */
		const char *key, *seal;
		uint64_t connections; /* 0: not given */
		bool overcommit;
	} extras;
	const char *scope;          /* "any", "attached" */
	bool adopt;                 /* accept a working device of equal properties */
};

#define DEVICE_PLAN_DEFAULTS \
	{ .slab = DEVICE_SLAB, .frontend = "fuse", .durability = "disk", .scope = "any" }

#endif
