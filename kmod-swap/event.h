/* SPDX-License-Identifier: GPL-2.0-only */
/* EVENT messages to user space. */
#ifndef EBB_EVENT_H
#define EBB_EVENT_H

#include "device.h"

/* May sleep; @reason may be NULL.  Events may be lost: listeners poll STATUS too. */
void ebb_event_send(const struct ebb_device *device, u32 event, u32 session, u32 slab,
		    u32 cause, const char *reason);
bool ebb_event_has_listeners(void);

#endif
