/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Devices of the kernel module ebb_swap: /dev/ebbN.  ebbctl chooses a number that no other
 * record has and writes the intent before it creates the device, so that a record or
 * intent always identifies the module's device.
 */
#ifndef EBB_KMODDEV_H
#define EBB_KMODDEV_H

#include "lib/control/device.h"
#include "lib/kmod/settle.h"
#include "plan.h"

#define KMOD_FRONTEND "kmod"

bool kmoddev_is(const struct device_record *d);

/* Returns N of /dev/ebbN, or EBB_SWAP_DEVICES. */
unsigned int kmoddev_number(const struct device_record *d);

/* Appends the @given donors to d->donor. */
int kmoddev_donors(const struct option_list *given, struct device_record *d, struct error *e);

/*
 * Checks @plan for the device @name, and the module, without changing anything.  Sets
 * d->block and d->donor.
 */
int kmoddev_plan(const char *name, const struct device_plan *plan, struct device_record *d,
		 struct error *e);

/*
 * Creates the device: connects to all donors and maps each slab to one of them.  -EINTR
 * after process_interrupted().  A failure leaves the device for kmoddev_remove().
 */
int kmoddev_make(const struct device_record *d, struct error *e);

/*
 * Connects to v->donor and maps the slabs of the class that need a donor.  Refused when
 * a donor is unreachable or, without a backup, lacks capacity.
 */
int kmoddev_settle(struct kmod_link *l, const struct device_record *d, struct kmod_view *v,
		   struct error *e);

/* Returns whether the module has the device. */
bool kmoddev_there(const struct device_record *d);

/* Removes the device; succeeds when it does not exist. */
int kmoddev_remove(const struct device_record *d, struct error *e);

#endif
