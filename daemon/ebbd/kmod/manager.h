/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Manages the devices of the kernel module, in a thread of ebbd: connects to donors, places slabs
 * whose donor ended or recalls them at others, and serves ebb_device_socket() of each device, as
 * an ebb-swapd does for its own.
 */
#ifndef EBB_KMOD_MANAGER_H
#define EBB_KMOD_MANAGER_H

#include "lib/base/error.h"

struct kmod_manager;

/* *@out is the caller's, kmod_manager_stop(). */
int kmod_manager_start(struct kmod_manager **out, struct error *e);

/* Reads the records again, after a device was created or destroyed. */
void kmod_manager_refresh(struct kmod_manager *m);

/* Waits for the thread, up to ten seconds if a connect is in flight. */
void kmod_manager_stop(struct kmod_manager **m);

#endif
