// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/process_run.h"
#include "lib/base/size.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "swaps.h"

#ifndef SWAP_FLAG_DISCARD
#define SWAP_FLAG_DISCARD 0x10000 /* linux/swap.h, not exported */
#endif
#define DISCARD_PAGES 0x40000     /* SWAP_FLAG_DISCARD_PAGES in linux/swap.h */

/*
 * Swap that was switched on in a mount namespace that no longer exists (a unit's) is
 * listed by its path below the mount of device nodes only: "/ebb0".
 */
static void find_node(struct swap_area *a, const char *type)
{
	char path[sizeof(a->path)];
	struct stat st;

	if (strcmp(type, "partition") || access(a->path, F_OK) == 0 ||
	    snprintf(path, sizeof(path), "/dev%s", a->path) >= (int)sizeof(path))
		return;
	if (stat(path, &st) == 0 && S_ISBLK(st.st_mode))
		strcpy(a->path, path);
}

int swaps_read(struct swap_area *areas)
{
	_cleanup_file_ FILE *f = fopen("/proc/swaps", "re");
	unsigned long long size, used;
	char line[512], type[32];
	int n = 0;

	if (!f)
		return errno == ENOENT ? 0 : -errno;
	while (n < SWAPS_MAX && fgets(line, sizeof(line), f)) {
		struct swap_area *a = &areas[n];

		if (sscanf(line, "%255s %31s %llu %llu %d", a->path, type, &size, &used,
			   &a->priority) != 5)
			continue;
		a->size = size << 10;
		a->used = used << 10;
		find_node(a, type);
		n++;
	}
	return n;
}

int swaps_find(const char *path, struct swap_area *area)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas);

	for (int i = 0; i < n; i++)
		if (!strcmp(areas[i].path, path)) {
			*area = areas[i];
			return 0;
		}
	return n < 0 ? n : -ENOENT;
}

int swaps_top_priority(void)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas), top = INT_MIN;

	for (int i = 0; i < n; i++)
		top = areas[i].priority > top ? areas[i].priority : top;
	return top;
}

int swaps_on(const char *name, const char *block, int priority, struct error *e)
{
	char label[48];
	const char *const mkswap[] = { "mkswap", "-L", label, block, NULL };
	/*
	 * The kernel discards freed slots asynchronously in clusters of 2 MiB, which
	 * releases memory at donors.  No discard at swapon(2): the device is empty.
	 */
	int flags = SWAP_FLAG_PREFER | (priority & SWAP_FLAG_PRIO_MASK) | SWAP_FLAG_DISCARD |
		    DISCARD_PAGES;
	int r;

	snprintf(label, sizeof(label), "ebb-%.11s", name); /* 16 bytes in the header */
	r = process_run(mkswap, NULL, 0, e);
	if (r)
		return r;
	return swapon(block, flags) < 0 ? fail(e, errno, "%s: swapon: %s", block, strerror(errno)) : 0;
}

uint64_t memory_available(void)
{
	char text[4096], *p;

	file_read("/proc/meminfo", text, sizeof(text));
	p = strstr(text, "MemAvailable:");
	return p ? strtoull(p + strlen("MemAvailable:"), NULL, 10) << 10 : 0;
}

/* A cgroup whose swapped-out pages do not fit into its limit. */
struct tight {
	char rel[256];
	struct cgroup_memory memory;
	uint64_t limit;
};

/* What only other swap could take. */
static uint64_t resident(const struct cgroup_memory *m)
{
	return m->anon + m->shared;
}

static int is_tight(const char *dir, void *data)
{
	struct tight *t = data;
	struct cgroup_ref c;

	if (cgroup_memory_read(dir, &t->memory) || !t->memory.swapped ||
	    cgroup_resolve(dir, &c, NULL))
		return 0;
	t->limit = cgroup_limit(&c);
	snprintf(t->rel, sizeof(t->rel), "%.255s", c.rel);
	return resident(&t->memory) + t->memory.swapped > t->limit;
}

static bool is_among(const struct swap_area *areas, int n, const char *path)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(areas[i].path, path))
			return true;
	return false;
}

int swaps_can_leave(const char *devices, const struct swap_area *leaving, int n,
		    const char *otherwise, struct error *e)
{
	struct swap_area areas[SWAPS_MAX];
	uint64_t available = memory_available(), elsewhere = 0, pages = 0;
	char used[16], free_memory[16], other[16];
	const char *s = n > 1 ? "s" : "";
	struct tight t;
	int all = swaps_read(areas);

	for (int i = 0; i < n; i++)
		pages += leaving[i].used;
	for (int i = 0; i < all; i++)
		if (!is_among(leaving, n, areas[i].path))
			elsewhere += areas[i].size - areas[i].used;
	size_format(pages, used, sizeof(used));
	size_format(available, free_memory, sizeof(free_memory));
	size_format(elsewhere, other, sizeof(other));
	if (pages > available + elsewhere)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "device%s %s: %s swapped out there, only %s of memory and %s of other swap free; end programs, or %s",
				 s, devices, used, free_memory, other, otherwise);
	if (!pages || elsewhere >= pages)
		return 0;
	if (cgroup_each(is_tight, &t) != 1)
		return 0;
	size_format(t.memory.swapped, used, sizeof(used));
	size_format(resident(&t.memory), free_memory, sizeof(free_memory));
	size_format(t.limit, other, sizeof(other));
	return fail_exit(e, EXIT_REFUSED, EBUSY,
			 "device%s %s: swapoff would invoke the OOM killer in cgroup %s (%s swapped out, %s resident, limit %s); end its programs, raise its limit, or %s",
			 s, devices, t.rel, used, free_memory, other, otherwise);
}
