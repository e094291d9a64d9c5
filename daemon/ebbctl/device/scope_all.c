// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/control/device.h"
#include "lib/host/scope.h"
#include "scope_all.h"

static int apply_one(const struct device_record *d, void *extra)
{
	struct error e = { 0 };

	if (strcmp(d->scope, "attached"))
		return 0;
	if (geteuid())
		fprintf(stderr, "ebbctl: warning: device %s: --scope attached needs root, limits of cgroups are unchanged; run the command as root\n",
			d->name);
	else if (scope_apply(d->name, extra, SCOPE_COMMAND, &e))
		fprintf(stderr, "ebbctl: %s\n", e.text);
	return 0;
}

void scope_apply_all(const char *extra)
{
	device_record_each(apply_one, (void *)extra);
}
