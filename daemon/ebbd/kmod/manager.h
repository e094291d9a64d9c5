/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Looks after the devices of the kernel module, in a thread of ebbd: connects to donors
 * that come (back), gives slabs to others when theirs has ended or wants them back, and
 * answers for the devices on ebb_device_socket(), as an ebb-swapd does for its own.
 */
#ifndef EBB_KMOD_MANAGER_H
#define EBB_KMOD_MANAGER_H

#include "lib/base/error.h"

struct kmod_manager;

/* *@out is the caller's, kmod_manager_stop(). */
int kmod_manager_start(struct kmod_manager **out, struct error *e);

/* Devices have come or gone: their records are read again. */
void kmod_manager_refresh(struct kmod_manager *m);

/* Waits for the thread, which a connect that is under way may take ten seconds. */
void kmod_manager_stop(struct kmod_manager **m);

#endif
