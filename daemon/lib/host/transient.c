// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bus.h"
#include "lib/base/files.h"
#include "transient.h"

#define WAIT_MS 5000

/* The cgroup of @pid in the v2 hierarchy. */
static int unified_cgroup(pid_t pid, char *cgroup, size_t size)
{
	char path[64], text[4096], *line;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	if (file_read(path, text, sizeof(text)) <= 0)
		return -ESRCH;
	line = !strncmp(text, "0::", 3) ? text : strstr(text, "\n0::");
	if (!line)
		return -ENOENT;
	line = strstr(line, "0::") + 3;
	line[strcspn(line, "\n")] = '\0';
	snprintf(cgroup, size, "%s", line);
	return 0;
}

/* The job is done when the process is in the scope: no signal match to miss. */
static int wait_for_scope(const char *unit, pid_t pid, char *cgroup, size_t size)
{
	const struct timespec tick = { .tv_nsec = 5000000 };
	char where[4096];
	int r;

	for (int ms = 0; ms < WAIT_MS; ms += 5) {
		r = unified_cgroup(pid, where, sizeof(where));
		if (r)
			return r;
		if (strstr(where, unit)) {
			if (cgroup)
				snprintf(cgroup, size, "%s", where);
			return 0;
		}
		nanosleep(&tick, NULL);
	}
	return -ETIMEDOUT;
}

/* ("PIDs", <au>) */
static int add_pids(sd_bus_message *m, const pid_t *pids, int n)
{
	int r = sd_bus_message_open_container(m, 'r', "sv");

	if (r >= 0)
		r = sd_bus_message_append(m, "s", "PIDs");
	if (r >= 0)
		r = sd_bus_message_open_container(m, 'v', "au");
	if (r >= 0)
		r = sd_bus_message_append_array(m, 'u', pids, n * sizeof(*pids));
	if (r >= 0)
		r = sd_bus_message_close_container(m);
	return r >= 0 ? sd_bus_message_close_container(m) : r;
}

static int add_properties(sd_bus_message *m, const struct transient_limit *limit)
{
	int r = sd_bus_message_append(m, "(sv)", "CollectMode", "s", "inactive-or-failed");

	if (r >= 0 && !limit)
		return sd_bus_message_append(m, "(sv)", "DefaultDependencies", "b", 0);
	if (r >= 0)
		r = sd_bus_message_append(m, "(sv)", "Delegate", "b", 1);
	if (r >= 0 && limit->memory_max)
		r = sd_bus_message_append(m, "(sv)", "MemoryMax", "t", limit->memory_max);
	return r;
}

int transient_scope(const char *unit, const pid_t *pids, int n, char *cgroup, size_t size,
		    const struct transient_limit *limit)
{
	__attribute__((cleanup(bus_close))) sd_bus *bus = NULL;
	__attribute__((cleanup(bus_message_free))) sd_bus_message *m = NULL;
	int r = bus_open(&bus);

	if (r >= 0)
		r = sd_bus_message_new_method_call(bus, &m, "org.freedesktop.systemd1",
						   "/org/freedesktop/systemd1",
						   "org.freedesktop.systemd1.Manager",
						   "StartTransientUnit");
	if (r >= 0)
		r = sd_bus_message_append(m, "ss", unit, "fail");
	if (r >= 0)
		r = sd_bus_message_open_container(m, 'a', "(sv)");
	if (r >= 0)
		r = add_pids(m, pids, n);
	if (r >= 0)
		r = add_properties(m, limit);
	if (r >= 0)
		r = sd_bus_message_close_container(m);
	if (r >= 0)
		r = sd_bus_message_append(m, "a(sa(sv))", 0);
	if (r >= 0)
		r = sd_bus_call(bus, m, 0, NULL, NULL);
	r = r < 0 ? r : 0;
	for (int i = 0; !r && i < n; i++)
		r = wait_for_scope(unit, pids[i], cgroup, size);
	return r;
}

int transient_swap_max(const char *unit, uint64_t bytes)
{
	__attribute__((cleanup(bus_close))) sd_bus *bus = NULL;
	int r = bus_open(&bus);

	if (r >= 0)
		r = sd_bus_call_method(bus, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
				       "org.freedesktop.systemd1.Manager", "SetUnitProperties", NULL,
				       NULL, "sba(sv)", unit, 1, 1, "MemorySwapMax", "t", bytes);
	return r < 0 ? r : 0;
}
