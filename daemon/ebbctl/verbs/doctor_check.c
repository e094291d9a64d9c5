// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdio.h>

#include "doctor_check.h"
#include "lib/base/json.h"

static const char *const states[] = {
	[HAVE] = "have", [MISSING] = "MISSING", [DEGRADED] = "degraded", [NOTE] = "note",
};

void doctor_add(struct doctor *d, enum verdict v, const char *name, const char *remedy,
		const char *found, ...)
{
	struct json_object *o = json_object_new_object();
	char text[512];
	va_list ap;

	va_start(ap, found);
	vsnprintf(text, sizeof(text), found, ap);
	va_end(ap);
	json_add_text(o, "name", name);
	json_add_text(o, "state", states[v]);
	json_add_text(o, "found", text);
	json_add_text(o, "remedy", v == HAVE ? NULL : remedy);
	json_object_array_add(d->checks, o);
	d->missing += v == MISSING;
}
