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

/* Both need ebb_control_lock.  On failure *@why is a static text. */
int ebb_device_create(const struct ebb_settings *settings, struct ebb_device **out,
		      const char **why);
/* Frees the device and its sessions; -EBUSY while it is open. */
int ebb_device_destroy(struct ebb_device *device);

/* Called when the module is loaded and unloaded. */
int ebb_device_register(void);
void ebb_device_unregister(void);

#endif
