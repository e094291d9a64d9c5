// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * watch_donors CONFIG [GRACE_MS]: keeps the devices of EBB_RUN_DIR told which donors there are,
 * as ebbd does, without what ebbd needs of the machine.  A line on its input makes it
 * print what is known; "reload" reads CONFIG again; the end of its input ends it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbd/config.h"
#include "lib/discovery/discovery.h"

int main(int argc, char **argv)
{
	struct discovery *d = NULL;
	struct error e = { 0 };
	struct config c;
	char line[64];
	uint32_t grace_ms = argc > 2 ? (uint32_t)atoi(argv[2]) : DISCOVERY_GRACE_MS;

	etcd_global_init();
	config_defaults(&c);
	c.donors.grace_ms = grace_ms;
	if (argc < 2 || config_load(&c, argv[1], &e) || discovery_start(&d, &c.donors, &e)) {
		fprintf(stderr, "watch_donors: %s\n", e.text);
		return e.exit_status ? e.exit_status : 2;
	}
	while (fgets(line, sizeof(line), stdin)) {
		struct json_object *o;

		if (!strcmp(line, "reload\n")) {
			config_free(&c);
			config_defaults(&c);
			c.donors.grace_ms = grace_ms;
			if (config_load(&c, argv[1], &e) || discovery_configure(d, &c.donors, &e))
				fprintf(stderr, "watch_donors: %s\n", e.text);
			e = (struct error){ 0 };
		}
		o = discovery_json(d);
		printf("%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
		fflush(stdout);
		json_object_put(o);
	}
	discovery_stop(&d);
	config_free(&c);
	return 0;
}
