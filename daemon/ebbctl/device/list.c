// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "kmoddev.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "list.h"
#include "swaps.h"
#include "teardown.h"

#define SERVER_MS 1000

static const char *state_of(const struct device_record *d, bool recorded, bool on, bool answers)
{
	if (!recorded)
		return "half made";
	if (!d->server_pid && !kmoddev_is(d))
		return on ? "DEAD" : "off, no server";
	if (!on)
		return "off";
	return answers ? "on" : "on, silent";
}

struct json_object *device_describe(const char *name)
{
	struct device_record found, d = { .size = 0 };
	struct swap_area area = { .used = 0 };
	struct json_object *o, *server;
	bool on, recorded;

	if (device_find(name, &found, NULL))
		return NULL;
	recorded = !device_record_read(name, &d, NULL);
	if (!recorded)
		d = found;
	d.server_pid = found.server_pid;
	on = *found.block && !swaps_find(found.block, &area);
	server = control_ask(ebb_device_socket(name), "status", SERVER_MS);
	o = device_record_json(&d);
	json_add_text(o, "state", state_of(&d, recorded, on, server != NULL));
	json_add_bool(o, "on", on);
	json_add_int(o, "used", area.used);
	json_object_object_add(o, "server", server);
	return o;
}

static int add(const char *name, void *rows)
{
	struct json_object *o = device_describe(name);

	if (o)
		json_object_array_add(rows, o);
	return 0;
}

struct json_object *device_describe_all(void)
{
	struct json_object *rows = json_object_new_array();

	device_each(add, rows);
	return rows;
}
