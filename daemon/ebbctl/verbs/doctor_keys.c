// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "doctor_check.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"

#define LOCAL_MS 5000

/* The donor on this machine. */
static void own_donor(struct doctor *d)
{
	struct json_object *status = control_ask(ebb_donor_socket(), "status", LOCAL_MS);
	int64_t keys = json_int(status, "keys", 0), shared = json_int(status, "shared_keys", 0);

	if (shared)
		doctor_add(d, DEGRADED, "keys of ebb-donord",
			   "at the borrower: ebbctl key derive KEY DONOR FILE; add FILE to --keys, remove the shared key",
			   "%d of %d shared by donors, so each can act as the others", (int)shared,
			   (int)keys);
	else if (keys)
		doctor_add(d, HAVE, "keys of ebb-donord", NULL, "%d, for this donor only", (int)keys);
	json_object_put(status);
}

static void donors_of(struct doctor *d, struct json_object *device)
{
	struct json_object *donors = json_member(json_member(device, "server"), "donors");
	char remedy[512];

	for (size_t i = 0; donors && i < json_object_array_length(donors); i++) {
		struct json_object *o = json_object_array_get_idx(donors, i);
		const char *address = json_text(o, "address", "");

		if (!json_object_get_boolean(json_member(o, "shared_key")) ||
		    strcmp(json_text(o, "state", ""), "up"))
			continue;
		snprintf(remedy, sizeof(remedy),
			 "ebbctl key derive %.200s %.128s FILE; add FILE to its --keys, remove the shared key",
			 json_text(device, "key", "KEY"), address);
		doctor_add(d, DEGRADED, "donor's key", remedy, "%s has the key that donors share",
			   address);
	}
}

void doctor_keys(struct doctor *d, struct json_object *devices)
{
	own_donor(d);
	for (size_t i = 0; i < json_object_array_length(devices); i++)
		donors_of(d, json_object_array_get_idx(devices, i));
}
