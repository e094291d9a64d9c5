/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Those commands of a device's control socket that the kernel module supports. */
#ifndef EBB_KMOD_COMMANDS_H
#define EBB_KMOD_COMMANDS_H

#include <json-c/json.h>

#include "lib/kmod/settle.h"

/* Carries out @verb for the device @name and fills in @answer. */
int kmod_command(struct kmod_link *l, struct kmod_view *v, const char *name, const char *verb,
	       struct json_object *request, struct json_object *answer, struct error *e);

#endif
