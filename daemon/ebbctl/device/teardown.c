// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/host/scope.h"
#include "loopdev.h"
#include "swaps.h"
#include "teardown.h"
#include "ublkdev.h"

/* After swapoff, ebb-swapd only unmaps its slabs. */
#define SERVER_END_MS 15000
#define SERVER_ASK_MS 1000
#define SERVER_MS 1000
#define UMOUNT_MS 2000

const char *device_mount(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/mnt/%s", ebb_run_dir(), name);
	return path;
}

const char *device_log(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s.log", ebb_device_dir(), name);
	return path;
}

const char *device_intent(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s.partial", ebb_device_dir(), name);
	return path;
}

int device_lock(enum process_patience patience, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	int r = file_make_dirs(ebb_device_dir(), 0755);

	if (r)
		return fail(e, r, "%s: cannot create: %s; run as root", ebb_device_dir(), strerror(-r));
	snprintf(path, sizeof(path), "%s/lock", ebb_device_dir());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(e, errno, "%s: %s; run as root", path, strerror(errno));
	/* Another ebbctl may hold the lock for minutes, and signals are deferred. */
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return fail(e, errno, "%s: %s", path, strerror(errno));
		if (patience == PATIENCE_UNTIL_INTERRUPTED && process_interrupted())
			return fail(e, EINTR,
				    "devices: interrupted while another ebbctl changes devices; try again");
		nanosleep(&tick, NULL);
	}
	return TAKE_FD(fd);
}

bool device_mounted(pid_t pid, const char *mount, unsigned int *minor)
{
	_cleanup_file_ FILE *f = NULL;
	char line[2 * PATH_MAX], point[PATH_MAX];
	unsigned int major_of, minor_of;

	snprintf(line, sizeof(line), "/proc/%d/mountinfo", pid ?: getpid());
	f = fopen(line, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*d %*d %u:%u %*s %4095s", &major_of, &minor_of, point) == 3 &&
		    !strcmp(point, mount)) {
			if (minor)
				*minor = minor_of;
			return true;
		}
	return false;
}

static int read_intent(const char *name, struct device_record *d)
{
	struct json_object *o;
	char text[4 * PATH_MAX];

	if (file_read(device_intent(name), text, sizeof(text)) <= 0)
		return -ENOENT;
	o = json_tokener_parse(text);
	snprintf(d->backup, sizeof(d->backup), "%s", json_text(o, "backup", ""));
	snprintf(d->scope, sizeof(d->scope), "%s", json_text(o, "scope", ""));
	snprintf(d->frontend, sizeof(d->frontend), "%s", json_text(o, "frontend", ""));
	/* The intent names only kernel-module block devices. */
	if (kmoddev_is(d))
		snprintf(d->block, sizeof(d->block), "%s", json_text(o, "block", ""));
	d->size = json_int(o, "size", 0);
	d->priority = (int)json_int(o, "priority", 0);
	json_object_put(o);
	return 0;
}

static int is_trace(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return dot && (!strcmp(dot, ".json") || !strcmp(dot, ".partial"));
}

int device_each(int (*each)(const char *name, void *data), void *data)
{
	struct dirent **entries;
	char last[DEVICE_NAME_MAX] = "";
	int n = scandir(ebb_device_dir(), &entries, is_trace, alphasort), r = 0;

	for (int i = 0; i < n; i++) {
		char *name = entries[i]->d_name;

		*strrchr(name, '.') = '\0';
		if (!r && strcmp(name, last))
			r = each(name, data);
		snprintf(last, sizeof(last), "%.31s", name);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	return r;
}

pid_t device_server(const char *name)
{
	_cleanup_json_ struct json_object *answer =
		control_ask(ebb_device_socket(name), "status", SERVER_MS);
	pid_t pid = answer ? (pid_t)json_int(answer, "pid", 0) : 0;

	return pid ? pid : process_find(DEVICE_SERVER, "--mount", device_mount(name));
}

int device_find(const char *name, struct device_record *d, struct error *e)
{
	bool found = false;
	int r = device_name_check(name, e);

	if (r)
		return r;
	*d = (struct device_record){ .size = 0 };
	if (!device_record_read(name, d, NULL))
		found = true;
	else
		found = access(ebb_device_record(name), F_OK) == 0;
	found |= !read_intent(name, d);
	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->mount, sizeof(d->mount), "%s", device_mount(name));
	d->server_pid = device_server(name);
	found |= d->server_pid > 0;
	found |= device_mounted(0, d->mount, NULL);
	/* The recorded pid may belong to another process by now. */
	if (!kmoddev_is(d) || !kmoddev_there(d))
		d->block[0] = '\0';
	if (!*d->block && ublk_find(name, d->block, sizeof(d->block)))
		loop_find(d->mount, d->block, sizeof(d->block));
	found |= d->block[0];
	return found ? 0 : fail_exit(e, EXIT_USAGE, ENOENT,
				     "device %s: no such device; see \"ebbctl device list\"",
				     name);
}

static int unmount(const char *mount, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	int ms;

	for (ms = 0; device_mounted(0, mount, NULL) && ms < UMOUNT_MS; ms += 20) {
		if (umount2(mount, UMOUNT_NOFOLLOW) == 0)
			continue;
		if (errno != EBUSY)
			return fail(e, errno, "%s: cannot unmount: %s", mount, strerror(errno));
		nanosleep(&tick, NULL);
	}
	if (ms >= UMOUNT_MS && umount2(mount, MNT_DETACH) < 0)
		return fail(e, errno, "%s: cannot unmount: %s", mount, strerror(errno));
	return rmdir(mount) < 0 && errno != ENOENT ?
	       fail(e, errno, "%s: cannot remove: %s", mount, strerror(errno)) : 0;
}

static int remove_files(const struct device_record *d, struct error *e)
{
	int r;

	if (*d->backup && !kmoddev_is(d) && unlink(d->backup) < 0 && errno != ENOENT)
		return fail(e, errno, "backup %s: cannot remove: %s", d->backup, strerror(errno));
	unlink(device_log(d->name));
	unlink(ebb_device_socket(d->name));
	r = device_record_remove(d->name);
	if (!r && unlink(device_intent(d->name)) < 0 && errno != ENOENT)
		r = -errno;
	return r ? fail(e, r, "device %s: cannot remove record: %s", d->name, strerror(-r)) : 0;
}

/* ebb-swapd tries once per signal, and cannot while another process has the loop device open. */
static int end_server(pid_t pid)
{
	int r = -ETIMEDOUT;

	for (int ms = 0; r == -ETIMEDOUT && ms < SERVER_END_MS; ms += SERVER_ASK_MS)
		r = process_end(pid, DEVICE_SERVER, SERVER_ASK_MS);
	return r;
}

int device_teardown(const struct device_record *d, const struct swapoff_options *o,
		    struct error *e)
{
	struct swap_area area;
	char ublk[64];
	int limits, r = 0;

	if (*d->block && !swaps_find(d->block, &area))
		r = swaps_off(d->name, d->block, o, e);
	if (r)
		return r;
	if (kmoddev_is(d))
		r = kmoddev_remove(d, e);
	if (r)
		return r;
	/* ebb-swapd removes a ublk device. */
	if (*d->block && !kmoddev_is(d) && ublk_find(d->name, ublk, sizeof(ublk))) {
		r = loop_detach(d->block);
		if (r)
			return fail(e, r, "device %s: cannot detach %s: %s", d->name, d->block,
				    strerror(-r));
	}
	if (d->server_pid) {
		r = end_server(d->server_pid);
		if (r)
			return fail(e, r, "device %s: %s (pid %d) does not exit: %s; swap is off, kill it",
				    d->name, DEVICE_SERVER, d->server_pid, strerror(-r));
	}
	r = ublk_remove(d->name, e);
	if (!r)
		r = unmount(d->mount, e);
	if (!r) {
		/* With the record, ebbd would set limits again. */
		limits = scope_undo(d->name, e);
		r = remove_files(d, e) ?: limits;
	}
	device_announce();
	return r;
}

void device_announce(void)
{
	json_object_put(control_ask(ebb_control_socket(), "device.refresh", 5000));
}
