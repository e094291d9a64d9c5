/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The verbs of a device's control socket, as far as the kernel module can do them. */
#ifndef EBB_KMOD_ORDERS_H
#define EBB_KMOD_ORDERS_H

#include <json-c/json.h>

#include "lib/kmod/settle.h"

/* Carries out @verb for the device @name and fills in @answer. */
int kmod_order(struct kmod_link *l, struct kmod_care *c, const char *name, const char *verb,
	       struct json_object *request, struct json_object *answer, struct error *e);

#endif
