// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup_memory.h"
#include "lib/base/files.h"

#define STAT_BYTES 8192

/* Returns the number after @key at the start of a line of @text, or 0; sets *@found. */
static uint64_t stat_value(const char *text, const char *key, int *found)
{
	size_t n = strlen(key);

	for (const char *line = text; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, n) && line[n] == ' ') {
			*found = 1;
			return strtoull(line + n, NULL, 10);
		}
	}
	return 0;
}

static uint64_t file_value(const char *dir, const char *name)
{
	char path[PATH_MAX + 32];
	int64_t v;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	v = file_number(path, 0);
	return v > 0 ? (uint64_t)v : 0;
}

int cgroup_memory_read(const char *dir, struct cgroup_memory *m)
{
	char path[PATH_MAX + 32], text[STAT_BYTES];
	uint64_t cached, on_swap;
	int v1 = 0, any = 0;
	ssize_t n;

	*m = (struct cgroup_memory){ 0 };
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	n = file_read(path, text, sizeof(text));
	if (n < 0)
		return (int)n;
	m->anon = stat_value(text, "total_rss", &v1);
	if (v1) {
		m->mapped = stat_value(text, "total_mapped_file", &any);
		m->swapped = stat_value(text, "total_swap", &any);
		m->kernel = file_value(dir, "memory.kmem.usage_in_bytes");
		return 0;
	}
	m->anon = stat_value(text, "anon", &any);
	m->mapped = stat_value(text, "file_mapped", &any);
	m->kernel = stat_value(text, "kernel", &any);
	/* Version 2 also counts a page that was swapped in while its slot is kept. */
	cached = stat_value(text, "swapcached", &any);
	on_swap = file_value(dir, "memory.swap.current");
	m->swapped = on_swap > cached ? on_swap - cached : 0;
	return 0;
}
