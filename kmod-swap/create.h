/* SPDX-License-Identifier: GPL-2.0-only */
/* Devices created and destroyed. */
#ifndef EBB_CREATE_H
#define EBB_CREATE_H

#include "device.h"

struct ebb_settings {
	u32 index;
	u64 size, slab_size;      /* bytes */
	u32 queues, depth, deadline;
	u64 pool;                 /* bytes */
	u32 copies;               /* enum ebb_swap_copy */
	const char *backup;       /* path, or NULL */
	const u8 *key, *key_number;
	bool seal;                /* class 0 */
};

/* Both want ebb_control_lock.  On failure *@why is a static text. */
int ebb_device_create(const struct ebb_settings *settings, struct ebb_device **out,
		      const char **why);
/* -EBUSY while it is open; else it is freed, with its sessions. */
int ebb_device_destroy(struct ebb_device *device);

/* With the module. */
int ebb_device_register(void);
void ebb_device_unregister(void);

#endif
