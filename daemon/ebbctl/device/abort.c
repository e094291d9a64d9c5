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
	/* Only systemd mounts fusectl at boot. */
	if (r == -ENOENT && mount("fusectl", CONNECTIONS, "fusectl", 0, NULL) == 0)
		r = file_write(path, "1");
	return r ? fail(e, r, "%s: %s; mount -t fusectl fusectl " CONNECTIONS, path, strerror(-r)) : 0;
}

static const char *const processes[] = { "ebb-standby", DEVICE_SERVER };

/* A server in a systemd unit mounts in its own mount namespace. */
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

/* The kernel ends a ublk device only after its server died, so kill a hung server first. */
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
	struct error unknown = { 0 };
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
	if (!device_record_read(name, &d, &unknown) && kmoddev_is(&d))
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: cannot abort a kernel-module device; the module itself gives up unresponsive donors",
				 name);
	is_ublk = !ublk_find(name, ublk, sizeof(ublk));
	if (!is_ublk && !find_connection(name, connection) && unknown.code == -ENOENT &&
	    !device_server(name))
		return fail_exit(e, unknown.exit_status, ENOENT, "%s", unknown.text);
	if (!is_ublk && !*connection)
		return fail_exit(e, EXIT_USAGE, ENOENT,
				 "device %s: nothing is mounted at %s; see \"ebbctl device list\"", name,
				 device_mount(name));
	if (consent != ABORT_CONFIRMED)
		return fail_exit(e, EXIT_REFUSED, ECANCELED,
				 "device %s: abort fails every read of a swapped-out page: programs that access one get SIGBUS, and the kernel panics if PID 1 does; pass --yes to confirm",
				 name);
	return is_ublk ? abort_ublk(name, e) : abort_fuse(*connection, e);
}
