// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "device_view.h"
#include "ebbctl/device/kmoddev.h"
#include "lib/base/text.h"

int64_t donor_stuck(struct json_object *row)
{
	struct json_object *outlook = json_member(row, "outlook");

	return outlook ? json_int(outlook, "stuck", 0) : 0;
}

void donor_print_stuck(const char *donor, const char *device, struct json_object *row)
{
	struct json_object *outlook = json_member(row, "outlook");

	if (donor_stuck(row))
		printf("donor %s: %lld of %lld slabs of device %s cannot migrate: %s\n",
		       donor, (long long)donor_stuck(row),
		       (long long)json_int(outlook, "slabs", 0), device,
		       json_text(outlook, "why", "see its log"));
}

static void print_all_stuck(struct json_object *device)
{
	struct json_object *donors = json_member(json_member(device, "server"), "donors");

	for (size_t i = 0; donors && i < json_object_array_length(donors); i++) {
		struct json_object *donor = json_object_array_get_idx(donors, i);

		donor_print_stuck(json_text(donor, "address", "?"),
				  json_text(device, "name", "?"), donor);
	}
}

/* "1 failover"; "no standby; 2 failovers". */
static void put_processes(struct json_object *row, struct json_object *server)
{
	int takeovers = (int)json_int(server, "takeovers", 0);
	char text[96];

	if (!strcmp(json_text(row, "frontend", ""), KMOD_FRONTEND)) {
		json_add_text(row, "processes", "none needed");
		return;
	}
	if (!json_int(server, "holder", 0))
		snprintf(text, sizeof(text), "no supervisor; ");
	else if (!json_int(server, "standby", 0))
		snprintf(text, sizeof(text), "no standby; ");
	else
		*text = '\0';
	snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d failover%s", takeovers,
		 takeovers == 1 ? "" : "s");
	json_add_text(row, "processes", text);
}

const char *state_word(const char *state)
{
	static const char *const words[][2] = {
		{ "half made", "incomplete" }, { "on, silent", "on, unresponsive" },
		{ "filling", "resyncing" }, { "leaving", "migrating" }, { "greeting", "handshake" },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(state, words[i][0]))
			return words[i][1];
	return state;
}

/* Summarizes members for the table: "3 donors"; "256 replicas, 2 missing". */
static void put_summary(struct json_object *row)
{
	struct json_object *server = json_member(row, "server");
	struct json_object *copies = json_member(server, "copies");
	const char *donors = json_text(row, "donor", "");
	struct json_object *now = json_member(server, "donors");
	static const char *const kinds[] = { "missing", "filling", "leaving" };
	size_t n = now ? json_object_array_length(now) : 0, len;
	char text[128];

	json_add_text(row, "state", state_word(json_text(row, "state", "?")));
	if (n > 1 || (!now && strchr(donors, ','))) {
		for (const char *c = donors; !now && c; c = strchr(c, ','), c += c != NULL)
			n++;
		snprintf(text, sizeof(text), "%zu donors", n);
		json_add_text(row, "donor", text);
	}
	if (server) {
		put_processes(row, server);
		json_add_text(row, "durability", json_text(server, "durability", "disk"));
		json_object_object_add(row, "live", json_object_get(json_member(server, "live")));
		json_object_object_add(row, "mapped",
				       json_object_get(json_member(server, "mapped")));
	}
	if (!copies)
		return;
	len = snprintf(text, sizeof(text), "%lld", (long long)json_int(copies, "present", 0));
	for (int i = 0; i < 3 && len < sizeof(text); i++)
		if (json_int(copies, kinds[i], 0))
			len += snprintf(text + len, sizeof(text) - len, ", %lld %s",
					(long long)json_int(copies, kinds[i], 0),
					state_word(kinds[i]));
	json_add_text(row, "copies", text);
}

void device_print_table(struct json_object *rows)
{
	static const struct column columns[] = {
		{ "name", "DEVICE", COLUMN_TEXT }, { "block", "BLOCK", COLUMN_TEXT },
		{ "size", "SIZE", COLUMN_BYTES }, { "used", "USED", COLUMN_BYTES },
		{ "priority", "PRIO", COLUMN_COUNT }, { "state", "STATE", COLUMN_TEXT },
		{ "scope", "SCOPE", COLUMN_TEXT }, { "durability", "KEPT BY", COLUMN_TEXT },
		{ "live", "LIVE", COLUMN_BYTES }, { "mapped", "MAPPED", COLUMN_BYTES },
		{ "copies", "REPLICAS", COLUMN_TEXT }, { "processes", "SERVER", COLUMN_TEXT },
		{ "donor", "DONOR", COLUMN_TEXT },
		{ NULL },
	};

	for (size_t i = 0; rows && i < json_object_array_length(rows); i++)
		put_summary(json_object_array_get_idx(rows, i));

	output_table(rows, columns, "no devices; see \"ebbctl device create\"");
	for (size_t i = 0; rows && i < json_object_array_length(rows); i++)
		print_all_stuck(json_object_array_get_idx(rows, i));
}
