// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ebb/page.h>

#include "adopt.h"
#include "create.h"
#include "donors.h"
#include "ebbctl/process.h"
#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "lib/host/scope.h"
#include "lib/host/systemd.h"
#include "lib/wire/key.h"
#include "loopdev.h"
#include "swaps.h"
#include "teardown.h"
#include "ublkdev.h"

/* The file that ebb-swapd serves in its mount. */
#define SERVED_FILE "swap"

#define BACKUP_FILE "%s/%s.backup"

#define SERVER_START_MS 60000 /* includes writing the whole backup file */
/* Above the usual 100 of zram. */
#define PRIORITY_MIN 200

/*
 * ebb-swapd checks these again; here a wrong value is EXIT_USAGE also while donors are unreachable,
 * after which ebb-device@.service would try again.  It does so if the key is missing, which may
 * come later at boot.
 */
static int check_options(const char *name, const struct device_plan *plan, struct error *e)
{
	struct key key;
	int r;

	if (plan->size % EBB_PAGE || plan->size / EBB_PAGE > INT32_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --size must be whole pages of 4096 bytes, less than 8T; round it down",
				 name);
	if (plan->slab & (plan->slab - 1))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --slab must be a power of two; use 64M", name);
	if (strcmp(plan->durability, "disk") && plan->backup)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --backup requires --durability disk, not %s; drop it", name,
				 plan->durability);
	if (plan->backup && plan->backup[0] != '/')
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "backup %s: not an absolute path; give --backup an absolute path",
				 plan->backup);
	if (!plan->extras.key)
		return plan->extras.connections <= 1 ? 0 :
		       fail_exit(e, EXIT_USAGE, EINVAL,
				 "device %s: --connections requires a key; pass --key FILE, or drop it",
				 name);
	r = key_load_own(&key, plan->extras.key, e);
	if (!r)
		key_forget(&key);
	return r;
}

static const char *backup_dir(const struct device_plan *plan)
{
	return plan->backup ?: DEVICE_BACKUP_DIR;
}

/* A server locks its backup while it lives; afterwards the contents are useless. */
static bool is_left_over(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/*
 * In ebb's own directory, removes the backup of a device that ended with the machine.
 * After a power failure it would keep a device from being created at boot.
 */
static void remove_left_over(const struct device_plan *plan, const char *backup)
{
	if (!plan->backup && is_left_over(backup) && unlink(backup) == 0)
		fprintf(stderr, "ebbctl: backup %s: removed; its device ended with the machine\n",
			backup);
}

static int check_backup(const char *name, const struct device_plan *plan,
			const struct device_record *d, struct error *e)
{
	char need[16], have[16];
	struct statvfs fs;
	const char *dir = backup_dir(plan);
	int r;

	if (!*d->backup)
		return 0;
	r = plan->backup ? 0 : file_make_dirs(dir, 0700);
	if (r)
		return fail(e, r, "backup %s: cannot create: %s", dir, strerror(-r));
	if (access(dir, F_OK) < 0)
		return fail_exit(e, EXIT_USAGE, errno, "backup %s: %s; create the directory first",
				 dir, strerror(errno));
	if (snprintf(NULL, 0, BACKUP_FILE, dir, name) >= (int)sizeof(d->backup))
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "backup %.128s: name too long; give a shorter --backup",
				 dir);
	remove_left_over(plan, d->backup);
	if (access(d->backup, F_OK) == 0)
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "backup %s: exists; remove it if no device uses it",
				 d->backup);
	if (statvfs(dir, &fs) < 0)
		return fail(e, errno, "backup %s: %s", dir, strerror(errno));
	if ((uint64_t)fs.f_bavail * fs.f_frsize >= plan->size)
		return 0;
	return fail(e, ENOSPC,
		    "backup %s: %s free, device %s needs %s; free some space or give another --backup",
		    dir, size_format((uint64_t)fs.f_bavail * fs.f_frsize, have, sizeof(have)),
		    name, size_format(plan->size, need, sizeof(need)));
}

static int check_swap(const char *name, const struct device_plan *plan, int *priority,
		      struct error *e)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas), top = swaps_top_priority();

	if (!strcmp(plan->scope, "attached") && n > 0)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "device %s: --scope attached excludes other swap, and %s is on; run \"swapoff %s\" first",
				 name, areas[0].path, areas[0].path);
	if (n == SWAPS_MAX)
		return fail_exit(e, EXIT_REFUSED, EMFILE, "device %s: all %d swap areas are in use; swapoff one",
				 name, n);
	*priority = (int)plan->priority;
	if (!*priority)
		*priority = top < PRIORITY_MIN	      ? PRIORITY_MIN :
			    top < DEVICE_PRIORITY_MAX ? top + 1 :
							top;
	return 0;
}

static bool is_ublk(const char *frontend)
{
	return !strcmp(frontend, "ublk");
}

static bool is_kmod(const char *frontend)
{
	return !strcmp(frontend, KMOD_FRONTEND);
}

static int check_fuse(struct error *e)
{
	if (access("/dev/fuse", R_OK | W_OK) == 0)
		return 0;
	return fail_exit(e, EXIT_UNSUPPORTED, errno, "/dev/fuse: %s; run \"modprobe fuse\"", strerror(errno));
}

static int check_request(const char *name, const struct device_plan *plan, struct error *e)
{
	int r = need_root("device create", e);

	if (!r)
		r = device_name_check(name, e);
	if (!r && !plan->size)
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "device %s: size missing; give --size, such as --size 4G", name);
	return r;
}

static int check(const char *name, const struct device_plan *plan, struct device_record *d,
		 struct donor_list *donors, struct error *e)
{
	int r = is_kmod(plan->frontend) ? 0 :
		is_ublk(plan->frontend) ? ublk_check(e) :
					  check_fuse(e);

	if (r)
		return r;
	r = check_swap(name, plan, &d->priority, e);
	if (!r && is_kmod(plan->frontend))
		return kmoddev_plan(name, plan, d, e);
	if (!r)
		r = check_options(name, plan, e);
	if (!r)
		r = device_donors(&plan->donors, donors, d, e);
	return r ? r : check_backup(name, plan, d, e);
}

/* ebbd reads the key, too.  Not resolved: the owner of a link matters. */
static void put_key_path(const char *path, char *to, size_t size)
{
	char here[PATH_MAX];

	if (*path == '/' || !getcwd(here, sizeof(here)) ||
	    snprintf(to, size, "%s/%s", here, path) >= (int)size)
		snprintf(to, size, "%s", path);
}

static void fill_record(const char *name, const struct device_plan *plan, struct device_record *d)
{
	const struct device_extras *extras = &plan->extras;

	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->frontend, sizeof(d->frontend), "%s", plan->frontend);
	d->size = plan->size;
	snprintf(d->mount, sizeof(d->mount), "%s", device_mount(name));
	snprintf(d->scope, sizeof(d->scope), "%s", plan->scope);
	snprintf(d->durability, sizeof(d->durability), "%s", plan->durability);
	d->slab = plan->slab;
	if (extras->key)
		put_key_path(extras->key, d->key, sizeof(d->key));
	else
		strcpy(d->key, "none");
	snprintf(d->seal, sizeof(d->seal), "%s", extras->seal ?: "auto");
	strcpy(d->overcommit, extras->overcommit ? "on" : "off");
	if (is_kmod(plan->frontend)) {
		snprintf(d->backup, sizeof(d->backup), "%s", plan->backup ?: "");
		return;
	}
	if (!strcmp(plan->durability, "disk"))
		snprintf(d->backup, sizeof(d->backup), BACKUP_FILE, backup_dir(plan), name);
	snprintf(d->connections, sizeof(d->connections), "%hhu",
		 (unsigned char)(extras->connections ?: 1));
}

/* Writes the intent, from which `device destroy` cleans up after a killed ebbctl. */
static int write_intent(const struct device_record *d, struct error *e)
{
	struct json_object *o = device_record_json(d);
	int r = file_replace(device_intent(d->name), json_object_to_json_string(o));

	json_object_put(o);
	return r ? fail(e, r, "%s: cannot write: %s", device_intent(d->name), strerror(-r)) : 0;
}

static int start_server(const struct device_plan *plan, const struct donor_list *donors,
			struct device_record *d, struct error *e)
{
	const struct { const char *option, *value; } more[] = {
		{ "--backup", *d->backup ? d->backup : NULL },
		/* NULL: the default. */
		{ "--frontend", is_ublk(d->frontend) ? d->frontend : NULL },
		{ "--durability", strcmp(d->durability, "disk") ? d->durability : NULL },
		{ "--key", plan->extras.key },
		{ "--connections", d->connections },
		{ "--seal", plan->extras.seal },
	};
	/* The supervisor and all servers inherit the sleep lock. */
	_cleanup_close_ int awake = sleep_lock_take(d->name);
	char size[32], slab[32], unit[80];
	const char *argv[21 + 2 * DEVICE_DONORS + 2 * sizeof(more) / sizeof(more[0])];
	int n = 0, r;

	r = file_make_dirs(d->mount, 0700);
	if (r)
		return fail(e, r, "%s: cannot create: %s", d->mount, strerror(-r));
	snprintf(size, sizeof(size), "%llu", (unsigned long long)d->size);
	snprintf(slab, sizeof(slab), "%llu", (unsigned long long)d->slab);
	snprintf(unit, sizeof(unit), "ebb-swapd-%s.scope", d->name);
	argv[n++] = ebb_program(DEVICE_SERVER);
	argv[n++] = "--name";
	argv[n++] = d->name;
	argv[n++] = "--size";
	argv[n++] = size;
	argv[n++] = "--slab";
	argv[n++] = slab;
	for (int i = 0; i < donors->n; i++) {
		argv[n++] = "--donor";
		argv[n++] = donors->v[i].address;
	}
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		if (more[i].value) {
			argv[n++] = more[i].option;
			argv[n++] = more[i].value;
		}
	if (plan->extras.overcommit)
		argv[n++] = "--overcommit";
	argv[n++] = "--mount";
	argv[n++] = d->mount;
	argv[n] = NULL;
	if (awake < 0 && awake != -EOPNOTSUPP)
		fprintf(stderr, "ebbctl: warning: device %s: systemd-logind does not inhibit sleep: %s; destroy the device before the machine sleeps\n",
			d->name, strerror(-awake));
	r = process_start(argv, unit, device_log(d->name), awake, SERVER_START_MS, e);
	if (r)
		return r;
	d->server_pid = device_server(d->name);
	return d->server_pid ? 0 : fail(e, ESRCH, "device %s: ebb-swapd exited during startup; see %s",
					d->name, device_log(d->name));
}

/*
 * Bounds the swap-outs in flight without throttling: once all pages of a small cgroup are in
 * flight, the OOM killer acts.  The module bounds its requests itself, and relies on throttling.
 */
static void queue_settle(const struct device_record *d)
{
	int r;

	if (is_kmod(d->frontend))
		return;
	block_no_throttling(d->block);
	r = block_bound_requests(d->block);
	if (r)
		fprintf(stderr, "ebbctl: warning: device %s: cannot bound the requests of %s: %s; lower nr_requests and max_sectors_kb of its queue, or the OOM killer may act in small cgroups\n",
			d->name, d->block, strerror(-r));
}

static int number_of(struct device_record *d, struct error *e)
{
	int r = block_number(d->block, &d->major, &d->minor);

	queue_settle(d);
	return r ? fail(e, r, "%s: %s", d->block, strerror(-r)) : 0;
}

static int attach(struct device_record *d, int *loop, struct error *e)
{
	char file[PATH_MAX + 16];
	int r;

	if (is_ublk(d->frontend)) {
		r = ublk_find(d->name, d->block, sizeof(d->block));
		if (r)
			return fail(e, r, "device %s: ebb-swapd created no block device; see %s", d->name,
				    device_log(d->name));
		ublk_settle(d->block);
		return number_of(d, e);
	}
	snprintf(file, sizeof(file), "%s/" SERVED_FILE, d->mount);
	*loop = loop_attach(file, d->block, sizeof(d->block), e);
	if (*loop < 0)
		return *loop;
	return number_of(d, e);
}

static int build(const struct device_plan *plan, const struct donor_list *donors,
		 struct device_record *d, struct error *e)
{
	_cleanup_close_ int loop = -1;
	int r = write_intent(d, e);

	if (!r && is_kmod(d->frontend)) {
		r = kmoddev_make(d, e);
		if (!r)
			r = number_of(d, e);
	} else {
		if (!r)
			r = start_server(plan, donors, d, e);
		if (!r)
			r = attach(d, &loop, e);
	}
	if (!r && !strcmp(d->scope, "attached"))
		r = scope_apply(d->name, NULL, SCOPE_COMMAND, e);
	if (!r)
		r = swaps_on(d->name, d->block, d->priority, e);
	if (!r)
		r = device_record_write(d, e);
	return r;
}

int device_create(const char *name, const struct device_plan *plan, struct device_record *d,
		  struct error *e)
{
	_cleanup_(donor_list_free) struct donor_list donors = { .n = 0 };
	const struct swapoff_options cleanup = { SWAPOFF_MS, PATIENCE_TO_THE_END,
						 SWAPOFF_QUIET, NULL };
	struct device_record other;
	struct error also = { 0 };
	_cleanup_close_ int lock = -1;
	int r;

	r = check_request(name, plan, e);
	if (r)
		return r;
	*d = (struct device_record){ .size = 0 };
	fill_record(name, plan, d);
	process_defer_signals();
	lock = device_lock(PATIENCE_UNTIL_INTERRUPTED, e);
	if (lock < 0)
		return lock;
	if (!device_find(name, &other, NULL))
		return plan->adopt ? device_adopt(plan, &other, d, e) :
		       fail_exit(e, EXIT_REFUSED, EEXIST,
				 "device %s: exists; choose another name, or run \"ebbctl device destroy %s\"",
				 name, name);
	r = check(name, plan, d, &donors, e);
	if (r)
		return r;
	r = build(plan, &donors, d, e);
	if (!r) {
		unlink(device_intent(name));
		device_announce();
		return 0;
	}
	if (!device_find(name, d, NULL) &&
	    device_teardown(d, &cleanup, &also))
		fprintf(stderr, "ebbctl: cleanup: %s\n", also.text);
	return r;
}
