// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "systemd.h"

#define WAIT_USEC 5000000
#define WAIT_MS 5000
#define ABOVE_STDERR 3
#define MANAGER "org.freedesktop.systemd1"
#define MANAGER_PATH "/org/freedesktop/systemd1"

/* Skips flushing, which would wait for a bus that is not there yet; all calls are answered. */
static void bus_close(sd_bus **bus) { sd_bus_close_unref(*bus); }
static void bus_message_free(sd_bus_message **m) { sd_bus_message_unref(*m); }

/* Bounds the handshake: sd-bus would wait 90 s in any call for a bus that never answers. */
static int greeted(sd_bus *bus)
{
	uint64_t now = now_ns() / 1000, end = now + WAIT_USEC;
	int r = sd_bus_is_ready(bus);

	for (; !r && now < end; now = now_ns() / 1000) {
		r = sd_bus_process(bus, NULL);
		if (!r)
			r = sd_bus_wait(bus, end - now);
		if (r >= 0)
			r = sd_bus_is_ready(bus);
	}
	return r < 0 ? r : r ? 0 : -ETIMEDOUT;
}

/*
 * Opens a connection whose calls time out, and completes the handshake.  Returns 0 or -errno:
 * -EOPNOTSUPP if systemd does not run, -ETIMEDOUT if the bus accepts connections and never
 * answers.  The caller owns *@bus even after an error.
 */
static int bus_open(sd_bus **bus)
{
	int r;

	if (sd_booted() <= 0)
		return -EOPNOTSUPP;
	r = sd_bus_open_system(bus);
	if (r >= 0)
		r = greeted(*bus);
	if (r >= 0)
		r = sd_bus_set_method_call_timeout(*bus, WAIT_USEC);
	return r < 0 ? r : 0;
}

/* Finds the cgroup of @pid in the v2 hierarchy. */
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

	/* A daemon: systemd-oomd(8) must not kill it, whatever is reclaimed in its cgroup. */
	if (r >= 0 && !limit)
		return sd_bus_message_append(m, "(sv)(sv)", "DefaultDependencies", "b", 0,
					     "ManagedOOMPreference", "s", "omit");
	if (r >= 0)
		r = sd_bus_message_append(m, "(sv)", "Delegate", "b", 1);
	if (r >= 0 && limit->memory_max)
		r = sd_bus_message_append(m, "(sv)", "MemoryMax", "t", limit->memory_max);
	return r;
}

int transient_scope(const char *unit, const pid_t *pids, int n, char *cgroup, size_t size,
		    const struct transient_limit *limit)
{
	_cleanup_(bus_close) sd_bus *bus = NULL;
	_cleanup_(bus_message_free) sd_bus_message *m = NULL;
	int r = bus_open(&bus);

	if (r >= 0)
		r = sd_bus_message_new_method_call(bus, &m, MANAGER, MANAGER_PATH,
						   MANAGER ".Manager", "StartTransientUnit");
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

/* Returns the D-Bus interface of units like @unit, or NULL: those have no cgroup. */
static const char *interface_of(const char *unit)
{
	static const struct { const char *type, *interface; } types[] = {
		{ ".slice", MANAGER ".Slice" }, { ".service", MANAGER ".Service" },
		{ ".scope", MANAGER ".Scope" }, { ".mount", MANAGER ".Mount" },
		{ ".socket", MANAGER ".Socket" }, { ".swap", MANAGER ".Swap" },
	};
	const char *type = strrchr(unit, '.');

	for (size_t i = 0; type && i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(type, types[i].type))
			return types[i].interface;
	return NULL;
}

/* Returns 0 if @cgroup is that of @unit.  A user may give a delegated cgroup any unit's name. */
static int owns_cgroup(sd_bus *bus, const char *unit, const char *interface, const char *cgroup)
{
	_cleanup_(bus_message_free) sd_bus_message *answer = NULL;
	_cleanup_free_ char *own = NULL;
	const char *path;
	int r = sd_bus_call_method(bus, MANAGER, MANAGER_PATH, MANAGER ".Manager", "GetUnit", NULL,
				   &answer, "s", unit);

	if (r >= 0)
		r = sd_bus_message_read(answer, "o", &path);
	if (r >= 0)
		r = sd_bus_get_property_string(bus, MANAGER, path, interface, "ControlGroup", NULL,
					       &own);
	if (r < 0)
		return r;
	return strcmp(own, cgroup) ? -ENOENT : 0;
}

int transient_swap_max(const char *cgroup, uint64_t bytes)
{
	const char *unit = strrchr(cgroup, '/') + 1, *interface = interface_of(unit);
	_cleanup_(bus_close) sd_bus *bus = NULL;
	int r = interface ? bus_open(&bus) : -ENOENT;

	if (r >= 0)
		r = owns_cgroup(bus, unit, interface, cgroup);
	if (r >= 0)
		r = sd_bus_call_method(bus, MANAGER, MANAGER_PATH, MANAGER ".Manager",
				       "SetUnitProperties", NULL, NULL, "sba(sv)", unit, 1, 1,
				       "MemorySwapMax", "t", bytes);
	return r < 0 ? r : 0;
}

/* Whether the unit that disables swap before the machine sleeps is enabled. */
static bool sleep_unit_enabled(sd_bus *bus)
{
	_cleanup_(bus_message_free) sd_bus_message *answer = NULL;
	const char *state = "";
	int r = sd_bus_call_method(bus, MANAGER, MANAGER_PATH, MANAGER ".Manager",
				   "GetUnitFileState", NULL, &answer, "s", "ebb-sleep.service");

	if (r >= 0)
		r = sd_bus_message_read(answer, "s", &state);
	return r >= 0 && !strncmp(state, "enabled", strlen("enabled"));
}

int sleep_lock_take(const char *device)
{
	_cleanup_(bus_close) sd_bus *bus = NULL;
	_cleanup_(bus_message_free) sd_bus_message *answer = NULL;
	char why[128];
	int fd, r;

	snprintf(why, sizeof(why), "swap of device %.64s is on, and its server would be frozen", device);
	r = bus_open(&bus);
	if (r >= 0 && sleep_unit_enabled(bus))
		return -EOPNOTSUPP;
	/* A closed lid (logind.conf(5)) overrides an inhibitor of "sleep" alone. */
	if (r >= 0)
		r = sd_bus_call_method(bus, "org.freedesktop.login1", "/org/freedesktop/login1",
				       "org.freedesktop.login1.Manager", "Inhibit", NULL, &answer,
				       "ssss", "sleep:handle-lid-switch", "ebb", why, "block");
	if (r >= 0)
		r = sd_bus_message_read(answer, "h", &fd);
	if (r < 0)
		return r;
	/* The message closes its own descriptor. */
	fd = fcntl(fd, F_DUPFD, ABOVE_STDERR);
	return fd < 0 ? -errno : fd;
}
