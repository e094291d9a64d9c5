// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/bytes.h"
#include "lib/base/files.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "machine.h"

/* Sets *@bytes from a line like "MemTotal:       24691084 kB"; false without one. */
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

	*sample = (struct headroom_sample){ .limited = false };
	if (!field(meminfo, "MemTotal", &sample->memory) ||
	    !field(meminfo, "MemAvailable", &sample->available))
		return -EBADMSG;
	sample->pressure = some ? strtod(some + strlen("some avg10="), NULL) : 0;
	if (sample->available > sample->memory)
		sample->available = sample->memory;
	return 0;
}

/* --- cgroups -------------------------------------------------------------------- */

/* PAGE_COUNTER_MAX in bytes: no limit, with version 1. */
#define V1_UNLIMITED ((uint64_t)INT64_MAX & ~(uint64_t)0xffff)

static bool has_memory(const char *controllers, size_t len)
{
	for (const char *c = controllers; c < controllers + len; c += strcspn(c, ",:") + 1)
		if (!strncmp(c, "memory", 6) && (c[6] == ',' || c[6] == ':'))
			return true;
	return false;
}

/* Finds this process's path: from "0::/PATH", or from version 1's "4:memory:/PATH". */
static bool find_path(char *text, bool v2, const char **path)
{
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *controllers = strchr(line, ':'), *end;

		end = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!end || end[1] != '/')
			continue;
		if (v2 ? !strncmp(line, "0::", 3) :
			 has_memory(controllers + 1, (size_t)(end - controllers - 1))) {
			*path = end + 1;
			return true;
		}
	}
	return false;
}

void machine_find(struct machine *m, const char *directory)
{
	char path[PATH_MAX], self[PATH_MAX], text[4096];
	const char *mount = path, *rel;
	bool v2;

	*m = (struct machine){ .directory = directory };
	if (strcmp(directory, "/proc")) {
		snprintf(text, sizeof(text), "%s/cgroup/cgroup.controllers", directory);
		v2 = access(text, F_OK) == 0;
		snprintf(path, sizeof(path), "%s/cgroup", directory);
	} else {
		mount = cgroup_memory_mount(&v2);
	}
	snprintf(self, sizeof(self), "%s/self/cgroup", directory);
	if (!mount || file_read(self, text, sizeof(text)) <= 0 || !find_path(text, v2, &rel))
		return;
	m->v2 = v2;
	m->top = strlen(mount);
	if ((size_t)snprintf(m->cgroup, sizeof(m->cgroup), "%s%s", mount, strcmp(rel, "/") ? rel : "") >=
	    sizeof(m->cgroup))
		*m->cgroup = '\0';
}

/* Uses boot_id: /etc/machine-id differs in each container, and disk images share it. */
uint32_t machine_number(const struct machine *m)
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	char path[PATH_MAX], text[64];
	ssize_t n;

	snprintf(path, sizeof(path), "%s/sys/kernel/random/boot_id", m->directory);
	n = file_read(path, text, sizeof(text));
	/* Borrowers get a part of its digest only. */
	if (n <= 0 || !EVP_Digest(text, (size_t)n, digest, NULL, EVP_sha256(), NULL))
		return 0;
	return get32(digest) ?: 1;
}

/* Returns the bytes in @dir/@file; UINT64_MAX without a limit or a file. */
static uint64_t number(const char *dir, const char *file)
{
	char path[PATH_MAX], text[64];
	uint64_t v;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (file_read(path, text, sizeof(text)) <= 0 || *text < '0' || *text > '9')
		return UINT64_MAX;
	v = strtoull(text, NULL, 10);
	return v >= V1_UNLIMITED ? UINT64_MAX : v;
}

/* Returns bytes of page cache, which reclaim frees on demand. */
static uint64_t cached(const char *dir, bool v2)
{
	static const char *const names[2][2] = { { "\ntotal_active_file ", "\ntotal_inactive_file " },
						 { "\nactive_file ", "\ninactive_file " } };
	char path[PATH_MAX], text[8192];
	uint64_t sum = 0;

	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	if (file_read(path, text, sizeof(text)) <= 0)
		return 0;
	for (int i = 0; i < 2; i++) {
		const char *at = strstr(text, names[v2][i]);

		sum += at ? strtoull(at + strlen(names[v2][i]), NULL, 10) : 0;
	}
	return sum;
}

/* Takes the limits of this process's cgroup and of those above it into account. */
static void sample_cgroups(const struct machine *m, struct headroom_sample *sample)
{
	char dir[sizeof(m->cgroup)];

	strcpy(dir, m->cgroup);
	while (strlen(dir) > m->top) {
		uint64_t limit = number(dir, m->v2 ? "memory.max" : "memory.limit_in_bytes");
		uint64_t high = m->v2 ? number(dir, "memory.high") : UINT64_MAX;
		uint64_t used, cache, left;

		/* Above "high" the kernel throttles the process. */
		limit = high < limit ? high : limit;
		if (limit != UINT64_MAX) {
			used = number(dir, m->v2 ? "memory.current" : "memory.usage_in_bytes");
			used = used == UINT64_MAX ? 0 : used;
			cache = cached(dir, m->v2);
			used -= cache < used ? cache : used;
			left = used < limit ? limit - used : 0;
			sample->own = !sample->limited || left < sample->own ? left : sample->own;
			sample->limit = !sample->limited || limit < sample->limit ? limit :
										    sample->limit;
			sample->limited = true;
		}
		*strrchr(dir, '/') = '\0';
	}
}

int machine_sample(const struct machine *m, struct headroom_sample *sample, struct error *e)
{
	/* MemTotal and MemAvailable are two of the first three lines. */
	char meminfo[1024], pressure[256], path[PATH_MAX];
	ssize_t n;
	int r;

	snprintf(path, sizeof(path), "%s/pressure/memory", m->directory);
	file_read(path, pressure, sizeof(pressure));
	snprintf(path, sizeof(path), "%s/meminfo", m->directory);
	n = file_read(path, meminfo, sizeof(meminfo));
	r = n < 0 ? (int)n : machine_parse(meminfo, pressure, sample);
	if (r)
		return fail(e, r, "%s: %s; lend a fixed --memory instead", path,
			    r == -EBADMSG ? "no MemTotal and MemAvailable" : strerror(-r));
	sample_cgroups(m, sample);
	return 0;
}
