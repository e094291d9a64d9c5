// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>

#include "abort.h"
#include "ebbctl/process.h"
#include "kmoddev.h"
#include "lib/base/files.h"
#include "lib/base/privilege.h"
#include "teardown.h"
#include "ublkdev.h"

#define CONNECTIONS "/sys/fs/fuse/connections"

static int abort_fuse(unsigned int connection, struct error *e)
{
	char path[64];
	int r;

	snprintf(path, sizeof(path), CONNECTIONS "/%u/abort", connection);
	r = file_write(path, "1");
	/* systemd mounts it, others do not. */
	if (r == -ENOENT && mount("fusectl", CONNECTIONS, "fusectl", 0, NULL) == 0)
		r = file_write(path, "1");
	return r ? fail(e, r, "%s: %s; mount -t fusectl fusectl " CONNECTIONS, path, strerror(-r)) : 0;
}

static const char *const processes[] = { "ebb-standby", DEVICE_SERVER };

/* A server that a unit of systemd started mounts in a namespace that is its own. */
static bool find_connection(const char *name, unsigned int *connection)
{
	const char *mount = device_mount(name);
	bool found = device_mounted(0, mount, connection);

	for (int i = 0; !found && i < 2; i++) {
		pid_t pid = process_find(processes[i], "--mount", mount);

		found = pid && device_mounted(pid, mount, connection);
	}
	return found;
}

/* The kernel takes a device away from a server that is dead, not from one that hangs. */
static int abort_ublk(const char *name, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 20000000 };

	for (int i = 0, calm = 0; i < 200 && calm < 3; i++) {
		calm++;
		for (int j = 0; j < 2; j++) {
			pid_t pid = process_find(processes[j], "--mount", device_mount(name));

			if (pid) {
				kill(pid, SIGKILL);
				calm = 0;
			}
		}
		nanosleep(&tick, NULL);
	}
	return ublk_cut(name, e);
}

int device_abort(const char *name, enum abort_consent consent, unsigned int *connection,
		 struct error *e)
{
	struct device_record d;
	char ublk[64];
	bool is_ublk;
	int r;

	*connection = 0;
	r = device_name_check(name, e);
	if (!r)
		r = need_root("device abort", e);
	if (r)
		return r;
	if (!device_record_read(name, &d, NULL) && kmoddev_is(&d))
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: is the kernel module's, which has no server to hang: it gives up a donor that does not answer by itself",
				 name);
	is_ublk = !ublk_find(name, ublk, sizeof(ublk));
	if (!is_ublk && !find_connection(name, connection))
		return fail_exit(e, EXIT_USAGE, ENOENT,
				 "device %s: nothing is mounted at %s; see ebbctl device list", name,
				 device_mount(name));
	if (consent != ABORT_CONFIRMED)
		return fail_exit(e, EXIT_REFUSED, ECANCELED,
				 "device %s: abort makes every read of a page that is out there fail: programs that touch one get SIGBUS, and the kernel panics if that is PID 1; say --yes if that is better than waiting",
				 name);
	return is_ublk ? abort_ublk(name, e) : abort_fuse(*connection, e);
}
