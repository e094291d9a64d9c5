// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "backing.h"

/* Small, for threads with small stacks.  A longer path is cut to an outer cgroup's. */
#define PATH_BYTES 1024

/* Names of files and keys in each cgroup version. */
struct names {
	const char *root, *limit, *usage, *swap_limit, *swap_usage, *inactive, *active;
	bool with_memory;	/* the swap files count memory and swap together */
};

static const struct names v1 = {
	"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.limit_in_bytes",
	"memory.memsw.usage_in_bytes", "total_inactive_file ", "total_active_file ", true,
};
static const struct names v2 = {
	"", "memory.max", "memory.current", "memory.swap.max", "memory.swap.current",
	"inactive_file ", "active_file ", false,
};

static FILE *file_open(const char *directory, const char *name)
{
	char path[PATH_BYTES];

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
		return NULL;
	return fopen(path, "re");
}

/* Returns the number after @key at the beginning of a line, or @otherwise. */
static uint64_t number_after(const char *directory, const char *name, const char *key,
			     uint64_t otherwise)
{
	FILE *f = file_open(directory, name);
	uint64_t value = otherwise;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)) &&
		    sscanf(line + strlen(key), "%" SCNu64, &value) == 1)
			break;
	if (f)
		fclose(f);
	return value;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t rest(uint64_t limit, uint64_t usage)
{
	return limit > usage ? limit - usage : 0;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

/* Returns the bytes that one cgroup can still get; @swap: free swap of the machine. */
static uint64_t cgroup_left(const struct names *n, const char *directory, uint64_t swap)
{
	uint64_t limit = number_after(directory, n->limit, "", UINT64_MAX);
	uint64_t swap_limit = number_after(directory, n->swap_limit, "", UINT64_MAX);
	uint64_t swap_used, used, files;

	/* Most cgroups have no limit. */
	if (limit == UINT64_MAX && swap_limit == UINT64_MAX)
		return UINT64_MAX;
	used = number_after(directory, n->usage, "", 0);
	swap_used = number_after(directory, n->swap_usage, "", 0);
	/* The kernel reclaims file pages first. */
	files = number_after(directory, "memory.stat", n->inactive, 0) +
		number_after(directory, "memory.stat", n->active, 0);
	if (n->with_memory)
		return less(plus(plus(rest(limit, used), files), swap),
			    swap_limit == UINT64_MAX ? UINT64_MAX :
			    plus(rest(swap_limit, swap_used), files));
	if (limit == UINT64_MAX)
		return UINT64_MAX;
	return plus(plus(rest(limit, used), files), less(swap, rest(swap_limit, swap_used)));
}

/* Returns the bytes that a cgroup can still get within its own and its ancestors' limits. */
static uint64_t cgroups_left(const struct names *n, const char *cgroups, const char *cgroup,
			     uint64_t swap)
{
	size_t end = strlen(cgroups) + strlen(n->root);
	char directory[PATH_BYTES];
	uint64_t left = UINT64_MAX;

	(void)!snprintf(directory, sizeof(directory), "%s%s%s", cgroups, n->root, cgroup);
	for (;;) {
		char *slash;

		left = less(left, cgroup_left(n, directory, swap));
		slash = strrchr(directory, '/');
		if (!slash || (size_t)(slash - directory) < end)
			return left;
		*slash = '\0';
	}
}

uint64_t backing_left(const char *proc, const char *cgroups)
{
	uint64_t memory = number_after(proc, "meminfo", "MemAvailable:", UINT64_MAX >> 10);
	uint64_t swap = number_after(proc, "meminfo", "SwapFree:", 0) << 10;
	uint64_t left = memory == UINT64_MAX >> 10 ? UINT64_MAX : (memory << 10) + swap;
	FILE *f = file_open(proc, "self/cgroup");
	char line[PATH_BYTES];

	while (f && fgets(line, sizeof(line), f)) {
		char *path = line, *id = strsep(&path, ":"), *controllers = strsep(&path, ":");
		char *one;

		if (!path)
			continue;
		path[strcspn(path, "\n")] = '\0';
		if (!strcmp(id, "0") && !*controllers)
			left = less(left, cgroups_left(&v2, cgroups, path, swap));
		while ((one = strsep(&controllers, ",")))
			if (!strcmp(one, "memory"))
				left = less(left, cgroups_left(&v1, cgroups, path, swap));
	}
	if (f)
		fclose(f);
	return left;
}

bool backing_take(struct backing *b, uint64_t bytes)
{
	if (b->off)
		return true;
	if (bytes > b->bytes) {
		uint64_t left;
		int state;

		/* Reading files is a cancellation point, and the caller holds the heap's lock. */
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		left = rest(backing_left("/proc", "/sys/fs/cgroup"), BACKING_RESERVE + b->dropped);
		pthread_setcancelstate(state, NULL);
		b->bytes = less(left / BACKING_SHARE, BACKING_MOST);
		if (b->bytes < BACKING_STEP)
			b->bytes = less(left, BACKING_STEP);
		if (bytes > left)
			return false;
		if (bytes > b->bytes)
			b->bytes = bytes;
	}
	b->bytes -= bytes;
	return true;
}
