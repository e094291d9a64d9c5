// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
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

/* Longest wait for a swapoff that was told to stop. */
#define STOP_MS 5000

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

int swaps_on(const char *block, const char *label, int priority, struct error *e)
{
	const char *const mkswap[] = { "mkswap", "-L", label, block, NULL };
	/*
	 * The kernel discards freed slots asynchronously in clusters of 2 MiB, which
	 * releases memory at donors.  No discard at swapon(2): the device is empty.
	 */
	int flags = SWAP_FLAG_PREFER | (priority & SWAP_FLAG_PRIO_MASK) | SWAP_FLAG_DISCARD |
		    DISCARD_PAGES;
	int r = process_run(mkswap, NULL, 0, e);

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

static int is_tight(const char *dir, void *data)
{
	struct tight *t = data;
	struct cgroup_ref c;

	if (cgroup_memory_read(dir, &t->memory) || !t->memory.swapped ||
	    cgroup_resolve(dir, &c, NULL))
		return 0;
	t->limit = cgroup_limit(&c);
	snprintf(t->rel, sizeof(t->rel), "%.255s", c.rel);
	return t->memory.anon + t->memory.swapped > t->limit;
}

int swaps_can_leave(const char *device, const struct swap_area *area, struct error *e)
{
	struct swap_area areas[SWAPS_MAX];
	uint64_t available = memory_available(), elsewhere = 0;
	char used[16], free_memory[16], other[16];
	struct tight t;
	int n = swaps_read(areas);

	for (int i = 0; i < n; i++)
		if (strcmp(areas[i].path, area->path))
			elsewhere += areas[i].size - areas[i].used;
	size_format(area->used, used, sizeof(used));
	size_format(available, free_memory, sizeof(free_memory));
	size_format(elsewhere, other, sizeof(other));
	if (area->used > available + elsewhere)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "device %s: %s swapped out there, only %s of memory and %s of other swap free; end programs or use --force",
				 device, used, free_memory, other);
	if (!area->used || elsewhere >= area->used)
		return 0;
	if (!cgroup_each(is_tight, &t))
		return 0;
	size_format(t.memory.swapped, used, sizeof(used));
	size_format(t.memory.anon, free_memory, sizeof(free_memory));
	size_format(t.limit, other, sizeof(other));
	return fail_exit(e, EXIT_REFUSED, EBUSY,
			 "device %s: swapoff would invoke the OOM killer in cgroup %s (%s swapped out, %s resident, limit %s); end its programs, raise its limit, or use --force",
			 device, t.rel, used, free_memory, other);
}

/*
 * EINVAL means that the swap is off, or that another swapoff(2) still reads pages back:
 * systemd's at shutdown, which makes a swap unit for every line of /proc/swaps.  The area
 * is listed until that ends, and the server must keep running.
 */
static int off_in_child(const char *block)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	struct swap_area area;

	/* ebbctl handles ^C. */
	setsid();
	/* A hung child must not hold the lock and the pipes of ebbctl. */
	close_range(0, ~0u, 0);
	while (swapoff(block) < 0) {
		if (errno != EINVAL)
			_exit(errno);
		if (swaps_find(block, &area) == -ENOENT)
			break;
		nanosleep(&tick, NULL);
	}
	_exit(0);
}

int swaps_off(const char *device, const char *block, int timeout_ms,
	      enum process_patience patience, struct error *e)
{
	_cleanup_close_ int fd = -1;
	struct swap_area area = { .used = 0 };
	struct pollfd p = { .events = POLLIN };
	char left[16];
	int status, r;
	pid_t pid = fork();

	if (pid == 0)
		off_in_child(block);
	fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	if (fd < 0)
		return fail(e, errno, "device %s: swapoff: %s", device, strerror(errno));
	r = process_wait(fd, timeout_ms, patience);
	if (!r) {
		waitpid(pid, &status, 0);
		if (WIFEXITED(status) && !WEXITSTATUS(status))
			return 0;
		return fail(e, WIFEXITED(status) ? WEXITSTATUS(status) : EINTR,
			    "device %s: swapoff: %s; the device still works", device,
			    WIFEXITED(status) ? strerror(WEXITSTATUS(status)) : "killed");
	}
	swaps_find(block, &area);
	size_format(area.used, left, sizeof(left));
	/* swapoff(2) checks for signals between pages, and leaves swap on. */
	kill(pid, SIGKILL);
	p.fd = fd;
	if (poll(&p, 1, STOP_MS) > 0) {
		waitpid(pid, NULL, 0);
		if (r == -EINTR)
			return fail(e, r, "device %s: interrupted with %s still swapped out; the device still works",
				    device, left);
		return fail(e, ETIMEDOUT,
			    "device %s: swapoff not done after %d s, %s still swapped out; the device still works, try again with a longer --timeout",
			    device, timeout_ms / 1000, left);
	}
	return fail(e, ETIMEDOUT,
		    "device %s: swapoff hangs (process %d, %s still swapped out): ebb-swapd or a donor is unresponsive; do NOT stop ebb-swapd, see \"ebbctl device list\", last resort \"ebbctl device abort %s\"",
		    device, pid, left, device);
}
