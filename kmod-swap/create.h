/* SPDX-License-Identifier: GPL-2.0-only */
/* Creating and destroying devices. */
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

/* Creates a device with one user.  On failure *@why is a static text. */
int ebb_device_create(const struct ebb_settings *settings, struct ebb_device **out,
		      const char **why);
/* Ends its I/O and its sessions; -EBUSY while it is open.  device->control is held. */
int ebb_device_stop(struct ebb_device *device);
/* Releases all that it has; its last user frees it.  device->control is held. */
void ebb_device_release(struct ebb_device *device);

/* Called when the module is loaded and unloaded. */
int ebb_device_register(void);
void ebb_device_unregister(void);

#endif
