// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "create.h"
#include "destroy.h"
#include "ebbctl/run/process.h"
#include "ebbctl/text.h"
#include "ebbctl/verbs/verbs.h"
#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "swaps.h"
#include "teardown.h"
#include "ublkdev.h"

#define CONNECTIONS "/sys/fs/fuse/connections"
#define NS_PER_MS 1000000

struct destroy_options {
	bool json, force;
	uint64_t timeout;
};

struct abort_options {
	bool json, yes;
};

static int check(const char *name, const struct device_record *d, const struct swap_area *area,
		 struct error *e)
{
	char lost[16], ublk[64];

	/* That one has no server that could be gone. */
	if (kmoddev_is(d))
		return swaps_can_leave(name, area, e);
	if (!d->server_pid && area->used && !ublk_find(name, ublk, sizeof(ublk)))
		return fail_exit(e, EXIT_REFUSED, EIO,
				 "device %s: its server is gone and with it %s that are still out: programs wait where they touch them; ebbctl device abort %s, then destroy it",
				 name, size_format(area->used, lost, sizeof(lost)), name);
	/* The kernel cuts the FUSE connection of a server that ends: reads fail, they do not wait. */
	if (!d->server_pid && area->used)
		return fail_exit(e, EXIT_REFUSED, EIO,
				 "device %s: its server is gone and with it %s that are still out: programs get SIGBUS where they touch them; end them first, or --force",
				 name, size_format(area->used, lost, sizeof(lost)));
	return swaps_can_leave(name, area, e);
}

int device_destroy(const char *name, enum destroy_mode mode, int timeout_ms, struct error *e)
{
	const enum process_patience patience = mode == DESTROY_CLEANUP ? PATIENCE_TO_THE_END :
									 PATIENCE_UNTIL_INTERRUPTED;
	_cleanup_close_ int lock = -1;
	struct device_record d;
	struct swap_area area;
	int r;

	r = device_name_check(name, e);
	if (!r)
		r = need_root("device destroy", e);
	if (r)
		return r;
	process_defer_signals();
	lock = device_lock(patience, e);
	if (lock < 0)
		return lock;
	r = device_find(name, &d, e);
	if (r)
		return r;
	if (mode == DESTROY_POLITE && *d.block && !swaps_find(d.block, &area))
		r = check(name, &d, &area, e);
	return r ? r : device_teardown(&d, timeout_ms, patience, e);
}

static void print_destroyed(struct json_object *o)
{
	printf("device %s: gone\n", json_text(o, "name", ""));
}

static int run_destroy(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct destroy_options *d = options;
	uint64_t ms = d->timeout / NS_PER_MS;
	int r = device_destroy(argv[0], d->force ? DESTROY_FORCED : DESTROY_POLITE,
			       ms < INT_MAX ? (int)ms : INT_MAX, e);

	if (r)
		return r;
	json_add_text(o, "name", argv[0]);
	json_add_bool(o, "destroyed", true);
	output(d->json, o, print_destroyed);
	return 0;
}

static void print_aborted(struct json_object *o)
{
	printf("device %s: aborted; now: ebbctl device destroy %s --force\n",
	       json_text(o, "name", ""), json_text(o, "name", ""));
}

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

static int run_abort(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct abort_options *a = options;
	struct device_record d;
	unsigned int minor = 0;
	char ublk[64];
	bool is_ublk;
	int r;

	r = device_name_check(argv[0], e);
	if (!r)
		r = need_root("device abort", e);
	if (r)
		return r;
	if (!device_record_read(argv[0], &d, NULL) && kmoddev_is(&d))
		return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
				 "device %s: is the kernel module's, which has no server to hang: it gives up a donor that does not answer by itself",
				 argv[0]);
	is_ublk = !ublk_find(argv[0], ublk, sizeof(ublk));
	if (!is_ublk && !find_connection(argv[0], &minor))
		return fail_exit(e, EXIT_USAGE, ENOENT,
				 "device %s: nothing is mounted at %s; see ebbctl device list", argv[0],
				 device_mount(argv[0]));
	if (!a->yes)
		return fail_exit(e, EXIT_REFUSED, ECANCELED,
				 "device %s: abort makes every read of a page that is out there fail: programs that touch one get SIGBUS, and the kernel panics if that is PID 1; say --yes if that is better than waiting",
				 argv[0]);
	r = is_ublk ? abort_ublk(argv[0], e) : abort_fuse(minor, e);
	if (r)
		return r;
	json_add_text(o, "name", argv[0]);
	if (!is_ublk)
		json_add_int(o, "connection", minor);
	output(a->json, o, print_aborted);
	return 0;
}

static const struct option_spec destroy_specs[] = {
	OPTION(destroy_options, force, "force", OPTION_FLAG, NULL,
	       .help = "even if what is swapped out may not fit in memory"),
	OPTION(destroy_options, timeout, "timeout", OPTION_DURATION, "TIME",
	       .help = "how long taking swap off may take [60s]"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct option_spec abort_specs[] = {
	OPTION(abort_options, yes, "yes", OPTION_FLAG, NULL,
	       .help = "yes, programs may get SIGBUS"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct destroy_options destroy_defaults = {
	.timeout = (uint64_t)SWAPOFF_MS * NS_PER_MS,
};

const struct command command_device_destroy = {
	.object = "device", .action = "destroy", .arguments = "NAME",
	.help = "Takes swap off and removes the device and its leftovers",
	.options = destroy_specs, .options_size = sizeof(struct destroy_options),
	.defaults = &destroy_defaults, .run = run_destroy, .min_args = 1, .max_args = 1,
};

const struct command command_device_abort = {
	.object = "device", .action = "abort", .arguments = "NAME",
	.help = "Turns a hung device into one that answers with I/O errors",
	.options = abort_specs, .options_size = sizeof(struct abort_options), .run = run_abort,
	.min_args = 1, .max_args = 1,
};
