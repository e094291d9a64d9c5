// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files.h"
#include "machine.h"

/* "MemTotal:       24691084 kB" at the start of a line, in bytes; false without it. */
static bool field(const char *text, const char *name, uint64_t *bytes)
{
	size_t len = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, len) && line[len] == ':') {
			*bytes = strtoull(line + len + 1, NULL, 10) << 10;
			return true;
		}
	}
	return false;
}

int machine_parse(const char *meminfo, const char *pressure, struct headroom_sample *sample)
{
	const char *some = pressure ? strstr(pressure, "some avg10=") : NULL;

	if (!field(meminfo, "MemTotal", &sample->memory) ||
	    !field(meminfo, "MemAvailable", &sample->available))
		return -EBADMSG;
	sample->pressure = some ? strtod(some + strlen("some avg10="), NULL) : 0;
	if (sample->available > sample->memory)
		sample->available = sample->memory;
	return 0;
}

int machine_sample(const char *directory, struct headroom_sample *sample, struct error *e)
{
	/* MemTotal and MemAvailable are two of the first three lines. */
	char meminfo[1024], pressure[256], path[PATH_MAX];
	ssize_t n;
	int r;

	snprintf(path, sizeof(path), "%s/pressure/memory", directory);
	file_read(path, pressure, sizeof(pressure));
	snprintf(path, sizeof(path), "%s/meminfo", directory);
	n = file_read(path, meminfo, sizeof(meminfo));
	r = n < 0 ? (int)n : machine_parse(meminfo, pressure, sample);
	return r ? fail(e, r, "%s: %s; lend a fixed --memory instead", path,
			r == -EBADMSG ? "no MemTotal and MemAvailable" : strerror(-r)) : 0;
}
