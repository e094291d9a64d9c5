/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Cgroups whose pages have donors and durability of their own on a device of the
 * kernel module.  The module holds all of this state; ebbd, which manages these donors,
 * too, reads it there.
 */
#ifndef EBB_DEVICE_CLASS_H
#define EBB_DEVICE_CLASS_H

#include "lib/base/error.h"
#include "lib/base/json.h"
#include "lib/base/options.h"

struct class_plan {
	struct option_list donors;
	const char *durability, *seal; /* NULL: as the device */
};

/*
 * Each adds "device" to @answer.  _set and _remove add "cgroup", and _set the class and
 * its properties; _list adds "classes", with @cgroup that of the cgroup alone.
 */
int device_class_set(const char *device, const char *cgroup, const struct class_plan *plan,
		     struct json_object *answer, struct error *e);
int device_class_remove(const char *device, const char *cgroup, struct json_object *answer,
			struct error *e);
int device_class_list(const char *device, const char *cgroup, struct json_object *answer,
		      struct error *e);

#endif
