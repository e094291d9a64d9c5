/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Swap of the devices around a sleep of the machine, during which no process serves pages. */
#ifndef EBB_DEVICE_SLEEP_H
#define EBB_DEVICE_SLEEP_H

#include <json-c/json.h>

#include "lib/base/error.h"
#include "swapoff.h"

/*
 * Disables the swap of every device, within @timeout_ms each, and remembers which.  If one has
 * pages that fit nowhere else or does not finish, enables the others again and fails.  Appends
 * the names to the array @names.
 */
int devices_sleep(int timeout_ms, enum swapoff_show show, struct json_object *names,
		  struct error *e);

/*
 * Enables the swap that devices_sleep() disabled, and appends the names to the array @names.
 * Donors may be unreachable at first: retries for @timeout_ms.  A later call retries those that
 * fail.
 */
int devices_wake(int timeout_ms, struct json_object *names, struct error *e);

#endif
