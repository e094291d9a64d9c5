/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Control-socket commands that devices of the kernel module support. */
#ifndef EBB_KMOD_COMMANDS_H
#define EBB_KMOD_COMMANDS_H

#include <json-c/json.h>

#include "lib/kmod/settle.h"

/* Carries out @verb for the device @name and fills in @answer. */
int kmod_command(struct kmod_link *l, struct kmod_view *v, const char *name, const char *verb,
	       struct json_object *request, struct json_object *answer, struct error *e);

#endif
