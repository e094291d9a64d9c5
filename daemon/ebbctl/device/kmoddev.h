/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Devices of the kernel module ebb_swap: /dev/ebbN.  The number is chosen here and
 * written down before the device is made, and is never one that a record of another device
 * has: so a record, or the intent of one, says which device of the module is meant.
 */
#ifndef EBB_KMODDEV_H
#define EBB_KMODDEV_H

#include "lib/control/device.h"
#include "lib/kmod/settle.h"
#include "plan.h"

#define KMOD_FRONTEND "kmod"

bool kmoddev_is(const struct device_record *d);

/* N of its /dev/ebbN; EBB_SWAP_DEVICES: none. */
unsigned int kmoddev_number(const struct device_record *d);

/* Adds those that are @given to d->donor. */
int kmoddev_donors(const struct option_list *given, struct device_record *d, struct error *e);

/*
 * Checks @plan for the device @name, and the module, without making anything, and fills in
 * what is particular to this kind of device: block, donors.
 */
int kmoddev_plan(const char *name, const struct device_plan *plan, struct device_record *d,
		 struct error *e);

/*
 * Makes it: connects to all its donors and gives each slab to one of them.  -EINTR when
 * process_interrupted() meanwhile.  On failure it is there still, for kmoddev_remove().
 */
int kmoddev_make(const struct device_record *d, struct error *e);

/*
 * Connects to c->donor and gives each slab of the class that needs one to one of them,
 * until it is done; refused when one is not there or, without a backup, has no room.
 */
int kmoddev_settle(struct kmod_link *l, const struct device_record *d, struct kmod_care *c,
		   struct error *e);

/* Whether the module has it. */
bool kmoddev_there(const struct device_record *d);

/* Takes it away; no error when there is none. */
int kmoddev_remove(const struct device_record *d, struct error *e);

#endif
